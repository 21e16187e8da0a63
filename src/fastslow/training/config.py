"""``RunConfig``: everything that decides a run's numbers, in one frozen dataclass."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from .interval import Interval
from .recovery import OnNan

Optimizer = Literal["sgd", "momentum", "adam", "adamw"]
Schedule = Literal["step", "cosine", "restarts", "constant"]
Precision = Literal["float32", "tf32", "bf16"]

FIRST_AND_LAST = "first-and-last"  # the paper's choice of layers to leave in float
SHIPPED = "shipped"  # the float network that comes with the package
NONE = "none"

# What the fields may hold. A config also comes back from a JSON file, so types are checked too.
_WHOLE = {
    "epochs": 1,
    "batch_size": 1,
    "step_epochs": 1,
    "bits": 1,
    "holdout": 0,
    "warmup_epochs": 0,
    "seed": 0,
    "keep": 1,
    "image_size": 0,
    "workers": -1,
    "reestimate": 0,
    "cutout": 0,
}
_LARGEST = 3e38  # that a float32 can hold
_REAL: dict[str, tuple[Callable[[float], bool], str]] = {
    "lr": (lambda x: 0 < x < _LARGEST, "a positive learning rate"),
    "weight_decay": (lambda x: 0 <= x < _LARGEST, "a number of at least 0"),
    "momentum": (lambda x: 0 <= x < 1, "a number from 0 up to, not including, 1"),
    "step_factor": (lambda x: 0 < x <= 1, "a number above 0 and at most 1"),
    "distill": (lambda x: 0 <= x <= 1, "a number from 0 to 1"),
    "distill_temperature": (lambda x: 0 < x < _LARGEST, "a number above 0"),
    "ema": (lambda x: 0 <= x < 1, "a number from 0 up to, not including, 1"),
    "damping": (lambda x: 0 <= x < _LARGEST, "a number of at least 0"),
}
_OTHER = (
    ("model", str, "the name of a network"),
    ("data", str, "the name of a data set"),
    ("weights", str, 'a path, "shipped" or "none"'),
    ("teacher", str, 'a path, "shipped", or "" for the network that the run starts from'),
    ("teacher_model", str, 'the name of a network, or "" for the run\'s own'),
    ("method", str | None, "the name of a method, or None for the float network"),
    ("binarizer", str | None, "the name of a binarizer, or None for the method's own"),
    ("activations", str | None, '"sign", None for real ones, or "auto" for the method\'s own'),
    ("model_fields", dict, "a dictionary"),
    ("method_fields", dict, "a dictionary"),
    ("skip", tuple | list, "a list of patterns"),
    ("augment", bool, "True or False"),
    ("metrics", bool, "True or False"),
    ("checkpoint_every", str, "a text such as 1epoch,5min"),
)


# Fields that came later: at their default a config has the key that it had before, under which its runs are recorded.
_LATER = (
    *("image_size", "distill", "distill_temperature", "teacher", "teacher_model"),
    *("ema", "damping", "reestimate", "cutout"),
)

# Fields of methods whose default has changed, from what to what. A new config says which one it means; one in a file
# that doesn't was written before, and means the old one, under which its run is recorded.
_CHANGED: dict[str, dict[str, tuple[Any, Any]]] = {
    "fsg-plus": {"secant": (False, True)},
    "fsg-lstm": {"normalise": ("none", "rms")},
}


# How a run looks after itself: one without trouble is the same run.
_PROTECTION = ("metrics", "checkpoint_every", "keep", "on_nan", "workers")


def _changed(method: Any, version: Literal[0, 1]) -> dict[str, Any]:
    """The old (0) or new (1) defaults of a method's fields that have changed."""
    return {name: values[version] for name, values in _CHANGED.get(method, {}).items()}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run. The defaults are the paper's protocol for ResNet-20 on CIFAR-10 with Adam, but for the float weights.

    The paper starts from trained ones, which ``weights`` names; ``fastslow train`` takes the package's by itself.
    """

    model: str = "resnet20"
    model_fields: dict[str, Any] = field(default_factory=dict)
    data: str = "cifar10"
    image_size: int = 0  # pixels a side of your own images; 0: 32 of folder:PATH, 224 of stream:PATH
    holdout: int = 0  # evaluate on the last n training images instead of the test set
    weights: str = NONE  # float weights to start from: a path, "shipped", or "none"

    method: str | None = "fsg"  # None trains the float network
    method_fields: dict[str, Any] = field(default_factory=dict)
    binarizer: str | None = None
    bits: int = 1
    activations: str | None = "auto"  # "sign": 1-bit inputs of the binary layers; "auto": the method's own choice
    skip: tuple[str, ...] = (FIRST_AND_LAST,)

    optimizer: Optimizer = "adam"
    lr: float = 1e-3
    momentum: float = 0.9  # of optimizer="momentum"
    weight_decay: float = 0.0
    schedule: Schedule = "step"
    step_epochs: int = 30
    step_factor: float = 0.1
    warmup_epochs: int = 0
    epochs: int = 100
    batch_size: int = 128
    augment: bool = True
    seed: int = 0
    precision: Precision = "float32"

    # Recipes: they hold for every method and for the float network alike.
    distill: float = 0.0  # share of the loss that compares with a float network, the teacher
    distill_temperature: float = 4.0
    teacher: str = ""  # its weights: a path, "shipped", or "" for those that the run starts from
    teacher_model: str = ""  # its network, where that isn't the run's own
    ema: float = 0.0  # the network that is evaluated and kept is a moving average with this decay a step; 0: it isn't
    damping: float = 0.0  # pull of latent weights to their binary values, growing from 0 over the run
    reestimate: int = 0  # training batches for BatchNorm's statistics, computed anew at the end; 0: they aren't
    cutout: int = 0  # pixels a side of a square that is blanked in every training image; 0: none

    metrics: bool = False  # also measure the indicators of fastslow.indicators at the end of every epoch

    # What a run does for its own safety. None of it changes a number while all goes well: the key leaves it out.
    checkpoint_every: str = "1epoch,5min"
    keep: int = 2  # checkpoints, the newest ones
    workers: int = -1  # processes that decode the images of stream:PATH; -1: one a core, eight at most
    on_nan: OnNan = "stop"  # a step that isn't finite: stop, skip it, or roll back and then skip it

    def __post_init__(self) -> None:
        for name, literal in (
            ("optimizer", Optimizer),
            ("schedule", Schedule),
            ("precision", Precision),
            ("on_nan", OnNan),
        ):
            if getattr(self, name) not in get_args(literal):
                raise ValueError(f"{name}={getattr(self, name)!r}: choose one of {', '.join(get_args(literal))}")
        for name, least in _WHOLE.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r}: give a whole number of at least {least}")
        if self.seed >= 2**63:
            raise ValueError(f"seed={self.seed}: give a number below 2**63")
        for name, (fits, what) in _REAL.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not fits(value):
                raise ValueError(f"{name}={value!r}: give {what}")
            object.__setattr__(self, name, float(value))  # 1 and 1.0 are one config, and one key
        for name, kinds, what in _OTHER:
            if not isinstance(getattr(self, name), kinds):
                raise ValueError(f"{name}={getattr(self, name)!r}: give {what}")
        if not all(isinstance(entry, str) for entry in self.skip):
            raise ValueError(f"skip={self.skip!r}: give a list of patterns")
        Interval.parse(self.checkpoint_every)
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs={self.warmup_epochs}: must be fewer than epochs={self.epochs}")
        object.__setattr__(self, "skip", tuple(self.skip))
        object.__setattr__(self, "method_fields", _changed(self.method, 1) | self.method_fields)

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "skip": list(self.skip)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunConfig:
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(values.keys() - known)
        if unknown:
            raise ValueError(f"unknown config field {unknown[0]!r}; was it written by a newer version?")
        fields = values.get("method_fields")
        if isinstance(fields, dict) and isinstance(values.get("method"), str):
            values = {**values, "method_fields": _changed(values["method"], 0) | fields}
        return cls(**values)

    @property
    def key(self) -> str:
        """A short hash: equal for configs that train alike. How often a run saves or looks doesn't count."""
        values = self.deciding()
        if self.activations == "auto":  # runs recorded before there was a choice keep their key
            del values["activations"]
        for entry in dataclasses.fields(self):
            if entry.name in _LATER and getattr(self, entry.name) == entry.default:
                del values[entry.name]
        old = _changed(self.method, 0)
        values["method_fields"] = {k: v for k, v in self.method_fields.items() if k not in old or v != old[k]}
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def deciding(self) -> dict[str, Any]:
        """The fields that decide what is trained."""
        return {name: value for name, value in self.to_dict().items() if name not in _PROTECTION}

    def differences(self, other: RunConfig) -> list[str]:
        """Names of the fields by which the other trains differently. Folders and files may have moved."""
        mine, its = published(self.deciding()), published(other.deciding())
        return [name for name in mine if mine[name] != its[name]]

    def check_recipe(self) -> None:
        """Refuse recipes that lack what they work with. A config read back from a file needs none of it."""
        if self.distill and self.weights == NONE and not self.teacher:
            raise ValueError(
                f"distill={self.distill:g}: the teacher is the float network that the run starts from, and weights is "
                '"none"; name float weights, or a teacher\'s, or leave distill at 0'
            )
        if self.teacher == NONE:
            raise ValueError('teacher="none": a teacher needs weights; leave it out for those that the run starts from')
        if self.teacher_model and not self.teacher:
            raise ValueError(f"teacher_model={self.teacher_model!r}: name its weights, too, as teacher")
        if self.teacher and not self.distill:
            raise ValueError(f"teacher={self.teacher!r} teaches through distill, which is 0; 0.5 is a good share")
        if self.damping and self.method is None:
            raise ValueError(f"damping={self.damping:g} acts on binary weights, and a float network has none")

    @property
    def of_teacher(self) -> RunConfig:
        """The float network that teaches, as a config of its own."""
        changes = {"model": self.teacher_model, "model_fields": {}} if self.teacher_model else {}
        return dataclasses.replace(self, weights=self.teacher or self.weights, **changes)

    def learning_rate(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of step 0, 1, 2, ...: a pure function, so that resuming needs no scheduler state.

        Warm-up rises linearly over its epochs. "step" multiplies by ``step_factor`` every ``step_epochs`` epochs;
        "cosine" falls to zero over the whole run, step by step; "restarts" does so in 2, then 4, 8, ... epochs, so that
        a run should have 2, 6, 14, 30, 62, ...

        Examples:
            >>> config = RunConfig(lr=0.1, schedule="step", step_epochs=30, step_factor=0.1)
            >>> [round(config.learning_rate(step, steps_per_epoch=10), 6) for step in (0, 299, 300)]
            [0.1, 0.1, 0.01]
        """
        warmup = self.warmup_epochs * steps_per_epoch
        if step < warmup:
            return self.lr * (step + 1) / warmup
        if self.schedule == "step":
            return self.lr * self.step_factor ** (step // steps_per_epoch // self.step_epochs)
        if self.schedule == "cosine":
            share = (step - warmup) / max(1, self.epochs * steps_per_epoch - warmup)
            return self.lr * 0.5 * (1 + math.cos(math.pi * share))
        if self.schedule == "restarts":
            epoch, length = (step - warmup) / steps_per_epoch, 2
            while epoch >= length:
                epoch, length = epoch - length, 2 * length
            return self.lr * 0.5 * (1 + math.cos(math.pi * epoch / length))
        return self.lr


def published(config: dict[str, Any]) -> dict[str, Any]:
    """A config as strangers may read it: of folders and files on this machine, the last name."""
    data = config["data"]
    kind, colon, path = data.partition(":")  # folder:PATH or stream:PATH
    if colon:
        data = f"{kind}:{Path(path).name}"
    files = {name: Path(config[name]).name for name in ("weights", "teacher") if config.get(name)}
    return {**config, **files, "data": data}
