"""Every method on a CUDA device: the same first losses as on the CPU, channels-last, and captured in a CUDA graph."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fastslow as fs
from test_methods_common import ROWS, Row, binary_net
from toy import BATCH, toy_data

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STEPS = 6


def losses(row: Row, device: str, activations: str | None = None) -> list[float]:
    model = binary_net(row, activations).to(device)
    if device == "cuda":
        model.to(memory_format=torch.channels_last)
    base = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = fs.optimizer(model, base, total_steps=STEPS, epochs=3)
    x, y = (part.to(device) for part in toy_data())
    found = []
    for step in range(STEPS):
        batch = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])
def test_first_losses_equal_those_of_the_cpu(row):
    # A bit may round the other way at any time, so only the first steps are compared.
    assert losses(row, "cuda")[:2] == pytest.approx(losses(row, "cpu")[:2], rel=2e-2)
    if "sign" in fs.get_method(row.name).activations:
        assert all(loss == loss for loss in losses(row, "cuda", "sign"))


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])
def test_a_captured_step_equals_an_eager_one(row):
    models = []
    x, y = (part.cuda() for part in toy_data())
    for captured in (False, True):
        model = binary_net(row).cuda()
        base = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
        optimizer = fs.optimizer(model, base, total_steps=20, epochs=20)
        if not all(driver.graph_safe for driver in optimizer.drivers):
            pytest.skip(f"{row.name} decides something in Python at every step")

        def step(model=model, optimizer=optimizer, captured=captured) -> None:
            optimizer.zero_grad()
            if captured:  # and with a part of it on a second stream
                optimizer.prepare()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        warm_up = max([3, *(driver.eager_steps for driver in optimizer.drivers)])
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(warm_up):
                step()
        torch.cuda.synchronize()
        if captured:
            optimizer.zero_grad()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                step()
        for _ in range(3):
            if captured:
                graph.replay()
                optimizer.count_step()
            else:
                step()
        models.append(model)
    for (key, eager), graphed in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        torch.testing.assert_close(graphed, eager, rtol=1e-3, atol=1e-3, msg=lambda m, key=key: f"{key}: {m}")
