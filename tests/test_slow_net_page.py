"""docs/slow-net.md explains by hand what was measured: its numbers are those of the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "slow-net.md"
FSG, LATER = "fsg-resnet20-cifar10-first-128-28ff3300482b", "fsg-resnet20-cifar10-at-16380-28ff3300482b"
SGD, CODE = "fsg-resnet20-cifar10-first-128-612323c62325", "fsg-code-resnet20-cifar10-first-128-28caba726132"
WEIGHT, LSTM = "fsg-weight-resnet20-cifar10-first-128-0036e2c1890e", "fsg-lstm-resnet20-cifar10-first-32-11c99c0cb84a"

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="not a clone of the repository")


def recorded(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "results" / "diagnosis" / f"{name}.json").read_text())


def last(name: str, row: str) -> float:
    return recorded(name)["rows"][row][-1]


def ends(name: str, key: str) -> tuple[int, int]:
    values = [layer[key] for layer in recorded(name)["reach"]]
    return min(values), max(values)


def said() -> list[str]:
    """Every number of the page, from the file it stands in."""
    lines = [last(name, "r2_token_linear") for name in (FSG, SGD, CODE)]
    history = [last(LATER, f"effect_{how}") for how in ("zero", "repeat", "shuffle")]
    return [
        *(f"explains {100 * line:.2f} %" for line in lines),
        f"and {100 * last(LATER, 'r2_token_linear'):.2f} % after 42 epochs",
        f"changes by {last(FSG, 'effect_shuffle'):.1e} of its size after 128 steps and by {history[-1]:.1e} after",
        f"change it by {max(history):.1e} at most then",
        "{:,} to {:,} in a ResNet-20".format(*ends(FSG, "weights")),
        "for {} to {} tokens, with SGD for {} to {}".format(*ends(FSG, "felt_until"), *ends(SGD, "felt_until")),
        "It stands {:,} to {:,} tokens before".format(*ends(FSG, "tokens_to_the_first_used")),
        f"the outputs change by {last(FSG, 'effect_lre'):.1e} of their size",
        f"change of what is used is {last(LATER, 'effect_lre'):.1e}",
        f"shuffled history changes the output by {100 * last(WEIGHT, 'effect_shuffle'):.0f} %",
        f"explains {100 * last(WEIGHT, 'r2_history_linear'):.0f} % of it",
        f"cosine with their mean is {last(WEIGHT, 'cosine_slow_mean_of_history'):.2f}",
        f"without the newest it changes by {last(LSTM, 'effect_no_current'):.1e}",
        f"with shuffled history by {last(LSTM, 'effect_shuffle'):.1e}",
        f"cosine with the newest gradient is {last(LSTM, 'cosine_slow_current'):.2f}",
        f"{last(LSTM, 'slow_rms') / last(LSTM, 'fast_rms'):.0f} times as large as the fast part",
        f"is {100 * last(FSG, 'slow_rms') / last(FSG, 'fast_rms'):.1f} % of the fast one",
        f"it is {last(LATER, 'slow_rms') / last(LATER, 'fast_rms'):.0f} times as large. By then",
        f"{last(FSG, 'k'):.1f} after 128 steps with Adam, {last(LATER, 'k'):.0f} after 42 epochs",
        f"{last(SGD, 'k'):.0f} after 128 steps with SGD, {last(CODE, 'k'):,.0f} in the authors' code",
        f"cosine of {last(FSG, 'cosine_fast_straight'):.2f} with STE's",
        f"by {last(FSG, 'shift_over_distance_median'):.1e} of its distance",
        f"flips {last(FSG, 'flipped_by_lookahead'):.1e} of the bits",
        f"step itself flips {100 * last(FSG, 'flips_of_a_step'):.2f} %",
        f"after 42 epochs it flips {100 * last(LATER, 'flipped_by_lookahead'):.2f} %",
    ]


def runs(method: str, folder: str = "resnet20-cifar10", epochs: int = 20) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in (ROOT / "results" / folder).glob(f"{method}-adam-seed*.json")]
    return [run for run in found if run["config"]["epochs"] == epochs]


def swept(field: str, usual: float) -> str:
    """The last epochs of a sweep's runs in words, in the order of the field."""
    ends = {
        run["config"]["method_fields"].get(field, usual): run["test_accuracy"]
        for run in runs("fsg")
        if run["config"]["method_fields"].keys() <= {field}
    }
    values, ends = [f"{value:g}" for value in sorted(ends)], [f"{ends[value]:.2f}" for value in sorted(ends)]
    verb = "end at" if field == "length" else "at"
    return f"of {_listed(values)} {verb} {_listed(ends)}"


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def test_the_page_says_how_the_sweeps_end() -> None:
    text = " ".join(PAGE.read_text().split())
    straight = [run["test_accuracy"] for run in runs("ste") if run["config"]["schedule"] == "step"]
    assert len(straight) == 3
    assert f"STE at {min(straight):.2f} to {max(straight):.2f} in three seeds" in text
    assert swept("length", 6) in text
    assert swept("beta", 0.3) in text


def test_the_page_says_where_an_lstm_on_raw_gradients_ends() -> None:
    (run,) = (run for run in runs("fsg-lstm") if run["config"]["method_fields"].get("normalise", "none") == "none")
    plus = run["curve"]["share_plus"]
    assert f"the network ends at {run['test_accuracy']:.2f} %" in " ".join(PAGE.read_text().split())
    assert (f"{100 * plus[0]:.1f}", plus.index(1.0) + 1) == ("99.9", 4)


def test_the_page_says_how_an_lstm_in_units_of_the_layer_ends() -> None:
    def ends(method: str, fields: dict[str, str]) -> list[dict[str, Any]]:
        found = [run for run in runs(method, "resnet8-mini", 12) if run["config"]["method_fields"] == fields]
        return sorted(found, key=lambda run: run["config"]["seed"])

    def words(found: list[dict[str, Any]]) -> str:
        return _listed([f"{run['test_accuracy']:.1f}" for run in found])

    lstm, mamba = ends("fsg-lstm", {"normalise": "rms"}), ends("fsg", {})
    (raw,) = ends("fsg-lstm", {"normalise": "none"})
    text = " ".join(PAGE.read_text().split())
    assert f"ends at {words(lstm)} in three seeds, with Mamba at {words(mamba)}" in text
    assert f"on raw gradients at {raw['test_accuracy']:.1f} in one" in text
    assert f"{100 * raw['curve']['share_plus'][-1]:.1f} % of the bits +1" in text


def test_the_page_says_what_was_measured() -> None:
    text = " ".join(PAGE.read_text().split())
    assert [sentence for sentence in said() if sentence not in text] == []


def test_what_the_page_says_without_numbers() -> None:
    assert min(layer["felt_until"] for layer in recorded(LATER)["reach"]) > 3000
    assert last(FSG, "effect_no_current") == pytest.approx(1, abs=1e-3)
    rows = recorded(FSG)["rows"]
    assert [k > 0 for k in rows["k"]] == [step >= 4 for step in rows["step"]]
    for name in (FSG, SGD, CODE, LATER):  # the older gradients add nothing
        assert last(name, "r2_history_linear") - last(name, "r2_token_linear") < 1e-4


def test_runs_with_other_l_are_the_same_runs() -> None:
    losses: dict[tuple[int, int], list[float]] = {}
    for path in (ROOT / "results" / "resnet8-mini").glob("fsg-adam-*.json"):
        record = json.loads(path.read_text())
        fields = record["config"]["method_fields"]
        if "beta" not in fields:
            losses[fields.get("length", 6), record["config"]["seed"]] = record["curve"]["train_loss"]
    equal = {
        (length, seed): sum(a == b for a, b in zip(curve, losses[6, seed], strict=True))
        for (length, seed), curve in losses.items()
        if length != 6
    }
    assert len(equal) == 12
    assert {run: epochs for run, epochs in equal.items() if epochs < 12} == {(3, 0): 9, (4, 0): 7, (7, 2): 3}


def test_its_figures_are_there() -> None:
    figures = [part.split(")")[0] for part in PAGE.read_text().split("](figures/")[1:]]
    assert len(figures) == 9
    assert all((ROOT / "docs" / "figures" / name).is_file() for name in figures)
