"""Table 4: the other methods under the short protocol of Tables 1 and 2.

The paper compares with methods whose own recipes are from scratch and four to ten times as long; those are the
business of the recipe ``sota``.
"""

from __future__ import annotations

from .base import Setting, paper_protocol

NETWORKS = (("resnet20", "cifar10"), ("resnet44", "cifar10"), ("resnet56", "cifar100"))
METHODS = ("ste", "fsg", "reste", "irnet", "rbnn", "lstmfc")


def settings() -> list[Setting]:
    return [
        Setting(f"{model}/adam/{method}", paper_protocol(model, data, method))
        for model, data in NETWORKS
        for method in METHODS
    ]
