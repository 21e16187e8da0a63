"""Workers of a sweep: in this process, or several processes side by side on one storage."""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from types import FrameType

from optuna.exceptions import OptunaError
from sqlalchemy.exc import SQLAlchemyError

from .. import data
from ..training.interrupt import Interrupted
from ..training.sinks import ConsoleSink, Sink
from .study import Sweep, Worker, open_study

log = logging.getLogger("fastslow")


def with_holdout(sweep: Sweep) -> Sweep:
    """Without --holdout, the last tenth of the training images is held out."""
    if sweep.space.base.holdout:
        return sweep
    images = len(data.load(sweep.space.base.data, sweep.data_root, holdout=1).train) + 1
    base = dataclasses.replace(sweep.space.base, holdout=max(1, images // 10))
    return dataclasses.replace(sweep, space=dataclasses.replace(sweep.space, base=base))


def work(sweep: Sweep, sink: Sink | None = None) -> None:
    """Train trials in this process until there are enough."""
    from ..cli_support import choose_device

    device = choose_device(sweep.device)
    base = sweep.space.base
    dataset = data.load(base.data, sweep.data_root, holdout=base.holdout)
    try:
        Worker(sweep, dataset, device, sink).work()
    except Interrupted:
        log.info("the same sweep command goes on where this one stopped")
        raise
    except (OptunaError, SQLAlchemyError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"the storage {sweep.storage} failed ({reason}); the same command goes on") from error


def work_side_by_side(sweep: Sweep, workers: int) -> None:
    """Several processes, each with its share of the cores. The first that is stopped or fails stops the others."""
    if workers == 1:
        work(sweep, ConsoleSink())
        return
    open_study(sweep)  # once, before they would all create its tables
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // workers)))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_process, args=(sweep,)) for _ in range(workers)]

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for process in processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for process in processes:
            process.start()
        code = _wait(processes)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code:
        raise WorkersFailed(code)


class WorkersFailed(Exception):
    """The workers have said why; the command ends with their exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"the workers ended with exit code {exit_code}")
        self.exit_code = exit_code


def _wait(processes: Sequence[BaseProcess]) -> int:
    """Until all have ended; 0, or the first code that isn't."""
    code = 0
    while any(process.is_alive() for process in processes):
        for process in processes:
            if not code and process.exitcode:
                code = process.exitcode
                for other in processes:
                    if other.is_alive():
                        other.terminate()  # it saves, and leaves its trial to the next command
        time.sleep(0.05)
    codes = [process.exitcode or 0 for process in processes]
    code = code or next((c for c in codes if c), 0)
    return 128 - code if code < 0 else code


def _process(sweep: Sweep) -> None:
    from ..cli_support import show_logs

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the parent too, which passes it on
    show_logs()
    try:
        work(sweep)
    except Interrupted as stop:
        print(f"fastslow: {stop}", file=sys.stderr)
        sys.exit(stop.exit_code)
    except (ValueError, OSError) as error:
        print(f"fastslow: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
