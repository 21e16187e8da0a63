"""The hunt for better training, on validation images only: recipes for STE first, then gradients on the best of them.

Everything here is ResNet-20 on CIFAR-10, trained on the first 45,000 training images and measured on the last 5,000,
from a float network that has not seen these either. Rules and outcomes: docs/research.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..training.config import NONE
from ..training.named_weights import PREFIX
from .base import Setting, paper_protocol
from .floats import pretrained

MODEL, DATA, HOLDOUT = "resnet20", "cifar10", 5000
START = f"{MODEL}_{DATA}_45k"  # the name of the float weights


@dataclass(frozen=True)
class Idea:
    """Something to try: what differs from the paper's protocol, why it may help, and which row it is compared with.

    ``label`` names the recipe: rows with one label differ in the gradient alone, and ``variant`` names what is changed
    of a gradient itself. ``against`` is the ``name`` of another idea.
    """

    label: str
    hypothesis: str
    fields: dict[str, Any]
    against: str | None
    method: str = "ste"
    variant: str = ""

    @property
    def gradient(self) -> str:
        return f"{self.method}-{self.variant}" if self.variant else self.method

    @property
    def name(self) -> str:
        return f"{self.label}/{self.gradient}"

    @property
    def setting(self) -> Setting:
        values = {"weights": f"{PREFIX}{START}", "holdout": HOLDOUT, **self.fields}
        return Setting(f"{MODEL}/{self.name}", paper_protocol(MODEL, DATA, self.method, **values))


_COSINE = {"schedule": "cosine"}
_DISTILL = {**_COSINE, "distill": 0.5}
_CUTOUT = {**_COSINE, "cutout": 16}
_HARDER = {**_DISTILL, "cutout": 16}
_MOMENTUM = {**_COSINE, "optimizer": "momentum", "weight_decay": 5e-4}
_ADAMW = {**_COSINE, "optimizer": "adamw"}
# The cosine that restarts after 2, 6, 14, 30 epochs is at its end after 62; 100 would stop in the middle.
_RESTARTS = {"schedule": "restarts", "epochs": 62}
_MCDONNELL = {**_RESTARTS, "optimizer": "momentum", "lr": 0.1, "weight_decay": 5e-4}
_USUAL = "adam-cosine/ste"  # what most rows change one thing of

RECIPES = (
    Idea("base", "The paper's protocol: Adam, 1e-3, a tenth every 30 epochs.", {}, None),
    Idea("adam-cosine", "A rate that falls without jumps lets the bits settle one by one.", _COSINE, "base/ste"),
    Idea("adam-cosine-3e-4", "A smaller step keeps more of the float network.", {**_COSINE, "lr": 3e-4}, _USUAL),
    Idea("adam-cosine-3e-3", "A larger step flips more bits while there is time.", {**_COSINE, "lr": 3e-3}, _USUAL),
    Idea(
        "adamw-1e-4",
        "Decay keeps latent weights near the threshold, able to flip late.",
        {**_ADAMW, "weight_decay": 1e-4},
        _USUAL,
    ),
    Idea("adamw-1e-2", "The same, a hundred times stronger.", {**_ADAMW, "weight_decay": 1e-2}, _USUAL),
    Idea("momentum-0.1", "What trains float networks best also trains bits.", {**_MOMENTUM, "lr": 0.1}, _USUAL),
    Idea("momentum-0.01", "The same with a step that suits pretrained weights.", {**_MOMENTUM, "lr": 0.01}, _USUAL),
    Idea("restarts", "A warm restart leaves a poor assignment of bits.", _RESTARTS, _USUAL),
    Idea(
        "mcdonnell",
        "McDonnell's scale and schedule, from float weights, first and last layer in float.",
        _MCDONNELL,
        "restarts/ste",
        method="mcdonnell",
    ),
    Idea("ema-0.999", "Averaged latent weights are a majority vote over flips.", {**_COSINE, "ema": 0.999}, _USUAL),
    Idea("damping-1e-3", "Weights pulled off the threshold stop oscillating.", {**_COSINE, "damping": 1e-3}, _USUAL),
    Idea("damping-1e-2", "The same, ten times stronger.", {**_COSINE, "damping": 1e-2}, _USUAL),
    Idea("damping-3e-2", "And thirty times.", {**_COSINE, "damping": 3e-2}, _USUAL),
    Idea("damping-1e-1", "And a hundred times.", {**_COSINE, "damping": 1e-1}, _USUAL),
    Idea("distill-0.5", "The float network's outputs say more than labels.", _DISTILL, _USUAL),
    Idea("distill-0.9", "The same, nearly without labels.", {**_COSINE, "distill": 0.9}, _USUAL),
    Idea(
        "ema-distill",
        "A majority vote over flips, and a teacher.",
        {**_COSINE, "ema": 0.999, "distill": 0.5},
        "ema-0.999/ste",
    ),
    Idea(
        "ema-reestimate",
        "The averaged network's bits need statistics of their own.",
        {**_COSINE, "ema": 0.999, "reestimate": 50},
        "ema-0.999/ste",
    ),
    Idea("distill-damping-1e-2", "A teacher, and bits that settle.", {**_DISTILL, "damping": 1e-2}, "distill-0.5/ste"),
    Idea("distill-damping-1e-1", "The same, ten times stronger.", {**_DISTILL, "damping": 1e-1}, "distill-0.5/ste"),
    Idea("cutout", "Bits that fit the training images too well need harder ones.", _CUTOUT, _USUAL),
    Idea("distill-cutout", "Harder images, and a teacher for them.", _HARDER, "distill-0.5/ste"),
    Idea("reestimate-50", "Running statistics lag behind bits that flip.", {**_COSINE, "reestimate": 50}, _USUAL),
)


def _plus(
    variant: str, hypothesis: str, label: str = "adam-cosine", recipe: dict[str, Any] = _COSINE, **fields: Any
) -> Idea:
    recipe = {**recipe, "method_fields": fields}
    return Idea(label, hypothesis, recipe, f"{label}/ste", method="fsg-plus", variant=variant)


# A gradient is compared with STE on the same recipe: one more row is one more line.
GRADIENTS = (
    Idea("adam-cosine", "FSG's fast-net alone, without the history.", _COSINE, _USUAL, method="multifc"),
    Idea("adam-cosine", "FSG with a history of each weight's own.", _COSINE, _USUAL, method="fsg-weight"),
    _plus("0.5", "Bits that settle, in the paper's own protocol.", "base", {}, strength=0.5, secant=True),
    _plus("1", "The gradient at the latent weight, by the curvature that is measured.", strength=1.0, secant=False),
    _plus("2", "Twice that curvature: many bits flip together.", strength=2.0, secant=False),
    _plus("4", "Four times.", strength=4.0, secant=False),
    _plus("secant", "The slope from bit to bit, wherever the latent weight lies.", strength=1.0, secant=True),
    _plus(
        "2",
        "Bits that settle bear a larger step.",
        "adam-cosine-3e-3",
        {**_COSINE, "lr": 3e-3},
        strength=2.0,
        secant=False,
    ),
    _plus("1", "The same with a teacher.", "distill-0.5", _DISTILL, strength=1.0, secant=False),
    _plus("2", "Twice the curvature with a teacher.", "distill-0.5", _DISTILL, strength=2.0, secant=False),
    _plus("secant", "What fits better gains more from harder images.", "cutout", _CUTOUT, strength=1.0, secant=True),
    _plus("secant", "The same with a teacher.", "distill-cutout", _HARDER, strength=1.0, secant=True),
    _plus("1", "The gradient at the latent weight there.", "distill-cutout", _HARDER, strength=1.0, secant=False),
    _plus("0.5", "Half of the curvature.", "distill-cutout", _HARDER, strength=0.5, secant=True),
    _plus("at-0.5", "Half of it, at the latent weight.", "distill-cutout", _HARDER, strength=0.5, secant=False),
    _plus(
        "0.25", "A quarter: more epochs let bits look longer.", "distill-cutout", _HARDER, strength=0.25, secant=True
    ),
    _plus(
        "0.5", "Half of the curvature without the harder images.", "distill-0.5", _DISTILL, strength=0.5, secant=True
    ),
    _plus("0.25", "A quarter.", "distill-0.5", _DISTILL, strength=0.25, secant=True),
)

_LARGER = {**_HARDER, "lr": 3e-3}
_ONE_BIT = {**_COSINE, "activations": "sign"}
_SCRATCH = {**_COSINE, "weights": NONE, "cutout": 16}

# Larger steps, and networks that are hard to fit: there a better gradient should count for more.
HARDER = (
    Idea("distill-cutout-3e-3", "Harder images with a larger step.", _LARGER, "distill-cutout/ste"),
    _plus("0.5", "Bits that settle bear a larger step.", "distill-cutout-3e-3", _LARGER, strength=0.5, secant=True),
    Idea("w1a1", "One-bit inputs as well as weights.", _ONE_BIT, _USUAL),
    _plus("0.5", "What is hard to fit gains more.", "w1a1", _ONE_BIT, strength=0.5, secant=True),
    Idea("scratch", "No float network to start from.", _SCRATCH, "cutout/ste"),
    _plus("0.5", "What has far to go gains more.", "scratch", _SCRATCH, strength=0.5, secant=True),
    _plus("0.25", "Random bits need less of it.", "scratch", _SCRATCH, strength=0.25, secant=True),
)


IDEAS = (*RECIPES, *GRADIENTS, *HARDER)


def settings() -> list[Setting]:
    """Three seeds each; a claim needs five (``--seeds 5``)."""
    return [idea.setting for idea in IDEAS]


def start() -> list[Setting]:
    """The float network that they start from, as ``fastslow pretrain --holdout 5000`` trains it."""
    return [Setting(f"{MODEL}/{DATA}/float-45k", pretrained(MODEL, DATA, holdout=HOLDOUT), 1)]
