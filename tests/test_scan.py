"""The chunked selective scan against its sequential twin, and the twin against its equations."""

import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from fastslow.hypernets.scan import Discretization, expm1_ratio, selective_scan_reference
from fastslow.hypernets.scan_chunked import selective_scan

NAMES = ("x", "dt", "A", "B", "C", "D")


def scan_inputs(
    batch: int, length: int, channels: int, state: int, *, dtype: torch.dtype = torch.float64, seed: int = 0
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    # dt log-uniform in [1e-3, 1] and |A| up to 4: from a chunk that forgets nothing to one that forgets all.
    dt = torch.exp(
        torch.rand(batch, length, channels, generator=generator, dtype=dtype) * math.log(1e3) - math.log(1e3)
    )
    A = -torch.rand(channels, state, generator=generator, dtype=dtype) * 4 - 0.01
    tensors = [randn(batch, length, channels), dt, A, randn(batch, length, state), randn(batch, length, state)]
    return [v.requires_grad_() for v in (*tensors, randn(channels))]


def assert_same(actual: Tensor, expected: Tensor, name: str, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(
        actual,
        expected,
        rtol=tolerance,
        atol=tolerance * float(expected.detach().abs().max()),
        msg=lambda m: f"{name}: {m}",
    )


def assert_chunked_is_sequential(inputs: list[Tensor], outputs: int, chunk: int | None, how: Discretization) -> None:
    expected = selective_scan_reference(*inputs, discretization=how)[:, -outputs:]
    actual = selective_scan(*inputs, discretization=how, outputs=outputs, chunk=chunk)
    assert_same(actual, expected, "y")
    weights = torch.cos(torch.arange(expected.numel(), dtype=expected.dtype)).view_as(expected)
    want = torch.autograd.grad((expected * weights).sum(), inputs)
    got = torch.autograd.grad((actual * weights).sum(), inputs)
    for name, a, b in zip(NAMES, got, want, strict=True):
        assert_same(a, b, f"gradient of {name}")


@pytest.mark.parametrize("how", ["zoh", "euler"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("length", "outputs", "chunk"),
    [
        (1, 1, None),
        (7, 7, None),
        (7, 1, None),
        (7, 3, 2),
        (7, 7, 1),
        (7, 2, 100),
        (1023, 1023, None),
        (1023, 1, None),
        (1023, 5, 64),
        (1023, 171, 17),
        (1023, 170, 34),
    ],
)
def test_chunked_is_sequential(how: Discretization, batch: int, length: int, outputs: int, chunk: int | None) -> None:
    assert_chunked_is_sequential(scan_inputs(batch, length, 5, 3), outputs, chunk, how)


@pytest.mark.parametrize(("how", "outputs"), [("zoh", 6144), ("euler", 36865)])
def test_chunked_is_sequential_on_a_layer_of_resnet20(how: Discretization, outputs: int) -> None:
    assert_chunked_is_sequential(scan_inputs(1, 36865, 4, 4), outputs, None, how)


def test_rows_do_not_mix_when_they_are_processed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastslow.hypernets.scan_chunked.BLOCK", 30)
    assert_chunked_is_sequential(scan_inputs(11, 23, 3, 2), 9, 5, "zoh")


@pytest.mark.parametrize("layout", [(0, 1, 2), (1, 2, 0), (2, 1, 0)])
def test_any_memory_layout(layout: tuple[int, int, int]) -> None:
    back = tuple(layout.index(i) for i in range(3))
    inputs = [
        v.detach().permute(layout).contiguous().permute(back).requires_grad_() if v.dim() == 3 else v
        for v in scan_inputs(4, 9, 3, 2)
    ]
    assert_chunked_is_sequential(inputs, 2, None, "zoh")


def test_C_may_hold_the_outputs_only() -> None:
    x, dt, A, B, C, D = scan_inputs(2, 20, 3, 2)
    last = C.detach()[:, -4:].clone().requires_grad_()
    want = selective_scan(x, dt, A, B, C, D, outputs=4)
    got = selective_scan(x, dt, A, B, last, D, outputs=4)
    assert torch.equal(got, want)
    (dC,), (dlast,) = torch.autograd.grad(want.sum(), [C]), torch.autograd.grad(got.sum(), [last])
    assert torch.equal(dlast, dC[:, -4:])
    assert not dC[:, :-4].any()


@pytest.mark.parametrize("how", ["zoh", "euler"])
def test_gradcheck(how: Discretization) -> None:
    inputs = scan_inputs(2, 5, 2, 2)
    assert torch.autograd.gradcheck(lambda *v: selective_scan_reference(*v, discretization=how), inputs)
    assert torch.autograd.gradcheck(lambda *v: selective_scan(*v, discretization=how, chunk=2, outputs=4), inputs)


def test_zero_order_hold_is_the_exact_solution_of_a_constant_input() -> None:
    """Eq. 19 with x held at 1: h' = A h + B has h(t) = (exp(A t) - 1) B / A, whatever the steps in between."""
    _, dt, A, _, _, D = (v.detach() for v in scan_inputs(1, 50, 3, 2))
    ones = torch.ones(1, 50, 2, dtype=torch.float64)
    y = selective_scan_reference(torch.ones_like(dt), dt, A, ones, ones, D)
    time = dt.cumsum(1)[..., None]
    torch.testing.assert_close(y, (torch.expm1(A * time) / A).sum(3) + D, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_expm1_ratio_and_its_slope_keep_their_digits(dtype: torch.dtype) -> None:
    values = [
        0.0,
        -1e-30,
        1e-30,
        -1e-12,
        -1e-7,
        -1e-4,
        -1e-2,
        -0.5,
        -0.999,
        -1.001,
        -3.0,
        -20.0,
        -100.0,
        -1e4,
        0.3,
        2.0,
    ]
    z = torch.tensor(values, dtype=dtype, requires_grad=True)
    phi = expm1_ratio(z)
    (slope,) = torch.autograd.grad(phi.sum(), z)
    exact = [_phi_and_slope(float(v)) for v in z.detach()]
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(phi, torch.tensor([p for p, _ in exact], dtype=dtype), rtol=tolerance, atol=0)
    torch.testing.assert_close(slope, torch.tensor([s for _, s in exact], dtype=dtype), rtol=tolerance, atol=0)


def _phi_and_slope(z: float) -> tuple[float, float]:
    """phi(z) = integral of e^{z r} over r in [0, 1] and its derivative, each as a sum of terms of one sign."""
    if abs(z) > 30:
        return -1 / z, 1 / z**2
    # For z < 0, phi(z) = e^z phi(-z) and phi'(z) = e^z (phi(-z) - phi'(-z)) keep the series free of cancellation.
    y = abs(z)
    phi = math.fsum(y**k / math.factorial(k + 1) for k in range(120))
    slope = math.fsum((k + 1) * y**k / math.factorial(k + 2) for k in range(120))
    rest = math.fsum(y**k / math.factorial(k + 2) for k in range(120))  # phi - phi'
    return (phi, slope) if z >= 0 else (math.exp(z) * phi, math.exp(z) * rest)


@pytest.mark.parametrize("value", [0.0, 1e-30])
@pytest.mark.parametrize("scan", [selective_scan, selective_scan_reference])
def test_float32_has_no_nan_at_zero_or_tiny_inputs(scan: type, value: float) -> None:
    shapes = (2, 40, 3), (2, 40, 3), (3, 4), (2, 40, 4), (2, 40, 4), (3,)
    x, dt, A, B, C, D = (torch.full(shape, value) for shape in shapes)
    inputs = [v.requires_grad_() for v in (x, dt, A - 1, B, C, D)]
    y = scan(*inputs)
    for v in (y, *torch.autograd.grad(y.sum(), inputs)):
        assert v.isfinite().all()


def test_float32_is_close_to_float64() -> None:
    exact = scan_inputs(2, 300, 5, 4)
    single = [v.detach().float().requires_grad_() for v in exact]
    want, got = selective_scan(*exact, outputs=100), selective_scan(*single, outputs=100)
    assert_same(got.double(), want, "y", 1e-5)
    pairs = zip(torch.autograd.grad(got.sum(), single), torch.autograd.grad(want.sum(), exact), strict=True)
    for name, (a, b) in zip(NAMES, pairs, strict=True):
        assert_same(a.double(), b, f"gradient of {name}", 1e-4)


PEAK = """
import resource, sys, torch
from fastslow.hypernets import scan_chunked
scan_chunked.BLOCK, scan_chunked.KEPT = 1 << 16, 1 << 22  # so that the constant part is small beside the rest
torch.set_num_threads(1)

def run(length, channels, state):
    wide, narrow = (torch.ones(1, length, n, requires_grad=True) for n in (channels, state))
    A, D = -torch.ones(channels, state), torch.ones(channels)
    scan_chunked.selective_scan(wide, wide, A, narrow, narrow, D, outputs=length // 6).sum().backward()

run(256, 4, 4)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(*map(int, sys.argv[1:]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
def test_peak_memory_is_far_below_one_length_by_channels_by_state_tensor() -> None:
    length, channels, state = 1 << 14, 64, 64
    command = [sys.executable, "-c", PEAK, str(length), str(channels), str(state)]
    grown = 1024 * int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert grown < 4 * length * channels * state / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": 0}, "outputs=0"),
        ({"outputs": 8}, "outputs=8"),
        ({"chunk": 0}, "chunk=0"),
        ({"discretization": "tustin"}, "discretization='tustin'"),
    ],
)
def test_bad_arguments_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        selective_scan(*scan_inputs(1, 7, 2, 2), **options)
