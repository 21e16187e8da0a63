"""The report: the paper's tables with our numbers, from files alone."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fastslow.recipes import RECIPES
from fastslow.report import plus_tables
from fastslow.report.document import Section, Table
from fastslow.report.html import render_html
from fastslow.report.markdown import render_markdown
from fastslow.report.page import BEGIN, END, build, intro, update_readme, write_report
from fastslow.report.results import Results, reference
from fastslow.report.small_tables import overhead_table
from fastslow.report.statistics import Paired, mean
from fastslow.report.step_table import BENCHMARKS, step_table
from fastslow.report.tables import (
    harness_table,
    headline,
    logged_by_metaquant,
    main_tables,
    published,
    readme_table,
    verdict,
)
from fastslow.report.words import NOT_RUN, difference, pair_words, signed
from synthetic_results import write_synthetic

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    write_synthetic(folder, "table1", "resnet20/adam", 3, ste=90.4, fsg=89.6)
    write_synthetic(folder, "table1", "resnet44/adam/ste", 1)
    write_synthetic(folder, "beta", "resnet20", 1)
    write_synthetic(folder, "overhead", "resnet56", 1)
    return folder


@pytest.fixture(scope="module")
def written(made_up: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs")
    write_report(made_up, out)
    return out


# -- the committed report ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (ROOT / "docs" / "results.md").is_file(), reason="not a clone of the repository")
def test_the_committed_report_is_what_the_results_give(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs" / "research.md", tmp_path)
    write_report(ROOT / "results", tmp_path)
    for path in sorted(tmp_path.rglob("*.*")):
        committed = ROOT / "docs" / path.relative_to(tmp_path)
        assert committed.read_bytes() == path.read_bytes(), f"{committed} is stale: run `fastslow report` and commit it"
    figures = ROOT / "docs" / "figures"
    kept = {path.name for path in (tmp_path / "figures").glob("*.svg")}
    assert {path.name for path in figures.glob("*.svg")} == kept


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_published_values() -> None:
    assert published("resnet20", "adam", "fsg") == {
        "test": [91.0, 0.804],
        "train": [94.926, 0.747],
        "loss": [0.143, 0.039],
    }
    assert published("resnet110", "sgd", "ste") is not None
    assert published("resnet20", "sgd-tuned", "ste") is None
    assert published("resnet20", "adam", "multifc") is None  # the paper leaves it out
    assert len(reference("paper")["tables12"]) == 40
    logged = logged_by_metaquant("resnet32", "cifar10", "adam", "ste")
    assert logged == {"last10": 91.172, "variance": 0.077, "best": 91.52, "trials": 5, "from": "logs"}
    assert logged_by_metaquant("resnet20", "cifar10", "adam-all", "ste")["last10"] == 89.782  # pyright: ignore
    assert len(reference("metaquant")["settings"]) == 65 + 5  # the logs, and what only the README has


def test_rows_are_means_over_the_recorded_seeds(made_up: Path) -> None:
    results = Results(made_up)
    setting = next(s for s in RECIPES["table1"].settings() if s.name == "resnet20/adam/fsg")
    group = results.group(setting)
    files = sorted((made_up / "resnet20-cifar10").glob("fsg-adam-seed*.json"))
    contents = [json.loads(path.read_text()) for path in files]
    own = [c for c in contents if c["config"]["method_fields"] == {} and c["config"]["epochs"] == 100]
    assert group.n == len(own) == 3
    assert group.mean() == pytest.approx(mean([c["test_accuracy"] for c in own]))
    assert group.mean("last10") == pytest.approx(mean([mean(c["curve"]["test_accuracy"][-10:]) for c in own]))
    table = main_tables(results, [s for s in RECIPES["table1"].settings() if s.name.startswith("resnet20/")])[0]
    row = next(row for row in table.rows if row[:2] == ("Adam", "FSG"))
    assert row[4] == f"{group.mean():.2f} ± {group.deviation():.2f}"
    assert row[5] == "3"
    assert row[10] == signed(group.mean() - 91.0)
    assert row[12].endswith("n = 3")
    unrun = next(row for row in table.rows if row[:2] == ("SGD", "FSG"))
    assert (unrun[4], unrun[8], unrun[9]) == (NOT_RUN, "– (92.30)", "– (0.218)")


def test_no_results_at_all(tmp_path: Path) -> None:
    results = Results(tmp_path / "nothing")
    sections = build(results)
    text = render_markdown("Results", intro(results), sections)
    assert "0 recorded runs" in text
    assert "not run" in text
    assert "<svg" not in render_html("Results", intro(results), sections)
    assert headline(results).rows == ()


@pytest.mark.parametrize("name", ["results.md", "results.html", "diagnosis.md"])
def test_pages_of_others_are_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / name).write_text("mine")
    with pytest.raises(ValueError, match=f"{name} wasn't made by `fastslow report`"):
        write_report(tmp_path / "results", tmp_path / "docs")
    assert [path.name for path in (tmp_path / "docs").iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("conditions", lambda record: record.pop("conditions"), "is no result of a run"),
        ("device", lambda record: record["conditions"].pop("device"), "it has no device"),
        ("accuracy", lambda record: record.pop("test_accuracy"), "it has no test_accuracy"),
        ("nan", lambda record: record.update(test_accuracy=math.nan), "it has no finite test_accuracy"),
        ("curve", lambda record: record["curve"]["seconds"].pop(), "it has no curve of one length"),
    ],
)
def test_a_record_that_lacks_something_is_named(
    tmp_path: Path, name: str, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    write_synthetic(tmp_path, "table1", "resnet20/adam/ste", 1)
    (path,) = tmp_path.rglob("*.json")
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=f"{path.name} .*{words}"):
        Results(tmp_path)


@pytest.mark.parametrize("name", ["theorem", "starts", "benchmarks/step_h200_resnet20_kept", "diagnosis/mine"])
@pytest.mark.parametrize("content", ["{", "[]", '{"foreign": 1}'])
def test_another_file_that_is_none_of_ours_is_named(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / "results" / f"{name}.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        write_report(tmp_path / "results", tmp_path / "docs")


def test_diverged_runs_are_said(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "table1", "resnet20/adam/ste", 2)
    first, second = sorted(tmp_path.rglob("*.json"))
    for path in (first, second):
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "failed": "training diverged: the loss is nan"}))
        table = main_tables(Results(tmp_path), RECIPES["table1"].settings())[0]
        if path == first:
            assert table.rows[0][4].endswith("; 1 diverged")
            assert table.rows[0][5] == "1"
    assert table.rows[0][4] == "diverged (2 of 2)"


def test_overhead_takes_only_runs_that_were_alone(made_up: Path, tmp_path: Path) -> None:
    rows = overhead_table(Results(made_up)).rows
    assert rows[0][2:5] == ("42.3 (1.0×)", "4.00", "1.0×")
    assert rows[2][4] == "5.0×"
    shutil.copytree(made_up, tmp_path / "shared")
    for path in (tmp_path / "shared" / "resnet56-cifar100").glob("*.json"):
        path.write_text(path.read_text().replace('"jobs":1', '"jobs":4'))
    assert overhead_table(Results(tmp_path / "shared")).rows[0][3] == NOT_RUN


def test_rows_that_were_not_run_can_be_named_below() -> None:
    rows = (("a", "x", "1"), ("a", "y", NOT_RUN), ("b", "x", NOT_RUN), ("b", "y, z", NOT_RUN))
    table = Table("t", ("A", "B", "C"), rows, labels=2, note="A note.")
    assert table.only_run() == Table("t", ("A", "B", "C"), rows[:1], 2, "Not run: a (y); b (x / y, z). A note.")
    narrow = Table("t", ("A", "B"), (("a", NOT_RUN), ("b", NOT_RUN))).only_run()
    assert (narrow.rows, narrow.note) == ((), "Not run: a; b.")
    assert "<b>t.</b> Not run: a; b." in render_html("x", [], [Section("s", "S", "", (narrow,))])
    whole = Table("t", ("A", "B"), (("a", "1"),))
    assert whole.only_run() is whole


def test_what_a_step_costs_comes_from_the_benchmarks(tmp_path: Path) -> None:
    assert step_table(Results(tmp_path)).note == "Steps: not run."
    row = {"model": "resnet20", "method": "ste", "ms": 2.0, "ratio": 1.0, "peak_mib": 100.4}
    unknown = {**row, "method": "whole history"}
    deep = {"model": "resnet56", "method": "fsg", "ms": 9.004, "ratio": 4.5, "peak_mib": 200}
    (tmp_path / "benchmarks").mkdir()
    for name, found in zip(BENCHMARKS, ([deep], [row, unknown]), strict=True):
        (tmp_path / "benchmarks" / f"{name}.json").write_text(
            json.dumps({"rows": found, "conditions": {"device": "some GPU"}})
        )
    assert step_table(Results(tmp_path)).note.startswith("some GPU, ")
    assert step_table(Results(tmp_path)).rows == (
        ("ResNet-56", "FSG", "9.00", "4.50×", "4.6×", "200"),
        ("ResNet-20", "STE", "2.00", "1.00×", "–", "100"),
    )


def test_harness_and_readme(made_up: Path, tmp_path: Path) -> None:
    shutil.copytree(made_up, tmp_path / "results")
    write_synthetic(tmp_path / "results", "table1-variants", "resnet20/adam-all/ste", 3, ste=89.8)
    rows = harness_table(Results(tmp_path / "results")).rows
    first = next(row for row in rows if row[0].startswith("ResNet-20"))
    assert first[2] == "89.78 / 90.22"
    assert first[4] == "3"
    assert abs(float(first[5].replace("−", "-"))) < 0.6
    assert {row[3] for row in rows[1:]} == {NOT_RUN}
    readme = tmp_path / "README.md"
    readme.write_text("# x\n")
    with pytest.raises(ValueError, match="lacks the lines"):
        update_readme(tmp_path / "results", readme)
    readme.write_text(f"# x\n\n{BEGIN}\nold\n{END}\n\nrest\n")
    update_readme(tmp_path / "results", readme)
    once = readme.read_text()
    assert "old" not in once
    assert "| ResNet-20, CIFAR-10, Adam |" in once
    assert once.endswith(f"{END}\n\nrest\n")
    update_readme(tmp_path / "results", readme)
    assert readme.read_text() == once


def test_readme_shows_ste_at_a_rate_that_suits_it(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "table1", "resnet20/sgd", 1, ste=83.0, fsg=87.0)
    write_synthetic(tmp_path, "table1-variants", "resnet20/sgd-tuned/ste", 3, ste=89.5)
    write_synthetic(tmp_path, "table1", "resnet32/adam/ste", 1)  # nothing is beside it
    rows = readme_table(Results(tmp_path)).rows
    variants = ["FSG, authors' code", "FSG, per weight"]
    assert [row[1] for row in rows] == ["STE", "FCGrad", "MultiFC", "LSTMFC", "FSG", *variants, "STE"]
    assert rows[-1][0] == "ResNet-20, CIFAR-10, SGD, tuned lr 0.1"
    assert rows[-1][2] == "3"
    assert set(rows[-1][5:]) == {"–"}


def test_fsg_plus_stands_beside_ste(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "plus", "resnet20/adam-strong/", 5, ste=91.0, fsg_plus=92.0)
    rows = {row[0]: row for row in plus_tables.plus_table(Results(tmp_path)).rows}
    row = rows["ResNet-20, CIFAR-10, Adam, cosine, teacher, cutout"]
    assert row[3] == "5"
    assert re.fullmatch(r"\+[01]\.\d\d \[.*\]", row[4])
    assert re.fullmatch(r"p [<=] 0\.0.*, n = 5.*", row[5])
    assert 4 < float(row[7]) < 6
    assert rows["ResNet-44, CIFAR-10, Adam, cosine, teacher, cutout"][1:3] == (NOT_RUN, NOT_RUN)
    (shown,) = headline(Results(tmp_path)).rows
    assert (shown[1], shown[-1]) == ("FSG-plus", "better than STE")
    write_synthetic(tmp_path, "plus", "resnet20/adam-distill/ste", 5, ste=91.9)
    same, easier = plus_tables.plus_recipes_table(Results(tmp_path)).rows
    assert (same[0], easier[0]) == ("Adam, cosine, teacher, cutout", "Adam, cosine, teacher")
    assert same[2:] == row[4:6]
    assert float(easier[2].split()[0]) < float(same[2].split()[0])
    write_synthetic(tmp_path, "plus", "resnet20/adam-short/fsg-plus", 5, fsg_plus=92.5)
    shortened = plus_tables.plus_short_table(Results(tmp_path)).rows[0]
    assert shortened[:2] == ("ResNet-20, CIFAR-10", NOT_RUN)
    assert float(shortened[4].split()[0]) > 0
    assert shortened[5].endswith("n = 5")
    assert readme_table(Results(tmp_path)).rows == ()  # the paper's protocol alone
    (short,) = plus_tables.readme_table(Results(tmp_path)).rows  # nothing where STE wasn't run on the same recipe
    assert short[:2] == ("ResNet-20, CIFAR-10", "Adam, cosine, teacher, cutout")
    assert (short[3:6], short[7]) == ((row[1], row[2], row[4]), "5")
    assert row[5].startswith(short[6])


def test_words() -> None:
    found = Paired(5, 90.0, -0.304, 0.0212, -1.94, (-0.52, -0.08), None)
    assert difference(found) == "−0.30 [−0.52, −0.08]"
    assert pair_words(found) == "p = 0.021, d = −1.9, n = 5"
    assert verdict(found) == "worse than STE"
    assert verdict(Paired(5, 90.0, 0.3, 0.2, 0.4, None, None)) == "nothing"
    assert verdict(Paired(1, 90.0, 0.3, None, None, None, None)) == "too few runs"
    assert (
        pair_words(Paired(6, 90.0, 1.0, 0.0001, 3.0, None, 0.03125)) == "p < 0.001, d = +3.0, Wilcoxon p = 0.031, n = 6"
    )
    assert (signed(-0.001), signed(0.0), signed(2)) == ("0.00", "0.00", "+2.00")


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_same_results_give_the_same_bytes(made_up: Path, written: Path, tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    for name in ("of-yesterday", "mine"):
        (tmp_path / "figures" / f"{name}.svg").write_text("")
    (tmp_path / "results.md").write_text("Generated by `fastslow report`.\n![old](figures/of-yesterday.svg)")
    (tmp_path / "research.md").write_text("my own notes")
    write_report(made_up, tmp_path)
    (tmp_path / "figures" / "mine.svg").unlink()  # it was none of the report's
    assert (tmp_path / "research.md").read_text() == "my own notes"
    (tmp_path / "research.md").unlink()
    files = sorted(path.relative_to(written) for path in written.rglob("*.*"))
    assert files == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.*"))
    assert len(files) > 5
    for path in files:
        assert (written / path).read_bytes() == (tmp_path / path).read_bytes()


class Checker(HTMLParser):
    """Whether tags close, and what the page asks for from outside."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.asked: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.asked += [v or "" for k, v in attrs if k in ("src", "href", "srcset") and not (v or "").startswith("#")]
        self.ids += [v or "" for k, v in attrs if k == "id"]
        assert tag not in ("script", "link", "img", "iframe")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(written: Path) -> None:
    text = (written / "results.html").read_text()
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert checker.asked == []
    assert len(checker.ids) == len(set(checker.ids))
    assert "url(" not in text
    assert "prefers-color-scheme:dark" in text
    assert 'name="viewport"' in text


def test_figures_are_well_formed_and_have_words(written: Path) -> None:
    figures = sorted((written / "figures").glob("*.svg"))
    assert {"train-loss-resnet44-adam.svg", "sweep-beta-resnet20.svg", "ridges-resnet20-adam.svg"} <= {
        p.name for p in figures
    }
    for path in figures:
        root = ElementTree.fromstring(path.read_text())
        assert len(root.attrib["aria-label"]) > 30
        assert root.findall(".//{http://www.w3.org/2000/svg}text")
        assert "nan" not in path.read_text()


def test_markdown_tables_have_equal_columns(written: Path) -> None:
    rows: list[str] = []
    for line in [*(written / "results.md").read_text().splitlines(), ""]:
        if line.startswith("|"):
            rows.append(line.replace("\\|", ""))
        elif rows:
            assert len({row.count("|") for row in rows}) == 1, rows[0]
            rows = []


def test_a_curve_that_touches_zero_is_reported(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "results", "table1", "resnet20/adam", 2)
    for number, path in enumerate(sorted((tmp_path / "results").rglob("*.json"))):
        record = json.loads(path.read_text())
        for name in ("flip_ratio", "train_loss"):
            if name in record["curve"]:
                record["curve"][name] = [0.0 if number % 3 else v for v in record["curve"][name][:-1]] + [0.0]
        path.write_text(json.dumps(record))
    assert write_report(tmp_path / "results", tmp_path / "docs")


def chromium() -> str | None:
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


@pytest.mark.skipif(chromium() is None, reason="headless Chromium isn't installed")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["made up", "results.html", "diagnosis.html"])
def test_a_browser_shows_it_without_sideways_scrolling(written: Path, tmp_path: Path, width: int, name: str) -> None:
    """The page fits the window, only tables scroll, beside labels that leave them room, and figures show all words.

    Asked of the browser through the title.
    """
    page = tmp_path / "page.html"
    probe = (
        "<script>onload=()=>{let f=document.createElement('iframe');f.style.cssText="
        f"'width:{width}px;height:800px;border:0';f.srcdoc=document.getElementById('p').textContent;f.onload=()=>{{"
        "let d=f.contentDocument,s=[...d.querySelectorAll('figure>svg')].map(e=>e.getBoundingClientRect().width);"
        "let cut=[...d.querySelectorAll('figure>svg')].flatMap(e=>{let o=e.getBoundingClientRect();"
        "return [...e.querySelectorAll('text')].filter(t=>{let r=t.getBoundingClientRect();"
        "return r.left<o.left-1||r.right>o.right+1||r.top<o.top-1||r.bottom>o.bottom+1}).map(t=>t.textContent)});"
        "let k=[...d.querySelectorAll('td.k')].map(e=>e.getBoundingClientRect().width);"
        "let found=[d.documentElement.scrollWidth,Math.min(...s),s.length,Math.max(0,...k),cut.join(' ; ')];"
        "document.title=found.join(' | ')};"
        "document.body.append(f)}</script>"
    )
    source = written / "results.html" if name == "made up" else Path(__file__).parent.parent / "docs" / name
    inner = source.read_text().replace("</textarea", "")
    page.write_text(
        f"<title></title><body>{probe}<textarea id=p hidden>{inner.replace('&', '&amp;')}</textarea></body>"
    )
    command = [
        chromium() or "",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=3000",
        "--dump-dom",
    ]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    shown = subprocess.run([*command, profile, page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    title = shown.stdout.split("<title>", 1)[1].split("</title>", 1)[0]
    scroll_width, narrowest, count, widest_label, cut = title.split("|")
    assert int(scroll_width) <= width
    assert float(narrowest) > 0.75 * min(width, 440)  # text of 12.5 pixels stays above 9
    assert int(count) > 3
    assert width > 600 or float(widest_label) < 0.45 * width
    assert not cut.strip()
