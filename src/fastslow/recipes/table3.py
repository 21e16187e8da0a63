"""Table 3: an LSTM in place of Mamba as the slow-net."""

from __future__ import annotations

from .base import Setting, paper_protocol
from .sweeps import small

# The paper's two networks, and ResNet-20 as a variant that costs a tenth.
NETWORKS = (("resnet20", "cifar10"), ("resnet44", "cifar10"), ("resnet56", "cifar100"))
# Mamba is the ``fsg`` of Tables 1 and 2; ``lstm-what`` is the LSTM of the authors' code, which sees no history. The
# paper doesn't say in which units its LSTM reads the gradients: raw ones are the literal reading.
SLOW_NETS = (
    ("mamba", "fsg", {}),
    ("lstm", "fsg-lstm", {}),
    ("lstm-raw", "fsg-lstm", {"normalise": "none"}),
    ("lstm-what", "fsg-lstm", {"slow": "lstm-what"}),
)


def settings() -> list[Setting]:
    found = []
    for model, data in NETWORKS:
        seeds = 1 if model == "resnet20" else 3
        for name, method, fields in SLOW_NETS:
            config = paper_protocol(model, data, method, method_fields=fields)
            found.append(Setting(f"{model}/adam/{name}", config, seeds))
    return [*found, *(Setting(f"resnet8/adam/{name}", small(method, fields)) for name, method, fields in SLOW_NETS)]
