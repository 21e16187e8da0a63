"""The page on what the slow-net does: each claim as numbers, with its plot and the command that made it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..methods import get_method
from ..recipes import table1, table2
from ..training.config import RunConfig
from .curvature import FILE as CURVATURE
from .curvature import curvature_section
from .document import Section, Table
from .figures import band, colour, panels
from .results import Results
from .svg import Axis, Figure, Series, chart
from .words import data_name, method_name, model_name, protocol_name

_MISSING = "not run"
_USUAL_OPTIMIZER = "adam"  # named only where it is another one


class Diagnosis:
    """One recorded diagnosis: rows over the steps, or one row of a run's last checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.content: dict[str, Any] = json.loads(path.read_text())
            self.config = RunConfig.from_dict(self.content["config"])
            self.rows: dict[str, list[float]] = dict(self.content["rows"])
            self.steps = self.rows["step"]
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{path} is no diagnosis ({error}); move it away") from error
        if "k" in self.rows:
            below = [step for step, k in zip(self.steps, self.rows["k"], strict=True) if k <= 0]
            self.rows["k_below_zero_until"] = [below[-1] if below else 0]

    @property
    def label(self) -> str:
        fields = "".join(f", {name} {value}" for name, value in self._fields.items())
        name = f"{method_name(self.config.method or '')}{fields}, {model_name(self.config.model)}"
        if self.config.optimizer != _USUAL_OPTIMIZER:
            name += f", {protocol_name(self.config.optimizer)}"
        return name if len(self.steps) > 1 else f"{name}, step {self.steps[0]:g}"

    @property
    def command(self) -> str:
        config = self.config
        if f"-first-{self.steps[-1]:g}-" in self.path.name:  # as `fastslow diagnose` names what it trained itself
            network = f"--model {config.model} --data {config.data}"
            if config.optimizer != _USUAL_OPTIMIZER:
                network += f" --optimizer {config.optimizer}"
            seed = f" --seed {config.seed}" if config.seed else ""
            fields = "".join(f" --set {name}={value}" for name, value in self._fields.items())
            return f"fastslow diagnose --method {config.method}{fields} {network} --steps {self.steps[-1]:g}{seed}"
        return f"fastslow diagnose RUN  # of {config.method}, {config.model}, {config.data}, seed {config.seed}"

    @property
    def _fields(self) -> dict[str, Any]:
        """The fields of the method that aren't what its name alone says."""
        own = get_method(self.config.method or "")
        return {name: value for name, value in self.config.method_fields.items() if getattr(own, name) != value}

    def last(self, name: str) -> float | None:
        return self.rows[name][-1] if name in self.rows else None


def load_diagnoses(results: Path) -> list[Diagnosis]:
    """What ``fastslow diagnose`` recorded; the curvature beside it has another form and a section of its own."""
    paths = sorted((results / "diagnosis").glob("*.json"))
    return [Diagnosis(path) for path in paths if path != results / f"{CURVATURE}.json"]


def diagnosis_sections(results: Results) -> list[Section]:
    """One section a claim. Without a recorded diagnosis each says so."""
    found = load_diagnoses(results.root)
    over_time = [d for d in found if len(d.steps) > 1]
    commands = Table(
        "Where the numbers come from",
        ("Measured on", "File", "Command"),
        tuple((d.label, f"diagnosis/{d.path.name}", d.command) for d in found),
        labels=3,
        note="" if found else "No diagnosis is recorded yet.",
    )
    return [
        Section("origin", "Measurements", "", (commands,)),
        _claim(
            "token",
            "How much of the slow gradient is the current gradient",
            "Regressions of the slow-net's output, layer by layer, on the newest gradient of the same weight: by a "
            "straight line, by any function of it (means in bins), and by a straight line on all l stored gradients. "
            "A momentum would need the last to be clearly above the others.",
            found,
            (("line", "r2_token_linear"), ("any function", "r2_token_any"), ("line on all l", "r2_history_linear")),
            _over_steps(over_time, "r2_token_linear", "R² of a line through the current token", "token"),
        ),
        _claim(
            "history",
            "What happens when the history is destroyed",
            "Relative change of the slow-net's output when the older gradients are set to zero, replaced by the "
            "newest, or shuffled among the weights of their layer; and when only the newest is set to zero.",
            found,
            (
                ("zeros", "effect_zero"),
                ("repeated", "effect_repeat"),
                ("shuffled", "effect_shuffle"),
                ("newest zero", "effect_no_current"),
            ),
            _over_steps(over_time, "effect_shuffle", "relative change, history shuffled", "history", log=True),
        ),
        Section(
            "lre",
            "How far the layer embedding reaches",
            "The embedding stands before the whole sequence. “Change of all outputs”: when every layer gets the "
            "embedding of its neighbour. The curves: change at each token behind the embedding when that moves by one; "
            "“felt until” is the last token that changes by more than a thousandth.",
            (_lre_table(found), *_reach_figures(found)),
        ),
        _claim(
            "k",
            "The sign of the fast-net",
            "A linear fast-net is one number k. Below zero, it registers gradients that point uphill. Adam divides a "
            "common factor out of its steps; for SGD k is a factor of the learning rate.",
            found,
            (
                ("k", "k"),
                ("below zero until step", "k_below_zero_until"),
                ("cosine of fast gradient and STE's", "cosine_fast_straight"),
            ),
            _over_steps(over_time, "k", "k, where above zero", "k", log=True),
        ),
        _claim(
            "sizes",
            "How large the slow gradient is",
            "Root mean squares of both parts as they enter the generated gradient, and the cosine of the slow part "
            "with the newest gradient and with the mean of the stored ones.",
            found,
            (
                ("fast part", "fast_rms"),
                ("slow part", "slow_rms"),
                ("cosine with newest", "cosine_slow_current"),
                ("cosine with mean", "cosine_slow_mean_of_history"),
            ),
            _over_steps(over_time, "slow_rms", "root mean square of the slow part", "sizes", log=True),
        ),
        _claim(
            "lookahead",
            "Whether the look-ahead moves a weight across its threshold",
            "The look-ahead shift in units of the weight's distance to zero, where its bit flips: median, and the "
            "largest tenth and hundredth; the share of bits that the look-ahead flips, and that a whole step flips.",
            found,
            (
                ("median", "shift_over_distance_median"),
                ("90 %", "shift_over_distance_90"),
                ("99 %", "shift_over_distance_99"),
                ("flipped by look-ahead", "flipped_by_lookahead"),
                ("flipped by a step", "flips_of_a_step"),
            ),
            _over_steps(
                over_time, "shift_over_distance_99", "shift / distance, 99th percentile", "lookahead", log=True
            ),
        ),
        Section(
            "flips",
            "Flips over the training",
            "Share of bits that differ from the epoch before, from the recorded runs of the tables "
            "(`fastslow reproduce table1`).",
            tuple(_flip_figures(results)),
        ),
        curvature_section(results),
    ]


def _claim(
    name: str,
    title: str,
    lead: str,
    found: list[Diagnosis],
    columns: tuple[tuple[str, str], ...],
    figures: list[Figure],
) -> Section:
    rows = tuple((d.label, f"{d.steps[-1]:g}", *(_number(d.last(key)) for _, key in columns)) for d in found)
    table = Table("", ("Measured on", "Step", *(label for label, _ in columns)), rows, note="" if rows else "Not run.")
    return Section(name, title, lead, (table, *figures))


def _number(value: float | None) -> str:
    if value is None:
        return _MISSING
    if isinstance(value, int):
        return str(value)
    return (f"{value:.4f}" if 1e-3 <= abs(value) < 100 or value == 0 else f"{value:.2g}").replace("-", "−")


def _over_steps(found: list[Diagnosis], key: str, label: str, name: str, log: bool = False) -> list[Figure]:
    series = [
        Series(
            d.label,
            colour(d.config.method or ""),
            d.steps,
            d.rows[key],
            points=True,
            dashed=d.config.optimizer != _USUAL_OPTIMIZER,
        )
        for d in found
        if key in d.rows and (not log or max(d.rows[key]) > 0)
    ]
    if not series:
        return []
    alt = f"{label} over the training steps: " + ", ".join(f"{s.label} ends at {s.ys[-1]:.3g}" for s in series) + "."
    body = chart(series, Axis("training step", log=True), Axis(label, log=log), alt=alt)
    return [Figure(f"diagnosis-{name}", label, alt, body)]


def _lre_table(found: list[Diagnosis]) -> Table:
    rows = []
    for d in found:
        for item in d.content["reach"]:
            beyond = " or more" if item["felt_until"] == item["looked_at"] else ""
            rows.append(
                (
                    d.label,
                    item["layer"],
                    _number(d.last("effect_lre")),
                    f"{item['felt_until']}{beyond}",
                    str(item["tokens_to_the_first_used"]),
                )
            )
    columns = ("Measured on", "Layer", "Change of all outputs", "Felt until token", "First token that is used")
    return Table("", columns, tuple(rows), labels=2, note="" if rows else "Not run.")


def _reach_figures(found: list[Diagnosis]) -> list[Figure]:
    figures = []
    for d in found:
        series = [
            Series(f"{item['layer']} ({item['weights']} weights)", i + 1, item["token"], item["change"])
            for i, item in enumerate(d.content["reach"][:7])
            if max(item["change"]) > 0
        ]
        if series:
            alt = f"Relative change of the output behind the layer embedding, {d.label}."
            body = chart(
                series, Axis("token behind the embedding", log=True), Axis("relative change", log=True), alt=alt
            )
            figures.append(Figure(f"diagnosis-reach-{d.path.stem}", d.label, alt, body))
    return figures


def _flip_figures(results: Results) -> list[Figure]:
    figures = []
    for model, protocol, groups in panels(results, [*table1.settings(), *table2.settings()]):
        shown = [g for g in groups if all("flip_ratio" in record.curve for record in g.records)]
        if not shown:
            continue
        where = f"{model_name(model)}, {data_name(shown[0].setting.config.data)}, {protocol_name(protocol)}"
        alt = f"Share of bits that flip in an epoch, {where}."
        series = [band(group, "flip_ratio") for group in shown]
        body = chart(series, Axis("epoch"), Axis("share of bits flipped", log=True), alt=alt)
        figures.append(Figure(f"diagnosis-flips-{model}-{protocol}", where, alt, body))
    return figures
