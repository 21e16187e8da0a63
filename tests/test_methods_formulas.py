"""The published formulas, on literal tables: derivatives, schedules and values of each method."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import fastslow as fs
from fastslow.methods.bop import flips
from fastslow.methods.fda import fourier
from fastslow.methods.irnet import sharpness
from fastslow.methods.proxquant import prox
from fastslow.methods.rbnn import fit_rotations, matrices, rotate
from fastslow.methods.recu import quantile
from fastslow.methods.reste import power

X = torch.tensor([-2.0, -1.0, -0.5, -0.05, 0.0, 0.05, 0.5, 1.0, 2.0])
CLIPPED = [0, 1, 1, 1, 1, 1, 1, 1, 0]
ONES = [1] * 9
POLYNOMIAL = [0, 0, 1, 1.9, 2, 1.9, 1, 0, 0]
R2 = math.sqrt(2)


def at(progress: float) -> Tensor:
    return torch.tensor(progress)


# d sign(x)/dx at X, worked out by hand from each paper's formula; (method, share of the training, table).
DERIVATIVES = [
    ("binaryconnect", 0, ONES),
    ("bnn", 0, CLIPPED),
    ("bwn", 0, CLIPPED),
    ("mcdonnell", 0, ONES),
    ("recu", 0.5, ONES),
    ("bop", 0, ONES),
    # EDE: t = 0.1, k = 10 at the start (value 1 at zero), t = 10, k = 1 at the end (value 10 at zero).
    ("irnet", 0, [0.96104, 0.99007, 0.99750, 0.99998, 1, 0.99998, 0.99750, 0.99007, 0.96104]),
    ("irnet", 1, [0, 0, 0.00182, 7.86448, 10, 7.86448, 0.00182, 0, 0]),
    # t = 0.01, k = 100; then t = 10, k = 1: 10 sqrt 2 - 100 |x|, zero beyond sqrt(2)/10.
    ("rbnn", 0, [R2 - 0.02, R2 - 0.01, R2 - 0.005, R2 - 0.0005, R2, R2 - 0.0005, R2 - 0.005, R2 - 0.01, R2 - 0.02]),
    ("rbnn", 1, [0, 0, 0, 10 * R2 - 5, 10 * R2, 10 * R2 - 5, 0, 0, 0]),
    # o = 1 is the straight-through estimator clipped at 1.5; o = 3 has 4.642 within 0.1 and 1/3 at 1 (public code).
    ("reste", 0, CLIPPED),
    ("reste", 1, [0, 1 / 3, 0.52913, 4.64159, 4.64159, 4.64159, 0.52913, 1 / 3, 0]),
    # n = 9 and n = 18 terms, omega = 0.1 (an independent port): 1.273 and 2.42 at zero, 0.58 and -0.39 at one.
    ("fda", 0, [0, 0.57984, 1.07184, 1.27112, 1.27324, 1.27112, 1.07184, 0.57984, 0]),
    ("fda", 1, [0, -0.39017, 1.20537, 2.40464, 2.41916, 2.40464, 1.20537, -0.39017, 0]),
]


@pytest.mark.parametrize(("name", "progress", "expected"), DERIVATIVES)
def test_derivative_of_the_sign(name, progress, expected):
    method = fs.get_method(name)
    torch.testing.assert_close(method.derivative(X, at(progress)), torch.tensor(expected).float(), rtol=2e-5, atol=2e-5)


INPUT_DERIVATIVES = [
    ("ste", 0, CLIPPED),
    ("bnn", 0, CLIPPED),
    ("xnor", 0, CLIPPED),
    ("fsg", 0, CLIPPED),
    ("recu", 0, POLYNOMIAL),
    ("adabin", 0, POLYNOMIAL),
    ("rbnn", 0, [0, R2 - 1, R2 - 0.5, R2 - 0.05, R2, R2 - 0.05, R2 - 0.5, R2 - 1, 0]),  # k = 1, t = max(t, 1)
    ("reste", 1, [0, 1 / 3, 0.52913, 4.64159, 4.64159, 4.64159, 0.52913, 1 / 3, 0]),
]


@pytest.mark.parametrize(("name", "progress", "expected"), INPUT_DERIVATIVES)
def test_derivative_at_binary_inputs(name, progress, expected):
    method = fs.get_method(name)
    expected = torch.tensor(expected).float()
    torch.testing.assert_close(method.input_derivative(X, at(progress)), expected, rtol=2e-5, atol=2e-5)
    layer = nn.Linear(9, 1, bias=False)
    fs.binarize_(layer, name, activations="sign")
    layer.eval()
    layer._progress.fill_(progress)
    x = X.clone().requires_grad_()
    out = layer.method.binary_input(layer, x)
    assert out.tolist()[:4] == [-1.0] * 4
    if name != "adabin":
        assert out.tolist() == [-1.0] * 5 + [1.0] * 4, "zero becomes -1"
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["irnet", "rbnn", "reste", "fda", "bnn", "mirror"])
@pytest.mark.parametrize("progress", [0.0, 0.4, 1.0])
def test_estimator_is_the_integral_of_the_derivative(name, progress):
    layer = nn.Linear(4, 2)
    fs.binarize_(layer, name)
    layer._progress.fill_(progress)
    # Away from the jumps of the piecewise derivatives, and from where a half-precision share rounds.
    x = torch.tensor([-1.2, -0.7, -0.3, 0.02, 0.3, 0.7, 1.2], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(layer.method.estimator(layer, x).sum(), x)
    if name == "mirror":
        beta = 1.02 ** math.floor(500 * layer._progress)
        expected = beta * (1 - torch.tanh(beta * x.detach()) ** 2)
    else:
        expected = layer.method.derivative(x.detach(), layer._progress)
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [0, 9, 18])
def test_fourier_closed_form_is_the_sum(n):
    x = torch.linspace(-1, 1, 41, dtype=torch.float64)
    terms = [torch.cos((2 * i + 1) * 0.1 * x) for i in range(n + 1)]
    torch.testing.assert_close(fourier(x, torch.tensor(float(n)), 0.1), 0.4 / math.pi * torch.stack(terms).sum(0))


def gradient_of(layer: nn.Module, g: Tensor) -> Tensor:
    """dL/dW for a given dL/dWb, in training mode, as if a wrapper drove the layer."""
    layer._owner = object()
    layer.zero_grad()
    (layer.train().method.forward_weight(layer) * g).sum().backward()
    return layer.weight.grad


def linear(name: str, w: Tensor, **kwargs) -> nn.Linear:
    layer = nn.Linear(w.shape[1], w.shape[0], bias=False)
    with torch.no_grad():
        layer.weight.copy_(w)
    fs.binarize_(layer, name, **kwargs)
    return layer


W = torch.tensor([[0.5, -0.25, 1.5, -0.75], [0.1, 0.2, -0.3, 0.2]])
G = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
SIGNS = torch.tensor([[1.0, -1, 1, -1], [1, 1, -1, 1]])


def test_xnor_weight_gradient():
    """g (1/n + alpha 1[|W| <= 1]) with alpha = 0.75 and 0.2, n = 4: the third weight lies beyond 1."""
    for name in ("bwn", "xnor"):
        layer = linear(name, W)
        assert torch.allclose(layer.binary_weight, SIGNS * torch.tensor([[0.75], [0.2]]))
        expected = G * torch.tensor([[1.0, 1.0, 0.25, 1.0], [0.45, 0.45, 0.45, 0.45]])
        torch.testing.assert_close(gradient_of(layer, G), expected)


def test_dorefa_weights_and_gradient():
    layer = linear("dorefa", W)
    torch.testing.assert_close(layer.binary_weight, SIGNS * W.abs().mean())
    torch.testing.assert_close(gradient_of(layer, G), G)
    two_bits = linear("dorefa", W, bits=2)
    ste = linear("ste", W, bits=2)
    assert torch.equal(two_bits.binary_weight, ste.binary_weight)
    torch.testing.assert_close(gradient_of(two_bits, G), gradient_of(ste, G))


def test_dorefa_activations():
    layer = linear("dorefa", W, activations="clip", activation_bits=2)
    assert layer.input_bits == 2
    x = torch.tensor([-0.2, 0.1, 0.3, 0.9, 1.3], requires_grad=True)
    out = layer.method.binary_input(layer, x)
    torch.testing.assert_close(out, torch.tensor([0, 0, 1 / 3, 1, 1]))
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert gradient.tolist() == [0, 1, 1, 1, 0]
    assert "steps from 0 to 1" in layer.deploy_note


def test_irnet_weights():
    """Libra-PB: zero mean and unit std, then the nearest power of two to mean|Ws|."""
    layer = linear("irnet", torch.tensor([[3.0, 1.0, -1.0, -3.0], [10.0, 0.0, 0.0, 0.0]]))
    # Filter 1: std = sqrt(20/3), mean|Ws| = 2/2.582 = 0.7746 -> 2^round(-0.37) = 1.
    # Filter 2: Ws = (1.5, -0.5, -0.5, -0.5), mean 0.75 -> 2^round(-0.415) = 1.
    assert layer.binary_weight.tolist() == [[1, 1, -1, -1], [1, -1, -1, -1]]
    sparse = torch.zeros(1, 100)
    sparse[0, 0] = 10.0  # Ws = (9.9, -0.1, ...): mean|Ws| = 0.198 -> 2^round(-2.34) = 1/4
    layer = linear("irnet", sparse)
    assert layer.binary_weight.abs().unique().tolist() == [0.25]


@pytest.mark.parametrize("name", ["irnet", "rbnn", "recu", "adabin"])
@pytest.mark.parametrize("w", [torch.zeros(2, 4), torch.ones(2, 4)])
def test_filters_of_equal_weights_stay_finite(name, w):
    layer = linear(name, w)
    assert layer.binary_weight.isfinite().all()
    assert gradient_of(layer, G).isfinite().all()


def test_irnet_gradient_passes_mean_and_std():
    layer = linear("irnet", W)
    gradient = gradient_of(layer, G)
    torch.testing.assert_close(gradient.sum(1), torch.zeros(2), rtol=0, atol=1e-4)  # centring removes the mean
    torch.testing.assert_close((gradient * W).sum(1), torch.zeros(2), rtol=0, atol=1e-4)  # standardising, the scale


def test_reste_scale_takes_part_in_the_gradient():
    layer = linear("reste", W)
    torch.testing.assert_close(layer.binary_weight, SIGNS * W.abs().mean())
    # At o = 1: scale * g * 1[|W| <= 1.5] + sign(W)/n * sum(g sign(W)).
    expected = W.abs().mean() * G + SIGNS / 8 * (G * SIGNS).sum()
    torch.testing.assert_close(gradient_of(layer, G), expected)


def test_adabin_values():
    layer = linear("adabin", torch.tensor([[1.0, 2.0, 3.0, 6.0]]))
    spread = math.sqrt((4 + 1 + 0 + 9) / 4)
    torch.testing.assert_close(layer.binary_weight, torch.tensor([[3 - spread, 3 - spread, 3 - spread, 3 + spread]]))
    layer = linear("adabin", W, activations="sign")
    with torch.no_grad():
        layer.adabin_input_scale.fill_(2.0)
        layer.adabin_input_shift.fill_(0.5)
    assert layer.method.binary_input(layer, torch.tensor([0.4, 0.6])).tolist() == [2 * (-1 + 0.5), 2 * (1 + 0.5)]


def test_mcdonnell_constant():
    layer = nn.Conv2d(8, 4, 3)
    fs.binarize_(layer, "mcdonnell")
    assert layer.binary_weight.abs().unique().item() == pytest.approx(math.sqrt(2 / 72))
    g = torch.randn(4, 8, 3, 3)
    torch.testing.assert_close(gradient_of(layer, g), g)  # the constant takes no part, as in the public code


def test_centring_over_the_input_channels():
    layer = nn.Conv2d(3, 2, 3)
    fs.binarize_(layer, "bwn", centre=True)
    with pytest.raises(RuntimeError, match="without its optimizer wrapper"):
        layer(torch.randn(1, 3, 4, 4)).sum().backward()
    optimizer = fs.optimizer(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    layer.weight.grad = torch.randn_like(layer.weight)
    optimizer.step()
    torch.testing.assert_close(layer.weight.mean(1), torch.zeros(2, 3, 3), rtol=0, atol=1e-6)


def test_recu_clamp():
    """The limit follows tau, and weights beyond it get no gradient."""
    w = torch.randn(4, 200, generator=torch.Generator().manual_seed(0))
    layer = linear("recu", w)
    z = layer.method.latent(layer, w)
    w1 = (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) / (2 * math.sqrt(2)))
    limit = -w1.abs().mean() * math.log(2 - 2 * 0.85)
    assert z.abs().max().item() == pytest.approx(limit.item(), rel=1e-4)
    assert (z.abs() == z.abs().max()).float().mean() > 0.1
    layer._progress.fill_(1.0)
    assert layer.method.latent(layer, w).abs().max() > z.abs().max()


def test_rotations_are_orthogonal_and_never_worse():
    x = matrices(torch.randn(8, 24, generator=torch.Generator().manual_seed(2), dtype=torch.float64))
    assert x.shape == (8, 4, 6), "the largest divisor up to the root comes first"
    r1, r2 = (torch.eye(n, dtype=torch.float64) for n in (4, 6))
    agreement = []
    for _ in range(6):
        agreement.append(rotate(x, r1, r2).abs().sum().item())  # sum_i <sign(V_i), V_i>
        r1, r2 = fit_rotations(x, r1, r2, rounds=1)
        torch.testing.assert_close(r1.T @ r1, torch.eye(4, dtype=torch.float64))
        torch.testing.assert_close(r2.T @ r2, torch.eye(6, dtype=torch.float64))
    assert agreement == sorted(agreement)
    assert agreement[-1] > agreement[0] * 1.02


def test_rbnn_rotates_in_the_first_step_of_an_epoch_only():
    torch.manual_seed(0)
    layer = nn.Linear(6, 4)
    fs.binarize_(layer, "rbnn")
    optimizer = fs.optimizer(layer, torch.optim.SGD(layer.parameters(), lr=0.5), total_steps=6, epochs=3)
    changed = []
    for _ in range(6):
        before = layer.rbnn_r1.clone()
        optimizer.zero_grad()
        layer(torch.randn(5, 6)).square().sum().backward()
        optimizer.step()
        changed.append(not torch.equal(before, layer.rbnn_r1))
    assert changed == [False, False, True, False, True, False], "an epoch ends with the rotations it was trained with"


def test_bop_flips():
    w = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0])
    m = torch.tensor([0.2, -0.2, 0.2, -0.2, 0.05])
    assert flips(w, m, 0.1).tolist() == [True, False, False, True, False]
    layer = linear("bop", W, gamma=0.5, tau=0.1)
    optimizer = fs.optimizer(layer, torch.optim.SGD(layer.parameters(), lr=10.0), total_steps=5)
    layer.weight.grad = torch.tensor([[1.0, -1.0, -1.0, 0.0], [0.1, 0.0, 0.0, 0.0]])
    optimizer.step()
    assert layer.weight.tolist() == [[-1, 1, 1, -1], [1, 1, -1, 1]], "flipped, flipped, kept; below the threshold"
    assert optimizer.metrics()["bop_flips"] == pytest.approx(2 / 8)


def test_prox_table():
    w = torch.tensor([-1.3, -0.95, -0.2, 0.2, 0.95, 1.0, 1.3])
    torch.testing.assert_close(prox(w, 0.1), torch.tensor([-1.2, -1.0, -0.3, 0.3, 1.0, 1.0, 1.2]))


def test_proxquant_freezes():
    layer = linear("proxquant", W, freeze=0.5)
    optimizer = fs.optimizer(layer, torch.optim.SGD(layer.parameters(), lr=0.1), total_steps=4)
    for _ in range(4):
        optimizer.zero_grad()
        layer(torch.ones(2, 4)).square().sum().backward()
        before = layer.weight.detach().clone()
        optimizer.step()
    assert torch.equal(before, layer.weight.sign())
    assert torch.equal(before, layer.weight)
    assert torch.equal(layer.method.forward_weight(layer), layer.binary_weight)


@pytest.mark.parametrize("freeze", [0.3, 0.6, 0.7, 0.9])
def test_proxquant_freezes_in_the_epoch_that_it_says(freeze):
    """Shares that float32, in which a layer knows the progress, holds a little too low."""
    layer = linear("proxquant", W, freeze=freeze)
    optimizer = fs.optimizer(layer, torch.optim.SGD(layer.parameters(), lr=1e-3), total_steps=10, epochs=10)
    frozen = []
    for _ in range(10):
        layer.weight.grad = torch.ones_like(W)
        optimizer.step()
        frozen.append(torch.equal(layer.weight.abs(), torch.ones_like(W)))
    assert frozen.index(True) == round(10 * freeze)


@pytest.mark.parametrize("epochs", [1, 2, None])
def test_proxquant_freezes_in_a_short_run_too(epochs):
    layer = linear("proxquant", W)
    optimizer = fs.optimizer(layer, torch.optim.SGD(layer.parameters(), lr=1e-3), total_steps=6, epochs=epochs)
    frozen = []
    for _ in range(6):
        layer.weight.grad = torch.ones_like(W)
        optimizer.step()
        frozen.append(torch.equal(layer.weight.abs(), torch.ones_like(W)))
    assert frozen == [False] * 4 + [True] * 2


def test_mirror_grows_at_every_increase():
    method = fs.get_method("mirror")
    found = [method.beta(torch.tensor(step / 500)).log() / math.log(1.02) for step in range(501)]
    assert [round(float(n)) for n in found] == list(range(501))


def test_mirror_gradient_has_no_tanh():
    layer = linear("mirror", W)
    layer._progress.fill_(0.2)
    torch.testing.assert_close(layer.train().method.forward_weight(layer), torch.tanh(1.02**100 * W))
    torch.testing.assert_close(gradient_of(layer, G), G)


def test_quantnet_starts_as_tanh_and_is_exact():
    layer = linear("quantnet", W)
    u = W / W.square().mean().sqrt()
    torch.testing.assert_close(layer.train().method.forward_weight(layer), torch.tanh(u))
    assert torch.equal(layer.binary_weight, SIGNS)
    with torch.no_grad():
        layer.quantnet_b.normal_(generator=torch.Generator().manual_seed(0))
    layer._owner = object()
    layer.double()
    parameters = [layer.quantnet_a, layer.quantnet_b, layer.quantnet_c]

    def soft(*values: Tensor) -> Tensor:
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data = value.data
        return torch.func.functional_call(
            Weighing(layer), {f"layer.quantnet_{k}": v for k, v in zip("abc", values, strict=True)}
        )

    assert torch.autograd.gradcheck(soft, [p.detach().clone().requires_grad_() for p in parameters])


class Weighing(nn.Module):
    """The weight of a layer as a module's output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> Tensor:
        return self.layer.method.forward_weight(self.layer)


def test_surge_compensates_the_input_gradient():
    """dL/dx = g_b + eta ||g_b|| / ||g_a|| g_a, and the output is the binary branch's alone."""
    torch.manual_seed(0)
    layer = linear("surge", W, eta=0.5)
    layer._owner = object()
    with torch.no_grad():
        layer.surge_twin.normal_()
    x = torch.randn(3, 4, requires_grad=True)
    upstream = torch.randn(3, 2)
    out = layer.train()(x)
    torch.testing.assert_close(out, x @ layer.binary_weight.T)
    out.backward(upstream)
    g_b, g_a = upstream @ layer.binary_weight, upstream @ layer.surge_twin.detach()
    torch.testing.assert_close(x.grad, g_b + 0.5 * g_b.norm() / g_a.norm() * g_a)
    torch.testing.assert_close(layer.surge_twin.grad, upstream.T @ x.detach())


def test_stochastic_binaryconnect():
    layer = linear("binaryconnect", torch.tensor([[-2.0, -0.5, 0.0, 0.5, 2.0]]), stochastic=True).train()
    torch.manual_seed(0)
    with torch.no_grad():
        mean = torch.stack([layer.method.forward_weight(layer) for _ in range(4000)]).mean(0)
    torch.testing.assert_close(mean, torch.tensor([[-1.0, -0.5, 0.0, 0.5, 1.0]]), rtol=0, atol=0.05)
    assert layer.eval().method.forward_weight(layer).tolist() == [[-1, -1, -1, 1, 1]]


@pytest.mark.parametrize("name", ["binaryconnect", "bnn"])
def test_clipping(name):
    layer = linear(name, W)
    optimizer = fs.optimizer(layer, torch.optim.SGD(layer.parameters(), lr=10.0))
    layer.weight.grad = G
    optimizer.step()
    assert layer.weight.abs().max() == 1


def test_xnor_map():
    """K is the box-filtered channel mean of |I|, zero padding included."""
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    fs.binarize_(layer, "xnor")
    layer.eval()
    x = torch.randn(2, 3, 7, 7)
    k = nn.functional.avg_pool2d(nn.functional.pad(x.abs().mean(1, keepdim=True), [1] * 4), 3, 2)
    bits = torch.where(x > 0, 1.0, -1.0)
    expected = nn.functional.conv2d(bits, layer.binary_weight, None, 2, 1) * k + layer.bias[:, None, None]
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer(x[0]), expected[0])
    assert "map K" in layer.deploy_note
    plain = nn.Conv2d(3, 4, 3)
    fs.binarize_(plain, "xnor", k_map=False)
    assert plain.deploy_note is None
    with pytest.raises(ValueError, match="groups=3: skip it"):
        fs.binarize_(nn.Conv2d(3, 3, 3, groups=3), "xnor")


def test_fda_noise_leaves_at_the_end():
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 3)
    fs.binarize_(layer, "fda", activations="sign")
    x = torch.randn(2, 3, 5, 5)
    assert not torch.allclose(layer(x), layer.eval()(x))
    layer._progress.fill_(1.0)
    torch.testing.assert_close(layer.train()(x), layer.eval()(x), rtol=1e-5, atol=1e-5)
    assert list(layer.state_dict()) == ["weight", "bias", "fda_w_fc1", "fda_w_fc2", "fda_a_fc1", "fda_a_fc2"]
    assert layer.fda_a_fc1.shape == (1, 3), "at least one hidden unit"


# First and last value of each schedule, as published.
SCHEDULES = [
    ("irnet t", lambda p: sharpness(p, 0.1, 10.0)[0], 0.1, 10.0),
    ("irnet k", lambda p: sharpness(p, 0.1, 10.0)[1], 10.0, 1.0),
    ("rbnn t", lambda p: sharpness(p, 0.01, 10.0)[0], 0.01, 10.0),
    ("reste o", lambda p: power(p, 3.0), 1.0, 3.0),
    ("fda n", fs.get_method("fda").terms, 9.0, 18.0),
    ("fda a", fs.get_method("fda").amplitude, 0.1, 0.0),
    ("recu tau", lambda p: quantile(p, 0.85, 0.99), 0.85, 0.99),
    ("mirror beta", fs.get_method("mirror").beta, 1.0, 1.02**500),
    ("quantnet beta", fs.get_method("quantnet").beta, 1.0, 100.0),
    ("bop gamma", fs.get_method("bop").rate, 1e-4, 1e-8),
    ("proxquant lambda at the freeze", lambda p: fs.get_method("proxquant").strength(p * 2 / 3), 0.0, 0.02),
]


@pytest.mark.parametrize(("schedule", "first", "last"), [pytest.param(*s[1:], id=s[0]) for s in SCHEDULES])
def test_first_and_last_value_of_a_schedule(schedule, first, last):
    assert schedule(at(0.0)).item() == pytest.approx(first, rel=1e-4, abs=1e-9)
    assert schedule(at(1.0)).item() == pytest.approx(last, rel=1e-4, abs=1e-9)


def test_reste_is_halfway_after_three_quarters():
    """o(e) = 1 + (1 - cos(pi/2 e/E)) (o_end - 1): slow at first."""
    assert power(at(0.5), 3.0).item() == pytest.approx(1 + 2 * (1 - math.sqrt(0.5)))


REFUSED = [
    ("irnet", {"t_min": 0.0}, "t_min=0.0"),
    ("rbnn", {"rounds": -1}, "rounds=-1"),
    ("reste", {"o_end": 0.5}, "o_end=0.5"),
    ("reste", {"m": 2.0}, "m=2.0, t=1.5"),
    ("fda", {"n_end": 3}, "n_start=9, n_end=3"),
    ("fda", {"omega": 0.0}, "omega=0.0"),
    ("recu", {"tau_end": 1.0}, "tau_end=1.0"),
    ("dorefa", {"activation_bits": 9}, "activation_bits=9"),
    ("bop", {"gamma": 0.0}, "gamma=0.0"),
    ("bop", {"tau": -1.0}, "tau=-1.0"),
    ("proxquant", {"freeze": 0.0}, "freeze=0.0"),
    ("mirror", {"growth": 0.9}, "growth=0.9"),
    ("quantnet", {"hidden": 0}, "hidden=0"),
    ("surge", {"eta": -1.0}, "eta=-1.0"),
]


@pytest.mark.parametrize(("name", "fields", "said"), REFUSED)
def test_fields_are_checked(name, fields, said):
    with pytest.raises(ValueError, match=said):
        fs.get_method(name, **fields)


@pytest.mark.parametrize("name", ["irnet", "rbnn", "recu", "adabin", "surge"])
def test_filters_of_one_weight_are_refused(name):
    with pytest.raises(ValueError, match=r"centres each filter, and 'thin' has filters of one weight: skip it"):
        fs.binarize_(nn.ModuleDict({"thin": nn.Linear(1, 3)}), name)


@pytest.mark.parametrize("name", ["rbnn", "recu", "fda"])
def test_one_dimensional_convolutions(name):
    torch.manual_seed(0)
    layer = nn.Conv1d(4, 6, 3, padding=1)
    fs.binarize_(layer, name, activations="sign")
    layer._owner = object()
    x = torch.randn(2, 4, 9, requires_grad=True)
    layer.train()(x).square().sum().backward()
    assert x.grad.isfinite().all()
    assert layer(x[0]).shape == (6, 9), "also without a batch"
