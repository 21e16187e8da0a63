"""The Triton kernels against the float64 reference: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []

from fastslow.hypernets import kernels  # noqa: E402
from fastslow.hypernets.horizon import horizon  # noqa: E402
from fastslow.hypernets.kernels import concat_call, concat_launch, concat_sweep, launch  # noqa: E402
from test_layouts import LAYERS, NETS, SIZES, assert_close, gradients, make  # noqa: E402


@pytest.mark.parametrize("options", NETS)
@pytest.mark.parametrize("size", [1.0, 1e-4])
def test_per_weight_is_the_float64_reference(options: dict, size: float) -> None:
    net, twin = make(**options)
    sizes = SIZES if DEVICE == "cuda" else [5, 1, 20, 3, 2]
    history = torch.randn(3, sum(sizes)) * size
    scales = torch.rand(len(sizes)) * size + size if size < 1 else None
    cotangent = torch.randn(sum(sizes))
    double = None if scales is None else scales.double()
    want = twin.per_weight(history.double(), sizes, LAYERS, scales=double, reference=True)
    expected = gradients(twin, want, cotangent)
    net = net.to(DEVICE)
    on_device = None if scales is None else scales.to(DEVICE)
    got = launch.per_weight(net, history.to(DEVICE), sizes, LAYERS, on_device)
    assert_close(got.cpu(), want, "output")
    for name, gradient in gradients(net, got, cotangent.to(DEVICE)).items():
        assert_close(gradient.cpu(), expected[name], name, 3e-5)


def tolerance(name: str) -> float:
    """Of a gradient. Those of dt and A are differences of exp(dt A) - 1, which the kernels know to 2e-6 at worst."""
    return 1e-4 if name.startswith(("dt_proj", "A_log")) else 3e-5


@pytest.mark.parametrize(
    ("options", "size", "horizon_tol"),
    [
        pytest.param({"d_state": 16, "expand": 2}, 1.0, 0.0, marks=pytest.mark.slow),
        ({"d_state": 16, "expand": 2}, 1e-4, 1e-7),
        ({"d_state": 3, "expand": 3, "d_conv": 2, "discretization": "euler"}, 1e-4, 1e-3),
        pytest.param({"d_state": 5, "expand": 2, "d_conv": 8, "projections": False}, 1.0, 1e-7, marks=pytest.mark.slow),
    ],
)
def test_concat_is_the_float64_reference(options: dict, size: float, horizon_tol: float) -> None:
    net, twin = make(**options)
    net.horizon_tol = horizon_tol
    # The interpreter is slow: there, little that still crosses tiles, layers and rows of the history.
    sizes, layers, tile = (SIZES, LAYERS, 128) if DEVICE == "cuda" else ([1, 3], [1, 0], 2)
    history = torch.randn(2, sum(sizes)) * size
    scales = torch.rand(len(sizes)) + 0.5 if size < 1 else None
    cotangent = torch.randn(sum(sizes))
    double = None if scales is None else scales.double()
    want = twin.concat(history.double(), sizes, layers, scales=double, reference=True)
    expected = gradients(twin, want, cotangent)
    net = net.to(DEVICE)
    on_device = None if scales is None else scales.to(DEVICE)
    got = concat_launch.concat(net, history.to(DEVICE), sizes, layers, on_device, tile=tile)
    assert_close(got.cpu(), want, "output")
    if size < 1:  # a step differentiates what its look-ahead has found already
        known = got.detach()
        got = concat_launch.concat(net, history.to(DEVICE), sizes, layers, on_device, known, tile=tile)
        assert torch.equal(got, known)
    for name, gradient in gradients(net, got, cotangent.to(DEVICE)).items():
        assert_close(gradient.cpu(), expected[name], name, tolerance(name))


def test_concat_finds_states_once_and_never_takes_others_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    net, twin = make(d_state=2, expand=2)
    net.horizon_tol = 0.0
    sizes, layers, tile = (SIZES, LAYERS, 128) if DEVICE == "cuda" else ([2], [1], 4)
    net = net.to(DEVICE)
    histories = [torch.randn(2, sum(sizes), device=DEVICE) * 1e-2 for _ in range(2)]
    cotangent = torch.randn(sum(sizes), device=DEVICE)
    found, find = [], concat_sweep.Sweep._enter_all
    monkeypatch.setattr(concat_sweep.Sweep, "_enter_all", lambda self: (found.append(self), find(self))[1])

    def check(got: torch.Tensor, history: torch.Tensor) -> None:
        want = twin.concat(history.cpu().double(), sizes, layers, reference=True)
        expected = gradients(twin, want, cotangent.cpu())
        for name, gradient in gradients(net, got, cotangent).items():
            assert_close(gradient.cpu(), expected[name], name, tolerance(name))

    first, second = (concat_launch.concat(net, h, sizes, layers, None, tile=tile) for h in histories)
    groups = len(found) // 2
    known = concat_launch.concat(net, histories[1], sizes, layers, None, second.detach(), tile=tile)
    check(known, histories[1])  # with what the sweep before has left behind
    assert len(found) == 3 * groups - 1
    check(first, histories[0])  # whose states another sweep has overwritten
    assert len(found) == 4 * groups - 1


@pytest.fixture
def several_groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[int], list[int], int]]:
    """Sizes, layers and a tile with which a launch takes some of the layers only."""
    sizes, layers, tile = (SIZES, LAYERS, 128) if DEVICE == "cuda" else ([2, 1], [1, 0], 2)
    monkeypatch.setattr(concat_call, "_GROUP", max(sizes))
    concat_call.groups.cache_clear()
    yield sizes, layers, tile
    concat_call.groups.cache_clear()


@pytest.mark.parametrize(
    ("rooms", "horizon_tol"),
    [(2, 0.0), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 0.0), (2, 1e-7)))],
)
def test_rooms_for_the_whole_history_change_no_bit_and_spare_projections(
    monkeypatch: pytest.MonkeyPatch, several_groups: tuple[list[int], list[int], int], rooms: int, horizon_tol: float
) -> None:
    sizes, layers, tile = several_groups
    history = torch.randn(2, sum(sizes), device=DEVICE) * 1e-2
    cotangent = torch.randn(sum(sizes), device=DEVICE)
    groups = len(concat_call.groups(tuple(sizes), history.device, tile))
    projected, project = [], concat_sweep.Sweep._project
    monkeypatch.setattr(concat_sweep.Sweep, "_project", lambda sweep, row: projected.append(row) or project(sweep, row))
    monkeypatch.setattr(concat_sweep.Room, "bytes_of_whole", lambda call, group: 1)

    def run(whole: int) -> list[torch.Tensor]:
        """Look ahead, then differentiate, with so many rooms for the whole history."""
        monkeypatch.setattr(concat_launch, "memory_for_rooms", lambda device: whole)
        net, _ = make(d_state=2, expand=2)
        net.horizon_tol = horizon_tol
        net = net.to(DEVICE)
        ahead = concat_launch.concat(net, history, sizes, layers, None, tile=tile).detach()
        projected.clear()
        known = concat_launch.concat(net, history, sizes, layers, None, ahead, tile=tile)
        return [ahead, *gradients(net, known, cotangent).values()]

    assert groups >= 2
    row_by_row = run(0)
    # Of the first group the row before the last; of the others both for the states, and then that one.
    assert len(projected) == 1 + 3 * (groups - 1)
    assert all(torch.equal(a, b) for a, b in zip(run(rooms), row_by_row, strict=True))
    assert len(projected) == 3 * (groups - rooms)


def test_a_room_takes_the_memory_it_says() -> None:
    history = torch.randn(3, 300, device=DEVICE)
    starts = torch.zeros(2, 6, dtype=torch.int32, device=DEVICE)
    call = concat_call.Call(history, (100, 200), None, history.new_ones(2), starts, None, 6, 4, True, 128, None)
    room = concat_sweep.Room(call, call.groups[0], whole=True)
    tensors = (room.tokens, room.taps, room.xs, room.dts, room.states, room.totals)
    assert sum(tensor.nbytes for tensor in tensors) == concat_sweep.Room.bytes_of_whole(call, call.groups[0])


@pytest.mark.slow
def test_groups_of_channels_that_forget_at_once_beside_others_that_never_do() -> None:
    """Then the horizon leaves out old tiles of some groups and not of others, and nothing changes."""
    net, twin = make(d_state=2, expand=40)
    for each in (net, twin):
        with torch.no_grad():
            each.dt_proj.bias[::2] = 30.0  # scattered: the launch has to sort them
            each.dt_proj.weight[::2] = 0.1
            each.dt_proj.bias[1::2] = -30.0
            each.dt_proj.weight[1::2] = 0.0
    net.horizon_tol = 1e-7
    sizes, layers, tile = (SIZES, LAYERS, 128) if DEVICE == "cuda" else ([1, 11], [1, 0], 4)
    history, cotangent = torch.randn(3, sum(sizes)) * 1e-2, torch.randn(sum(sizes))
    starts = horizon(net, history, sizes, layers, None, net.horizon_tol).starts.amin(2)
    reach = starts[sizes.index(max(sizes))]
    assert (reach[1::2] == 0).all()
    assert (reach[::2] > 0).all()
    want = twin.concat(history.double(), sizes, layers, reference=True)
    expected = gradients(twin, want, cotangent)
    net = net.to(DEVICE)
    got = concat_launch.concat(net, history.to(DEVICE), sizes, layers, None, tile=tile)
    assert_close(got.cpu(), want, "output")
    for name, gradient in gradients(net, got, cotangent.to(DEVICE)).items():
        assert_close(gradient.cpu(), expected[name], name, 3e-5)


def random_states() -> list[torch.Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if DEVICE == "cuda" else [])]


@pytest.mark.parametrize("layout", ["per_weight"] if DEVICE == "cpu" else ["per_weight", "concat"])
def test_a_kernel_is_trusted_only_where_it_agrees(
    layout: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = torch.device(DEVICE)
    before = random_states()
    kernels.trusted.cache_clear()
    with monkeypatch.context() as patched, torch.no_grad():  # as in an optimizer's step
        patched.setattr(torch, "manual_seed", None)  # it is every device's
        assert kernels.trusted(layout, device)
    assert all(map(torch.equal, random_states(), before))
    right = getattr(launch, layout)
    for wrong in (lambda *args: 1.01 * right(*args), lambda *args: 1 / 0):
        monkeypatch.setattr(launch, layout, wrong)
        kernels.trusted.cache_clear()
        assert not kernels.trusted(layout, device)
    kernels.trusted.cache_clear()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
