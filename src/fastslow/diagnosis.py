"""What FSG's hypernetworks really do, measured on a network in training.

The paper calls the slow gradient a momentum that the slow-net reads from history. Whether it is one can be measured:
how much of it the current gradient alone explains, what happens to it when the history is destroyed, how far the Layer
Recognition Embedding (LRE) reaches, what sign the fast-net has, and whether the look-ahead is large enough to move a
weight across its threshold. :func:`measure` reads the state of one moment and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .hypernets.layouts import SlowNet
from .methods.fsg import FSGDriver, _rms
from .methods.lookahead import _shift
from .training.loop import Trainer
from .wrapper import BinaryOptimizer

REACH_TOKENS = 4096  # of a layer's sequence, from the embedding on
BINS, PER_BIN = 64, 20  # of the regression on the current token


def driver_of(trainer: Trainer) -> FSGDriver:
    """The FSG of a run; other methods have no slow-net with a history to look at."""
    optimizer = trainer.optimizer
    drivers = optimizer.drivers if isinstance(optimizer, BinaryOptimizer) else []
    for driver in drivers:
        if isinstance(driver, FSGDriver) and driver.memory is None:
            return driver
    raise ValueError(
        f"{trainer.config.method or 'a float network'} has no slow-net with a history to look at; use fsg, fsg-code, "
        "fsg-weight or fsg-lstm (not with slow=lstm-what, which keeps none)"
    )


def watch(
    trainer: Trainer, steps: Sequence[int], tell: Callable[[dict[str, Any]], None] = lambda row: None
) -> list[dict[str, Any]]:
    """Train, and measure after each of these numbers of steps."""
    driver = driver_of(trainer)
    wanted, rows, last = sorted(set(steps)), [], 0
    if not wanted or wanted[0] < 2:
        raise ValueError(f"steps {list(steps)}: give whole numbers of at least 2, nothing is generated before")
    while trainer.done < wanted[-1]:
        epoch = trainer.done // len(trainer.train_batches)
        for x, y in trainer.train_batches.epoch(epoch):
            before = None if trainer.done + 1 not in wanted else _signs(driver)
            trainer.train_step(x, y)
            if before is not None:
                flipped = (_signs(driver) != before).double().mean()
                rows.append({"step": trainer.done, **measure(driver), "flips_of_a_step": float(flipped)})
                tell(rows[-1])
            last = trainer.done
            if last >= wanted[-1]:
                break
    return rows


@torch.no_grad()
def measure(driver: FSGDriver) -> dict[str, Any]:
    """All numbers of one moment."""
    everything = range(len(driver.sizes))
    history = driver.stored.ordered_together(everything)
    current = history[-1]
    slow = slow_output(driver, history)
    fast = driver.calibration(everything) * driver.fast_gradient(everything)
    straight = driver.calibration(everything) * driver.gradient
    beta = driver.method.beta
    return {
        "k": float(driver.nets["fast"](torch.ones(1, dtype=driver.dtype, device=driver.device))),
        "fast_rms": _rms_of((1 - beta) * fast),
        "slow_rms": _rms_of(beta * slow),
        "cosine_slow_current": _cosine(slow, current),
        "cosine_slow_mean_of_history": _cosine(slow, history.mean(0)),
        "cosine_fast_straight": _cosine(fast, straight),
        **explained(driver, slow, history),
        **ablations(driver, slow, history),
        **lookahead(driver),
    }


def slow_output(driver: FSGDriver, history: Tensor) -> Tensor:
    """``M_s`` of any history, for all layers; scales, where the method has them, are those of that history."""
    net = driver.nets["slow"]
    assert isinstance(net, SlowNet)
    scales = _rms(history, driver.sizes) if driver.method.normalise == "rms" else None
    read = net.concat if driver.method.layout == "concat" else net.per_weight
    return read(history, driver.sizes, range(len(driver.sizes)), scales=scales)


# -- what explains the output -----------------------------------------------------------------------------------------


def explained(driver: FSGDriver, slow: Tensor, history: Tensor) -> dict[str, float]:
    """R^2 over all layers, regressions layer by layer.

    On the current token by a line, and by any function of it (a line, then means in bins of equal counts); by a line on
    all stored gradients of the same weight.
    """
    sums = {"token_linear": 0.0, "token_any": 0.0, "history_linear": 0.0}
    total = 0.0
    for y, h in zip(slow.double().split(driver.sizes), history.double().split(driver.sizes, dim=1), strict=True):
        total += float((y - y.mean()).square().sum())
        left = _left_by_line(y, h[-1:])
        sums["token_linear"] += float(left.square().sum())
        sums["token_any"] += float(_left_by_bins(left, h[-1]).square().sum())
        sums["history_linear"] += float(_left_by_line(y, h).square().sum())
    return {f"r2_{name}": 1.0 - left / total if total else math.nan for name, left in sums.items()}


def _left_by_line(y: Tensor, columns: Tensor) -> Tensor:
    """What least squares on these columns and a constant leaves."""
    design = torch.cat([columns, torch.ones_like(columns[:1])]).T
    design = design / design.square().mean(0).sqrt().clamp_min(1e-300)
    # Through the eigenvectors of the small normal matrix: rows of a history may be equal or zero.
    normal = design.T @ design
    values, vectors = torch.linalg.eigh(normal)
    keep = values > values.max() * 1e-10
    vectors = vectors[:, keep]
    solution = vectors @ ((vectors.T @ (design.T @ y)) / values[keep])
    return y - design @ solution


def _left_by_bins(y: Tensor, token: Tensor) -> Tensor:
    """What is left when each weight gets the mean of those with nearly its token; in the order of the tokens."""
    bins = max(1, min(BINS, len(y) // PER_BIN))
    return torch.cat([part - part.mean() for part in y[token.argsort()].tensor_split(bins)])


# -- what destroying its inputs does ----------------------------------------------------------------------------------


def ablations(driver: FSGDriver, slow: Tensor, history: Tensor) -> dict[str, float]:
    """Relative change of the output, ``|changed - output| / |output|``.

    Older gradients set to zero, replaced by the current one, or shuffled among the weights of their layer; the current
    one set to zero; each layer's LRE replaced by the next layer's.
    """
    size = float(slow.norm())
    if not size:
        return {}

    def effect(changed: Tensor) -> float:
        return float((slow_output(driver, changed) - slow).norm()) / size

    generator = torch.Generator().manual_seed(0)
    zero, repeat, blind, shuffled = (history.clone() for _ in range(4))
    zero[:-1] = 0
    repeat[:-1] = history[-1]
    blind[-1] = 0
    start = 0
    for n in driver.sizes:
        for row in range(len(history) - 1):
            order = torch.randperm(n, generator=generator).to(history.device)
            shuffled[row, start : start + n] = history[row, start : start + n][order]
        start += n
    found = {"effect_zero": effect(zero), "effect_repeat": effect(repeat), "effect_shuffle": effect(shuffled)}
    found["effect_no_current"] = effect(blind)
    lre = _embedding(driver)
    kept = lre.detach().clone()
    lre.copy_(kept.roll(1, 0))
    try:
        found["effect_lre"] = effect(history)
    finally:
        lre.copy_(kept)
    return found


@torch.no_grad()
def reach(driver: FSGDriver, layer: int) -> dict[str, Any]:
    """How far the LRE reaches: relative change of the output at each token behind it when the LRE moves by one."""
    net, patch = driver.nets["slow"], driver.method.patch
    history = driver.stored.ordered(layer)
    scale = _rms(history, [history.shape[1]]) if driver.method.normalise == "rms" else 1.0
    flat = (
        (history / scale).reshape(-1) if driver.method.layout == "concat" else (history / scale)[:, :patch].reshape(-1)
    )
    count = min(REACH_TOKENS, len(flat) // patch)
    tokens = flat[: count * patch].reshape(1, count, patch)
    index = torch.tensor([layer], device=driver.device)
    lre = _embedding(driver)
    before = net(tokens, index, count)
    kept = lre.detach().clone()
    lre[layer] += 1
    try:
        change = (net(tokens, index, count) - before).abs().amax(-1).reshape(-1)
    finally:
        lre.copy_(kept)
    relative = change / before.square().mean().sqrt().clamp_min(1e-30)
    positions = sorted({min(count, round(2 ** (i / 2))) for i in range(2 * math.ceil(math.log2(count)) + 1)})
    felt = (relative > 1e-3).nonzero()
    return {
        "layer": driver.slots[layer].name,
        "weights": driver.sizes[layer],
        "tokens_to_the_first_used": (len(history) - 1) * driver.sizes[layer] // patch + 1
        if driver.method.layout == "concat"
        else len(history),
        "felt_until": int(felt.max()) + 1 if len(felt) else 0,
        "looked_at": count,
        "token": positions,
        "change": [float(f"{float(relative[p - 1]):.4g}") for p in positions],
    }


# -- what the look-ahead does -----------------------------------------------------------------------------------------


def lookahead(driver: FSGDriver) -> dict[str, float]:
    """The shift ``W - W~`` in units of the weight's distance to its threshold, 0, and the bits that it flips."""
    weights = torch.cat([slot.layer.weight.detach().reshape(-1) for slot in driver.slots]).double()
    shift = torch.cat([_shift(slot).reshape(-1) for slot in driver.slots]).double()
    ratio = shift.abs() / weights.abs().clamp_min(1e-30)
    flipped = (weights > 0) != (weights - shift > 0)
    marks = _quantiles(ratio, (0.5, 0.9, 0.99))
    names = ("shift_over_distance_median", "shift_over_distance_90", "shift_over_distance_99")
    return {**dict(zip(names, marks, strict=True)), "flipped_by_lookahead": float(flipped.double().mean())}


def _quantiles(values: Tensor, shares: Sequence[float]) -> list[float]:
    """torch.quantile refuses more than 16 million values."""
    ordered = values.sort().values
    return [float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) for share in shares]


def _embedding(driver: FSGDriver) -> Tensor:
    lre = driver.nets["slow"].lre
    assert isinstance(lre, nn.Embedding)
    return lre.weight


def _signs(driver: FSGDriver) -> Tensor:
    return torch.cat([slot.layer.binary_weight.reshape(-1) > 0 for slot in driver.slots])


def _rms_of(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a.double(), b.double(), dim=0))


# -- as an experiment -------------------------------------------------------------------------------------------------


def steps_until(last: int) -> list[int]:
    """2, 4, 8 ... and the last: when to look, closely at first."""
    doubled = [2**i for i in range(1, max(2, last).bit_length()) if 2**i < last]
    return [*doubled, max(2, last)]


def diagnose(
    trainer: Trainer, steps: Sequence[int], tell: Callable[[dict[str, Any]], None] = lambda row: None
) -> dict[str, Any]:
    """Everything about one run: rows over the training, the reach of the LRE at its end. No steps: as it stands."""
    driver = driver_of(trainer)
    rows = watch(trainer, steps, tell) if steps else [{"step": trainer.done, **measure(driver)}]
    stages = sorted({driver.sizes.index(size) for size in driver.sizes})  # one layer of each size
    return {
        "experiment": "diagnosis",
        "config": trainer.config.to_dict(),
        "rows": {name: [_digits(row.get(name)) for row in rows] for name in rows[-1]},
        "reach": [reach(driver, layer) for layer in stages],
    }


def _digits(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
