"""The overhead table: seconds an epoch of STE, of the fast-net alone and of whole FSG."""

from __future__ import annotations

from .base import Setting, paper_protocol, shorter

# The first epoch warms up and isn't counted. A step of FSG depends on how far back its slow-net has learned to look,
# which settles within the first epochs. One process on the machine, so run it with --jobs 1; a run that shared the
# device is not shown in the table.
EPOCHS = 3
METHODS = ("ste", "multifc", "fsg", "fsg-weight", "fsg-lstm")


def settings() -> list[Setting]:
    return [
        Setting(f"{model}/adam/{method}", shorter(paper_protocol(model, data, method), EPOCHS), 1)
        for model, data in (("resnet56", "cifar100"), ("resnet20", "cifar10"))
        for method in METHODS
    ]
