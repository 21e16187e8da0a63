"""The slow-net as Triton kernels: d_model 1, dt_rank 1, float32, on a CUDA device.

Triton comes with torch's CUDA builds and is imported here only, on first use. `TRITON_INTERPRET=1` runs the kernels on
the CPU, slowly: that is how the tests check them without a GPU.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastslow.hypernets import native
from fastslow.ops.switch import may_round_to_tf32

if TYPE_CHECKING:
    from fastslow.hypernets.slow import MambaSlowNet

log = logging.getLogger("fastslow")

MAX_TOKENS = 12  # of a per-weight sequence: they are unrolled, and held in registers


@functools.cache
def available() -> bool:
    """Whether Triton can be imported; said once in the log if not."""
    try:
        import triton  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        log.info("Triton isn't installed: the slow-net runs on the GPU as plain PyTorch, which is slower")
        return False
    return True


def can_run(net: MambaSlowNet, history: Tensor, layout: str) -> bool:
    """Whether the kernels take this net and history, and work on its device."""
    return (
        history.device.type == "cuda"
        and history.dtype == net.D.dtype == torch.float32
        and not history.requires_grad
        and native.padded_sizes(net) is not None
        and available()
        and trusted(layout, history.device)
    )


def fits(net: MambaSlowNet, sizes: Sequence[int]) -> bool:
    """Whether the concatenated layout's kernels can number what the largest layer needs."""
    return 4 * net.D.numel() * max(sizes) < 2**31


@functools.cache
def trusted(layout: str, device: torch.device) -> bool:
    """Whether the kernels of a layout agree with plain PyTorch on a small problem, tried once on each device.

    Drivers, cards and Triton's versions are many: a kernel that doesn't compile or computes something else there is
    said in the log and left alone, and PyTorch takes its place.
    """
    from fastslow.hypernets.slow import MambaSlowNet

    sizes = [200, 100] if device.type == "cuda" else [10, 5]  # the interpreter is slow
    with torch.random.fork_rng(devices=[]):  # on the CPU, and without a trace in the run's random numbers:
        torch.default_generator.manual_seed(0)  # torch.manual_seed would also start those of the GPU anew
        net = MambaSlowNet(2, d_state=2).to(device)  # compiles what a net of the default width will use
        history = torch.randn(2, sum(sizes)).to(device)

    def agrees() -> bool:
        from fastslow.hypernets.kernels import launch

        with torch.enable_grad():
            outs = [
                getattr(launch, layout)(net, history, sizes, [1, 0], None),
                getattr(super(MambaSlowNet, net), layout)(history, sizes, [1, 0]),
            ]
            return _alike(outs, list(net.parameters()))

    return _tried(f"slow-net's {layout}", device, agrees)


WIDEST_LSTM = 128  # hidden units: more don't fit in registers


def lstm_can_run(hidden: int, *given: Tensor) -> bool:
    """Whether the LSTM slow-net's kernels take these, and work on their device."""
    return (
        all(tensor.is_cuda and tensor.dtype == torch.float32 and not tensor.requires_grad for tensor in given)
        and hidden <= WIDEST_LSTM
        and may_round_to_tf32(torch.backends.cuda.matmul, torch.backends.cuda.matmul)
        and available()
        and lstm_trusted(given[0].device)
    )


@functools.cache
def lstm_trusted(device: torch.device) -> bool:
    """The same for the sequences of the LSTM slow-net."""
    from fastslow.hypernets.slow import LSTMSlowNet

    hidden = 100 if device.type == "cuda" else 3  # compiles what nets of the default width will use
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        slow = LSTMSlowNet(2, hidden=hidden).to(device)
        history = torch.randn(2, 70).to(device)

    def agrees() -> bool:
        from fastslow.hypernets.kernels import lstm_launch

        given = history, [40, 30], [1, 0]
        with torch.enable_grad():
            sequences = [lstm_launch.sequence(slow, *given), super(LSTMSlowNet, slow).per_weight(*given)]
            # Products are in TF32.
            return _alike(sequences, list(slow.parameters()), functools.partial(_close, share=5e-3))

    return _tried("LSTM slow-net's", device, agrees)


def _close(a: Tensor, b: Tensor, share: float = 1e-3) -> bool:
    return float((a - b).detach().norm()) <= share * float(b.detach().norm())


def _alike(
    outs: Sequence[Tensor], parameters: Sequence[Tensor], close: Callable[[Tensor, Tensor], bool] = _close
) -> bool:
    """Whether two ways to compute something give the same, and the same gradients."""
    results = [[out.detach(), *torch.autograd.grad(out.square().sum(), parameters)] for out in outs]
    return all(map(close, *results))


def _tried(what: str, device: torch.device, agrees: Callable[[], bool]) -> bool:
    try:
        agree = agrees()
    except Exception as error:  # whatever a compiler or a driver may raise
        log.warning("the %s kernels don't run on %s, PyTorch takes their place: %s", what, device, error)
        return False
    if not agree:
        log.warning("the %s kernels compute wrongly on %s: PyTorch takes their place", what, device)
    return agree
