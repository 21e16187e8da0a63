"""A second, independent writing of the learned methods: hypernetworks *inside* the model's graph, as published.

Slow and literal, in float64. It shares the hypernetwork modules with the library (run through their sequential,
explicit twins) and nothing else: no wrapper, no flat vectors, no ring buffer, no vector-Jacobian product.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TinyNet(nn.Module):
    """A convolution, a depthwise-like grouped one and two linear layers; the last stays float."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.grouped = nn.Conv2d(4, 4, 3, stride=2, groups=2, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(4 * 4 * 4, 5)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x))
        x = torch.relu(self.norm(self.grouped(x)))
        return self.out(torch.relu(self.hidden(x.flatten(1))))


BINARY = ("conv", "grouped", "hidden")


def tiny_task(seed: int = 0, batches: int = 12) -> tuple[TinyNet, list[tuple[Tensor, Tensor]]]:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    net = TinyNet().double()
    data = [
        (
            torch.randn(8, 2, 10, 10, generator=generator, dtype=torch.float64),
            torch.randint(0, 3, (8,), generator=generator),
        )
        for _ in range(batches)
    ]
    return net, data


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # pyright: ignore
        return torch.round(x)

    @staticmethod
    def backward(ctx, g):  # pyright: ignore
        return g


def hat(w: Tensor) -> Tensor:
    t = torch.tanh(w)
    return t / (2 * t.detach().abs().max()) + 0.5


def bits(w_hat: Tensor) -> Tensor:
    return 2 * _Round.apply(w_hat) - 1


def calibration(w: Tensor) -> Tensor:
    t = torch.tanh(w)
    return ((1 - t**2) / t.abs().max()).detach()


class Reference:
    """Trains a float net's binary version step by step. ``kind``: fcgrad, multifc, lstmfc, or fsg with its fields."""

    def __init__(self, net: TinyNet, kind: str, nets: nn.ModuleDict, fields: dict, make_base, hyper_lrs: list[float]):
        self.net = copy.deepcopy(net)
        self.kind, self.f = kind, fields
        self.nets = copy.deepcopy(nets)
        self.base = make_base(self.net.parameters())
        groups = (
            [self.nets.parameters()]
            if kind != "fsg"
            else [self.nets["fast"].parameters(), self.nets["slow"].parameters()]
        )
        self.hypers = [torch.optim.Adam(g, lr=lr) for g, lr in zip(groups, hyper_lrs, strict=True)]
        self.g: dict[str, Tensor] = {}
        self.what: dict[str, Tensor] = {}
        self.refined: dict[str, Tensor] = {}
        self.history: dict[str, list[Tensor]] = {n: [] for n in BINARY}
        self.hidden: dict[str, tuple[Tensor, Tensor]] = {}
        self.eta: dict[str, float] = {}

    def lr(self, p: Tensor) -> float:
        return next(g["lr"] for g in self.base.param_groups if any(q is p for q in g["params"]))

    # Generated gradients of layer `n`, as a graph in phi: (shift of the look-ahead, gradient to register).
    def generate(self, i: int, n: str, w: Tensor, eta: float) -> tuple[Tensor, Tensor]:
        g, what, c = self.g[n], self.what[n], calibration(w)
        if self.kind == "fcgrad":
            m = self.nets["meta"](g, explicit=True)
            return eta * c * m, c * m
        if self.kind == "multifc":
            m = self.nets["meta"](what, explicit=True) * g
            return eta * c * m, c * m
        if self.kind == "lstmfc":
            m = self.lstm_step(self.nets["meta"], n, what) * g
            return eta * c * m, c * m
        f, beta = self.f, self.f["beta"]
        fast = c * self.nets["fast"](what, explicit=True) * g
        slow = self.slow(i, n, what, g)
        if f["mix"] == "convex":
            whole = (1 - beta) * fast + beta * slow
        else:
            whole = fast - (beta / eta) * slow
        return eta * whole, fast if f["register"] == "fast" else whole

    def lstm_step(self, net, n: str, x: Tensor) -> Tensor:
        k = x.numel()
        h, c = self.hidden.get(n, (torch.zeros(k, net.hidden, dtype=x.dtype),) * 2)
        wi, wh, bi, bh = net.lstm.weight_ih_l0, net.lstm.weight_hh_l0, net.lstm.bias_ih_l0, net.lstm.bias_hh_l0
        gi, gf, gg, go = (x.reshape(k, 1) @ wi.T + bi + h @ wh.T + bh).chunk(4, dim=1)
        c = torch.sigmoid(gf) * c + torch.sigmoid(gi) * torch.tanh(gg)
        h = torch.sigmoid(go) * torch.tanh(c)
        self.next_hidden[n] = (h.detach(), c.detach())
        return (h @ net.head.weight.T + net.head.bias).reshape(x.shape)

    def slow(self, i: int, n: str, what: Tensor, g: Tensor) -> Tensor:
        f, net = self.f, self.nets["slow"]
        if f["slow"] == "lstm-what":
            return self.lstm_step(net, n, what) * g
        h = [entry.reshape(-1) for entry in self.history[n]]
        scale = torch.cat(h).square().mean().sqrt() if f["normalise"] == "rms" else torch.tensor(1.0, dtype=g.dtype)
        p, xi = f["patch"], g.numel()
        pad = [F.pad(entry / scale, (0, -xi % p)) for entry in h]
        extra = {"reference": True} if f["slow"] == "mamba" else {}
        if f["layout"] == "concat":
            tokens = torch.cat(pad).reshape(1, -1, p)
            out = net(tokens, torch.tensor([i]), len(pad[0]) // p, **extra)
        else:
            tokens = torch.stack([entry.reshape(-1, p) for entry in pad], dim=1)
            out = net(tokens, torch.full((len(tokens),), i), 1, **extra)
        return scale * out.reshape(-1)[:xi].reshape(g.shape)

    def iteration(self, x: Tensor, y: Tensor) -> None:
        first = not self.g
        self.next_hidden: dict[str, tuple[Tensor, Tensor]] = {}
        params = dict(self.net.named_parameters())
        substitute, wb, ahead, registered, biases = dict(params), {}, {}, {}, {}
        for i, n in enumerate(BINARY):
            w = params[f"{n}.weight"].detach()
            if first:
                ahead[n] = w
            else:
                shift, registered[n] = self.generate(i, n, w, self.eta[n])
                ahead[n] = w - shift
                if self.kind != "fsg":  # value: the refined step already applied; graph: eta * C * m
                    value = w - self.eta[n] * self.refined[f"{n}.weight"]
                    ahead[n] = value - (shift - shift.detach())
                    key = f"{n}.bias"
                    if key in params:
                        biases[key] = (params[key].detach() - self.eta[n] * self.refined[key]).requires_grad_()
                        substitute[key] = biases[key]
            w_hat = hat(ahead[n])
            wb[n] = bits(w_hat)
            if not wb[n].requires_grad:
                wb[n].requires_grad_()
            wb[n].retain_grad()
            substitute[f"{n}.weight"] = wb[n]
        self.base.zero_grad()
        for h in self.hypers:
            h.zero_grad()
        loss = F.cross_entropy(torch.func.functional_call(self.net, substitute, (x,)), y)
        loss.backward()
        self.phi_grads = [p.grad.clone() if p.grad is not None else None for p in self.nets.parameters()]
        for key, b in biases.items():
            params[key].grad = b.grad
        if not first:
            for h in self.hypers:
                h.step()
        before = {k: p.detach().clone() for k, p in params.items()}
        for n in BINARY:
            if not first:
                params[f"{n}.weight"].grad = registered[n].detach().clone()
        bias_grads = {k: p.grad.clone() for k, p in params.items() if k.endswith("bias") and p.grad is not None}
        if not first:
            self.base.step()
        for n in BINARY:
            w = params[f"{n}.weight"]
            self.what[n] = hat(ahead[n]).detach()
            self.g[n] = wb[n].grad.detach()
            stored = self.g[n]
            if self.kind == "fsg" and self.f["history"] == "fsg":
                shift = (before[f"{n}.weight"] - ahead[n]).detach()
                stored = self.g[n] * calibration(before[f"{n}.weight"]) if first else shift / self.eta[n]
            self.history[n].append(stored)
            del self.history[n][: -self.f.get("length", 1)]
            eta = self.lr(w)
            self.eta[n] = eta
            for key in (f"{n}.weight", f"{n}.bias"):
                if key in params:
                    if first:
                        ste = self.g[n] * calibration(before[key]) if key.endswith("weight") else bias_grads[key]
                        self.refined[key] = ste
                    else:
                        self.refined[key] = (before[key] - params[key].detach()) / eta
        self.hidden.update(self.next_hidden)
