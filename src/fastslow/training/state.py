"""All that a trainer is made of at one moment: taken, loaded, kept as a checkpoint, gone back to.

The other half of :class:`fastslow.training.loop.Trainer`: these functions read and write its private fields too.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..weights import load_strictly
from .checkpoint import CheckpointError
from .config import RunConfig
from .form import check_state
from .memory import give_back
from .ranks import Ranks
from .recovery import RollBack
from .run import RunFolder

if TYPE_CHECKING:
    from .loop import Trainer

log = logging.getLogger("fastslow")


def take_state(trainer: Trainer) -> dict[str, Any]:
    """What a checkpoint holds. All ranks take part; the first one's is whole."""
    trainer.ranks.collect(trainer._loss_sum, trainer._correct)
    return {
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "bits": trainer.bits.state_dict(),
        "config": trainer.config.deciding(),
        "done": trainer.done,
        "left_out": sorted(trainer.left_out.steps),
        "sessions": trainer.sessions.until(trainer.done),
        "steps_per_epoch": len(trainer.train_batches),
        "rows": trainer.rows,
        "metrics": trainer._method_metrics(),
        "seconds": trainer._seconds,
        "epoch_seconds": trainer._epoch_seconds,
        "loss_sum": trainer._loss_sum,
        "correct": trainer._correct,
        **_random_numbers(trainer.device),
        **trainer._shown.state_dict(),
        **_random_numbers_of_ranks(trainer.ranks, trainer.device),
    }


def load_state(trainer: Trainer, state: dict[str, Any]) -> None:
    """The inverse of :func:`take_state`; a state that isn't of this run raises before the optimizer is touched."""
    _check_config(state, trainer.config)
    if state["steps_per_epoch"] != len(trainer.train_batches):
        raise ValueError(
            f"it has {state['steps_per_epoch']} steps an epoch, the run now has {len(trainer.train_batches)}: "
            "the data set has changed"
        )
    load_strictly(trainer.model, state["model"], "its network")
    check_state(state, trainer)
    _load_optimizer(trainer.optimizer, state["optimizer"])
    trainer.bits.load_state_dict(state["bits"])
    trainer._shown.load_state_dict(state)
    trainer.done = state["done"]
    trainer.left_out.steps = set(state.get("left_out", []))  # runs begun before there was a choice have none
    trainer.sessions.load(state.get("sessions", []))  # runs begun before they were kept: the last one's alone
    trainer.rows = state["rows"]
    trainer._metrics = state["metrics"]
    trainer._seconds = state["seconds"]
    trainer._epoch_seconds = state["epoch_seconds"]
    if trainer.ranks.first:  # of all ranks together
        trainer._loss_sum.copy_(state["loss_sum"])
        trainer._correct.copy_(state["correct"])
    _load_random_numbers(state, trainer.ranks, trainer.device, trainer.config.seed)
    trainer._waits = False
    if trainer._graphed is not None:
        trainer._graphed.start_over()


def _check_config(state: dict[str, Any], config: RunConfig) -> None:
    """A result is recorded under the config, so what was trained before a stop must have been trained by it, too."""
    if "config" not in state:  # runs begun before it was kept
        return
    begun = RunConfig.from_dict(state["config"])
    changed = begun.differences(config)
    if changed:
        name = changed[0]
        raise ValueError(
            f"its config has {name} = {getattr(begun, name)!r}, the run's has {getattr(config, name)!r}: put that back "
            "in config.json, or begin another run"
        )


def save_newest(trainer: Trainer) -> None:
    """Write a checkpoint, which the first rank does for all."""
    state = trainer.state_dict()
    if trainer.run is not None:
        trainer.run.checkpoints.keep = trainer.config.keep
        trainer.run.checkpoints.save(trainer.done, state)
    give_back()


def load_newest(trainer: Trainer) -> None:
    """Go back to the newest checkpoint of the run's folder, which the first rank reads for all."""
    run = trainer.run
    trainer.keep_images()
    path, state = trainer.ranks.from_first(_newest(run) if run is not None else None)
    if path is None:
        return
    try:
        trainer.load_state_dict(state)
    except (ValueError, LookupError, RuntimeError, TypeError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(f"{path} doesn't belong to this run: {error}") from error
    if run is not None:
        run.rewind_metrics(trainer.rows)
    log.info("resumed at step %d from %s", trainer.done, path)


def prepare_rollback(trainer: Trainer) -> None:
    """There is always a checkpoint to go back to."""
    if trainer.config.on_nan == "rollback":
        paths = trainer.ranks.from_first(None if trainer.run is None else trainer.run.checkpoints.paths())
        if paths is None:
            raise ValueError("on_nan='rollback' goes back to a checkpoint: give the trainer a run folder")
        if not paths:
            trainer.save()


def roll_back(trainer: Trainer, back: RollBack) -> None:
    """Go back to it; the steps that were left out since are left out again."""
    steps = trainer.left_out.steps
    trainer.resume()
    trainer.left_out.steps |= steps
    trainer.left_out.add(back.step)
    log.warning("%s; back to step %d, and step %d will be left out", back, trainer.done, back.step)


def _newest(run: RunFolder) -> tuple[Path | None, Any]:
    run.checkpoints.sweep()
    if run.checkpoints.paths():
        return run.checkpoints.load_newest()
    run.rewind_metrics([])
    log.info("%s has no checkpoint yet: starting from its beginning", run.path)
    return None, None


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load its state and put it where a captured step wants it, which torch leaves as it was in the file.

    Learning rates that were tensors on the device stay these tensors, and momenta are laid out as their channels-last
    weights: a file holds both on the CPU, row by row.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=True):
        # How a step is computed is the device's affair: a run may move to another one.
        saved.update({key: group[key] for key in ("capturable", "fused", "foreach") if key in group})
    optimizer.load_state_dict(state)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate.fill_(float(group["lr"])) if isinstance(rate, Tensor) else float(group["lr"])
    for p, kept in optimizer.state.items():
        for key, value in kept.items():
            if isinstance(value, Tensor) and value.shape == p.shape and value.stride() != p.stride():
                kept[key] = torch.empty_like(p, requires_grad=False).copy_(value)


def _random_numbers(device: torch.device) -> dict[str, Any]:
    """Those of this rank."""
    cuda = device.type == "cuda"
    return {"rng": torch.get_rng_state(), "cuda_rng": torch.cuda.get_rng_state(device) if cuda else None}


def _random_numbers_of_ranks(ranks: Ranks, device: torch.device) -> dict[str, Any]:
    """Those of every rank, if there are several."""
    if ranks.size == 1:
        return {}
    own = _random_numbers(device)
    return {
        "rank_rng": ranks.gather(own["rng"]),
        "rank_cuda_rng": None if own["cuda_rng"] is None else ranks.gather(own["cuda_rng"]),
    }


def _load_random_numbers(state: dict[str, Any], ranks: Ranks, device: torch.device, seed: int) -> None:
    """Those of this rank. A run that goes on with another number of ranks starts new ones for all but the first."""
    rng, cuda_rng = state["rng"], state["cuda_rng"]
    if not ranks.first:
        if len(state.get("rank_rng", ())) != ranks.size:
            torch.manual_seed(ranks.seed(seed + state["done"]))
            return
        rng, cuda_rng = state["rank_rng"][ranks.rank], state["rank_cuda_rng"]
        cuda_rng = None if cuda_rng is None else cuda_rng[ranks.rank]
    torch.set_rng_state(rng)
    if cuda_rng is not None and device.type == "cuda":
        torch.cuda.set_rng_state(cuda_rng, device)
