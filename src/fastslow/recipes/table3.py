"""Table 3: an LSTM in place of Mamba as the slow-net."""

from __future__ import annotations

from .base import Setting, paper_protocol

# The paper's two networks, and ResNet-20 as a variant that costs a tenth.
NETWORKS = (("resnet20", "cifar10"), ("resnet44", "cifar10"), ("resnet56", "cifar100"))


def settings() -> list[Setting]:
    """Mamba is the ``fsg`` of Tables 1 and 2; ``lstm-what`` is the LSTM of the authors' code, which sees no history."""
    found = []
    for model, data in NETWORKS:
        seeds = 1 if model == "resnet20" else 3
        rows = (
            ("mamba", "fsg", {}),
            ("lstm", "fsg-lstm", {}),
            ("lstm-what", "fsg-lstm", {"slow": "lstm-what"}),
        )
        for name, method, fields in rows:
            config = paper_protocol(model, data, method, method_fields=fields)
            found.append(Setting(f"{model}/adam/{name}", config, seeds))
    return found
