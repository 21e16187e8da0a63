"""A sweep as an Optuna study: workers that claim trials, train them as runs, and leave nothing undone when killed.

A trial belongs to the machine that drew it, and there to whoever holds the lock of its run folder. A worker that starts
therefore first looks for trials whose process died, and trains them to their end from their last checkpoint.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import OptunaError
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from ..data import Dataset
from ..files import make_folder
from ..training.checkpoint import CheckpointError
from ..training.config import RunConfig
from ..training.lock import Busy, RunLock
from ..training.loop import Trainer
from ..training.run import RunError, RunFolder
from ..training.sinks import Silent, Sink, Sinks
from .space import Space

log = logging.getLogger("fastslow")

_STARTUP_TRIALS = 5  # finished before the median means anything


@dataclass(frozen=True)
class Sweep:
    """Everything that a worker needs; can be sent to another process."""

    name: str
    storage: str
    space: Space
    words: tuple[str, ...]  # the space as it was written
    runs: Path
    trials: int
    prune: bool
    device: str
    data_root: Path | None


def open_study(sweep: Sweep) -> optuna.Study:
    """The study of a sweep, new or as its earlier workers left it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = _create(sweep)
    except ModuleNotFoundError as error:
        raise ValueError(f"--storage {sweep.storage} needs the package {error.name}: pip install it") from error
    except (SQLAlchemyError, OptunaError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"--storage {sweep.storage} can't be opened ({reason}); write for example sqlite:///sweep.db"
        ) from error
    _check_same(study, sweep)
    if not counted(study) and any(sweep.runs.glob("trial-*")):
        raise ValueError(f"{sweep.runs} holds the trials of another study; choose another folder with --runs")
    return study


def _create(sweep: Sweep, attempts: int = 20) -> optuna.Study:
    pruner = optuna.pruners.MedianPruner(_STARTUP_TRIALS) if sweep.prune else optuna.pruners.NopPruner()
    try:
        return optuna.create_study(
            study_name=sweep.name,
            storage=_storage(sweep.storage),
            direction="maximize",
            load_if_exists=True,
            pruner=pruner,
        )
    except SQLAlchemyError as error:
        if attempts == 1 or "exist" not in str(error):
            raise
        time.sleep(0.1)  # another command creates the same tables at this moment
        return _create(sweep, attempts - 1)


def _storage(url: str) -> optuna.storages.RDBStorage:
    # Two processes that write to one file wait for each other instead of giving up.
    waiting = {"connect_args": {"timeout": 120}} if url.startswith("sqlite") else {}
    return optuna.storages.RDBStorage(url, engine_kwargs=waiting)


def _check_same(study: optuna.Study, sweep: Sweep) -> None:
    """A study keeps what it searches; a command that means something else must not add to it."""
    base, words = sweep.space.base, sorted(sweep.words)
    known = study.user_attrs
    if "space" not in known:
        study.set_user_attr("config", base.to_dict())
        study.set_user_attr("space", words)
        return
    different = ""
    if known["space"] != words:
        different = f"searches {' '.join(known['space'])}, not {' '.join(words)}"
    elif RunConfig.from_dict(known["config"]).key != base.key:
        pairs = [(name, known["config"].get(name), value) for name, value in base.to_dict().items()]
        different = "has " + ", ".join(f"{name}={there}, not {here}" for name, there, here in pairs if there != here)
    if different:
        raise ValueError(f"the study {sweep.name!r} in {sweep.storage} {different}; choose another name with --study")


class Reporter(Silent):
    """Tells a trial its accuracy after every epoch, and ends it where Optuna sees no point in going on."""

    def __init__(self, trial: Trial, reported: set[int]) -> None:
        self.trial = trial
        self.reported = reported

    def epoch(self, row: dict[str, Any]) -> None:
        if row["epoch"] not in self.reported:
            self.trial.report(row["test_accuracy"], row["epoch"])
        if self.trial.should_prune():
            raise optuna.TrialPruned


@dataclass(frozen=True)
class Claim:
    """A trial in our hands: its run's folder is locked until the claim is dropped."""

    trial: Trial
    config: RunConfig
    run: RunFolder
    begun: bool  # by a process that died


class Worker:
    """Trains trials until the study has as many as it shall have."""

    def __init__(self, sweep: Sweep, dataset: Dataset, device: Any, sink: Sink | None = None) -> None:
        self.sweep = sweep
        self.dataset = dataset
        self.device = device
        self.sink = sink
        self.study = open_study(sweep)
        self.here = {"host": socket.gethostname(), "runs": str(sweep.runs.resolve())}

    def work(self) -> None:
        while True:
            with ExitStack() as stack:
                claim = self._claim(stack)
                if claim is None:
                    return
                self._settle(claim.trial, lambda claim=claim: self._accuracy(claim))

    # -- whose turn it is -----------------------------------------------------------------------------------------

    def _claim(self, stack: ExitStack) -> Claim | None:
        """A trial that died on this machine, or a new one; None when there are enough."""
        make_folder(self.sweep.runs)
        with _waiting_for(RunLock(self.sweep.runs)):
            for frozen in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if self.here.items() <= frozen.user_attrs.items():
                    try:
                        claim = self._lock(Trial(self.study, frozen._trial_id), stack)
                    except Busy:
                        continue  # it lives
                    log.info("trial %d was left behind: going on with it", frozen.number)
                    return claim
            trial = self._new()
            return None if trial is None else self._lock(trial, stack)

    def _new(self) -> Trial | None:
        if len(counted(self.study)) >= self.sweep.trials:
            return None
        trial = self.study.ask()
        # On another machine somebody may have counted at the same moment: who drew the higher number steps back.
        if len([other for other in counted(self.study) if other.number < trial.number]) >= self.sweep.trials:
            trial.set_user_attr("surplus", True)
            self.study.tell(trial, state=TrialState.FAIL)
            return None
        for key, value in self.here.items():
            trial.set_user_attr(key, value)
        return trial

    def _lock(self, trial: Trial, stack: ExitStack) -> Claim:
        config = self.sweep.space.draw(trial)  # of a trial begun before: what it drew then
        run = RunFolder(self.sweep.runs / f"trial-{trial.number:04d}")
        begun = (run.path / "config.json").is_file()
        if not begun:
            run = RunFolder.create(run.path, config)
        stack.enter_context(run.lock)
        if begun and run.config().key != config.key:
            raise ValueError(
                f"{run.path} holds another run than trial {trial.number}; choose another folder with --runs"
            )
        return Claim(trial, config, run, begun)

    # -- one trial ------------------------------------------------------------------------------------------------

    def _settle(self, trial: Trial, accuracy: Callable[[], float]) -> None:
        """Tell the study how a trial ended: a failure is the trial's alone, and an interrupted trial stays open."""
        try:
            value = accuracy()
        except optuna.TrialPruned:
            self.study.tell(trial, state=TrialState.PRUNED)
            log.info("trial %d stopped early: below the median", trial.number)
        except (CheckpointError, RunError):  # a full disk, a folder in use: not the trial's fault, which stays open
            raise
        except (ValueError, ArithmeticError, MemoryError, RuntimeError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            trial.set_user_attr("failed", reason)
            self.study.tell(trial, state=TrialState.FAIL)
            log.warning("trial %d failed: %s", trial.number, reason)
        else:
            self.study.tell(trial, value)
            log.info("trial %d: %.2f %%", trial.number, value)

    def _accuracy(self, claim: Claim) -> float:
        """Of the last epoch, on the held-out images."""
        result = claim.run.result()  # killed when all was done but telling
        if result is None:
            known = set(self.study.get_trials(deepcopy=False)[claim.trial.number].intermediate_values)
            reporter = Reporter(claim.trial, known)
            sink = reporter if self.sink is None else Sinks(self.sink, reporter)
            trainer = Trainer(claim.config, self.dataset, run=claim.run, device=self.device, sink=sink)
            if claim.begun:
                trainer.resume()
            result = trainer.fit()
        return float(result["test_accuracy"])


@contextmanager
def _waiting_for(lock: RunLock) -> Iterator[None]:
    """Enter a lock that others hold for moments only."""
    while True:
        try:
            lock.__enter__()
            break
        except Busy:
            time.sleep(0.05)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def counted(study: optuna.Study) -> list[FrozenTrial]:
    """The trials of a study but for those that were drawn one too many."""
    return [trial for trial in study.get_trials(deepcopy=False) if "surplus" not in trial.user_attrs]


def best_config(study: optuna.Study, space: Space) -> RunConfig:
    """The best trial's settings, without the held-out part: what to train, once, for the test set."""
    frozen = optuna.trial.FixedTrial(study.best_trial.params)
    return dataclasses.replace(space.draw(frozen), holdout=0)
