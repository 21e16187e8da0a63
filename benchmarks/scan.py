"""The selective scan: chunked against sequential, forward and backward, in one run on one machine.

python benchmarks/scan.py [--device cuda] [--threads 2] [--full]

The sequential twin keeps a (length x channels x state) tensor, so it runs on the small shapes only; `--full` adds the
two shapes of a ResNet-20, its largest layer as one sequence and all its weights as rows, for the chunked scan. On a GPU
mamba-ssm's kernel is timed beside it, where that package is installed.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fastslow.hypernets import MambaSlowNet, selective_scan, selective_scan_reference

# rows, tokens, channels, states, outputs
SMALL = {"one long sequence": (1, 4096, 100, 16, 683), "many short rows": (4096, 7, 16, 4, 1)}
FULL = {"largest layer of ResNet-20": (1, 221_185, 100, 16, 36_864), "weights of ResNet-20": (268_336, 7, 16, 4, 1)}


def inputs(rows: int, length: int, channels: int, state: int, device: str) -> list[Tensor]:
    def rows_innermost(features: int) -> Tensor:
        return torch.randn(length, features, rows, device=device).permute(2, 0, 1)

    x, B, C = rows_innermost(channels), rows_innermost(state), rows_innermost(state)
    dt = rows_innermost(channels).sigmoid() * 0.1
    A = -torch.arange(1.0, state + 1, device=device).repeat(channels, 1)
    return [v.requires_grad_() for v in (x, dt, A, B, C, torch.ones(channels, device=device))]


def seconds(run: Callable[[], object], device: str, repeats: int = 3) -> float:
    """The best of `repeats` after one warm-up: the run that other programs disturbed least."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def forward_and_backward(scan: Callable[[], Tensor], variables: list[Tensor]) -> None:
    torch.autograd.grad(scan().sum(), variables)


def public_kernel() -> Callable[..., Tensor] | None:
    """mamba-ssm's CUDA kernel, where it is installed. It discretises by Euler and computes every output."""
    try:
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None

    def scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
        tokens_last = [v.transpose(1, 2).contiguous() for v in (x, dt, B, C)]
        return selective_scan_fn(tokens_last[0], tokens_last[1], A, tokens_last[2], tokens_last[3], D)

    return scan


def slow_nets(device: str) -> None:
    """The whole slow-net on the weights of a ResNet-20, by the fastest path there is and in plain PyTorch."""
    sizes, rows = [2304] * 7 + [4608] + [9216] * 5 + [18_432] + [36_864] * 5, 6
    history = 1e-4 * torch.randn(rows, sum(sizes), device=device)
    layers = range(len(sizes))
    for layout, options in {"per_weight": {"d_state": 4, "expand": 16}, "concat": {}}.items():
        net = MambaSlowNet(len(sizes), **options).to(device)
        paths = {"fastest": getattr(net, layout)}
        if layout == "per_weight":  # the other takes minutes
            paths["PyTorch"] = getattr(super(MambaSlowNet, net), layout)
        for name, read in paths.items():
            with torch.no_grad():
                known = read(history, sizes, layers)
                generate = seconds(lambda r=read: r(history, sizes, layers), device)
            pull = seconds(lambda r=read, k=known: r(history, sizes, layers, known=k).sum().backward(), device)
            print(f"{layout:>20}, {name}: generate {generate:.3f} s, differentiate {pull:.3f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.device}, {args.threads} threads; ms per 1000 tokens, forward + backward")
    for name, (rows, length, channels, state, outputs) in (SMALL | (FULL if args.full else {})).items():
        variables = inputs(rows, length, channels, state, args.device)
        scale = 1e6 / (rows * length)

        def chunked(v: list[Tensor] = variables, n: int = outputs) -> None:
            forward_and_backward(lambda: selective_scan(*v, outputs=n), v)

        def sequential(v: list[Tensor] = variables, n: int = outputs) -> None:
            forward_and_backward(lambda: selective_scan_reference(*v)[:, -n:], v)

        quick = seconds(chunked, args.device)
        line = f"{name:>28}: chunked {quick * scale:8.3f} ({quick:.3f} s)"
        if name in SMALL:
            slow = seconds(sequential, args.device)
            line += f", sequential {slow * scale:8.3f}, ratio {slow / quick:.1f}"
        if args.device == "cuda" and (public := public_kernel()) is not None:
            other = seconds(lambda v=variables, f=public: forward_and_backward(lambda: f(*v), v), args.device)
            line += f", mamba-ssm {other * scale:8.3f}, ratio {other / quick:.2f}"
        print(line, flush=True)
    if args.full:
        slow_nets(args.device)


if __name__ == "__main__":
    main()
