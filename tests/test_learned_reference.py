"""The wrapper against the published in-graph formulation, iteration by iteration, in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

import fastslow as fs
from reference import BINARY, Reference, tiny_task

SMALL = {"expand": 4, "d_state": 3, "fast_hidden": 6, "slow_hidden": 5}
BASES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=5e-4),
}
CASES = [
    ("fcgrad", {"hidden": 6}, "sgd"),
    ("fcgrad", {"hidden": 6}, "adam"),
    ("multifc", {"hidden": 6}, "momentum"),
    ("multifc", {"hidden": 6}, "adam"),
    ("lstmfc", {"hidden": 4}, "sgd"),
    ("lstmfc", {"hidden": 4}, "adam"),
    ("fsg", SMALL, "sgd"),
    ("fsg", SMALL, "adam"),
    ("fsg", {**SMALL, "d_model": 3, "dt_rank": 2, "length": 2}, "momentum"),
    ("fsg", {**SMALL, "mix": "paper", "beta": 0.02}, "adam"),
    ("fsg", {**SMALL, "history": "fsg"}, "adam"),
    ("fsg", {**SMALL, "history": "fsg", "mix": "paper", "register": "fast"}, "sgd"),
    ("fsg", {**SMALL, "patch": 5, "d_model": 2}, "adam"),
    ("fsg", {**SMALL, "fast_nonlinearity": "tanh", "fast_depth": 2}, "adam"),
    ("fsg-code", SMALL, "sgd"),
    ("fsg-code", SMALL, "adam"),
    ("fsg-lstm", SMALL, "adam"),
    ("fsg-lstm", {**SMALL, "normalise": "none"}, "adam"),
    ("fsg-lstm", {**SMALL, "slow": "lstm-what"}, "momentum"),
    ("fsg-weight", SMALL, "sgd"),
    ("fsg-weight", SMALL, "adam"),
    ("fsg-weight", {**SMALL, "patch": 4, "length": 3}, "adam"),
]


def close(a: torch.Tensor, b: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=lambda m: f"{what}: {m}")


@pytest.mark.parametrize(("name", "fields", "base"), CASES)
def test_ten_iterations_equal_the_in_graph_reference(name, fields, base):
    net, data = tiny_task(seed=3)
    model, _ = tiny_task(seed=3)
    fs.binarize_(model, name, skip="out", **fields)
    optimizer = fs.optimizer(model, BASES[base](model.parameters()))
    driver = optimizer.drivers[0]
    method = dataclasses.asdict(driver.method)
    kind = "fsg" if name.startswith("fsg") else name
    lrs = [method["fast_lr"], method["slow_lr"]] if kind == "fsg" else [method["meta_lr"]]
    reference = Reference(net, kind, driver.nets, method, BASES[base], lrs)

    start = {k: p.detach().clone() for k, p in model.named_parameters()}
    for t, (x, y) in enumerate(data[:10]):
        reference.iteration(x, y)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        for (key, ours), theirs in zip(model.named_parameters(), reference.net.parameters(), strict=True):
            close(ours, theirs, f"{key} after iteration {t + 1}")
            if t == 0:
                assert torch.equal(ours, start[key]), "no parameter may move in the first iteration"
        for (key, ours), theirs in zip(driver.nets.named_parameters(), reference.nets.parameters(), strict=True):
            close(ours, theirs, f"hypernetwork {key} after iteration {t + 1}")
        for i, n in enumerate(BINARY):
            close(driver.hat.split(driver.sizes)[i], reference.what[n].reshape(-1), f"What of {n}")
            if kind == "fsg" and method["slow"] != "lstm-what":
                close(
                    driver.stored.ordered(i),
                    torch.stack([g.reshape(-1) for g in reference.history[n]]),
                    f"history of {n}",
                )
    moved = [not torch.equal(p, start[k]) for k, p in model.named_parameters() if p.grad is not None]
    assert all(moved)


@pytest.mark.parametrize("name", ["fcgrad", "multifc", "lstmfc", "fsg", "fsg-code", "fsg-lstm", "fsg-weight"])
def test_hypernetwork_gradient_equals_the_in_graph_gradient(name):
    """Before Adam normalises it: the vector-Jacobian product itself, over five iterations."""
    net, data = tiny_task(seed=5)
    model, _ = tiny_task(seed=5)
    fields = SMALL if name.startswith("fsg") else {"hidden": 5}
    fs.binarize_(model, name, skip="out", **fields)
    optimizer = fs.optimizer(model, BASES["adam"](model.parameters()))
    driver = optimizer.drivers[0]
    kind = "fsg" if name.startswith("fsg") else name
    lrs = [driver.method.fast_lr, driver.method.slow_lr] if kind == "fsg" else [driver.method.meta_lr]
    reference = Reference(net, kind, driver.nets, dataclasses.asdict(driver.method), BASES["adam"], lrs)
    for t, (x, y) in enumerate(data[:5]):
        reference.iteration(x, y)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if t == 0:
            continue
        for (key, ours), theirs in zip(driver.nets.named_parameters(), reference.phi_grads, strict=True):
            scale = theirs.abs().max().clamp_min(1e-30)
            assert (ours.grad - theirs).abs().max() / scale < 1e-10, key
            assert t == 1 or theirs.abs().max() > 0, f"{key} receives no gradient"
