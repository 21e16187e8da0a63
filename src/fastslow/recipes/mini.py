"""Tables 1 and 4 in small, for a CPU: what can be seen of the paper's claim on the images of the package.

A ResNet-20 from the package's float weights, as in the paper's protocol, on 4,000 training images and in a tenth of the
epochs. The 1,000 test images show differences of points, such as the paper's between FSG and STE, not of tenths.
"""

from __future__ import annotations

from ..training.config import RunConfig
from ..training.named_weights import PREFIX
from .base import FSG_VARIANTS, TABLE_METHODS, Setting, paper_protocol, shorter
from .plus import CANDIDATE
from .table4 import METHODS

EPOCHS = 10


def settings() -> list[Setting]:
    methods = dict.fromkeys((*TABLE_METHODS, *METHODS, *FSG_VARIANTS, "fsg-plus"))
    return [Setting(f"resnet20/adam/{method}", _config(method), 5) for method in methods]


def _config(method: str) -> RunConfig:
    fields = CANDIDATE if method == "fsg-plus" else {}
    start = f"{PREFIX}resnet20_cifar10"
    whole = paper_protocol("resnet20", "mini", method, method_fields=fields, weights=start, precision="float32")
    return shorter(whole, EPOCHS)
