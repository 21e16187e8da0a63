"""tools/curvature.py against exact Hessians, on a run from beginning to end, and as the report shows it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fastslow as fs
import tiny
from fastslow.methods.fsg_plus import factors
from fastslow.report.curvature import curvature_section
from fastslow.report.diagnosis import load_diagnoses
from fastslow.report.document import Table
from fastslow.report.page import write_report
from fastslow.report.results import Results
from fastslow.report.svg import Figure
from fastslow.reproduce.record import write_record
from fastslow.training.run import RunFolder
from reference import BINARY, tiny_task
from scripts import ROOT, load_script

RECORDED = ROOT / "results" / "diagnosis" / "curvature.json"
curvature = load_script("tools/curvature.py")


def cross_entropy(network, x, y):
    return F.cross_entropy(network(x), y)


def exact(network: torch.nn.Module, name: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The whole Hessian of one layer's weight."""
    weight = network.get_parameter(name).detach()

    def loss(flat: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(network, {name: flat.view_as(weight)}, (x,)), y)

    hessian = torch.autograd.functional.hessian(loss, weight.flatten())
    assert isinstance(hessian, torch.Tensor)
    return hessian


def test_the_mean_of_all_probes_is_the_exact_diagonal():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Tanh(), torch.nn.Linear(2, 3)).double()
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.randint(0, 3, (5,))
    weight = network.get_parameter("0.weight")
    (gradient,) = torch.autograd.grad(cross_entropy(network, x, y), weight, create_graph=True)
    signs = [torch.tensor(z, dtype=torch.float64).view(2, 4) for z in itertools.product((-1, 1), repeat=8)]
    mean = torch.stack([curvature.probe(gradient, weight, z) for z in signs]).mean(0)
    torch.testing.assert_close(mean.flatten(), exact(network, "0.weight", x, y).diagonal())
    units = torch.eye(8, dtype=torch.float64).view(8, 2, 4)
    torch.testing.assert_close(sum(curvature.probe(gradient, weight, z) for z in units), mean)


def test_weight_by_weight_within_the_error_of_the_probes():
    network, data = tiny_task(seed=3, batches=2)
    fs.binarize_(network, "ste", skip="out")
    plain, weights = curvature.bits_as_weights(network)
    assert tuple(weights) == BINARY
    assert all(torch.equal(weights[name], layer.binary_weight) for name, layer in fs.binary_layers(network).items())
    found = curvature.observe(plain, weights, data, cross_entropy, 120, 0)
    for name, (gradients, probes) in found.items():
        assert (len(gradients), len(probes)) == (2, 120)
        diagonal = sum(exact(plain, f"{name}.weight", x, y).diagonal() for x, y in data) / 2
        error = probes.std(0) / len(probes) ** 0.5
        assert ((probes.mean(0) - diagonal).abs() <= 5 * error + 1e-9).all()
        assert (probes.std(0) > 0).any()


def test_the_numbers_of_a_layer():
    gradients = torch.tensor([[1.0, 0.1, 4.0, 2.0, -1.0], [1.0, -0.3, 0.0, 2.0, 3.0]])
    row = curvature.layer_row(gradients, torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0], [3.0, 4.0, 5.0, 6.0, 7.0]]), 10)
    v = gradients.square().mean()
    assert row["weights"] == 5
    assert row["gradient_rms"] == pytest.approx(v.sqrt().item(), rel=1e-5)
    assert row["batch_size_times_v"] == pytest.approx(10 * v.item(), rel=1e-5)
    noiseless = gradients.mean(0).square().mean() - v / 2
    assert row["mean_gradient_rms"] == pytest.approx(noiseless.clamp_min(0).sqrt().item(), rel=1e-5)
    assert (row["curvature"], row["curvature_error"]) == (4.0, 1.0)
    # The first batch orders the weights 1, 0, 4, 3, 2 (two in the first quarter); the second says how large v is.
    assert row["batch_size_times_v_by_quarter"] == pytest.approx([5.45, 90.0, 40.0, 0.0], rel=1e-5)
    assert row["curvature_by_quarter"] == [2.5, 6.0, 5.0, 4.0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of bits that trained for one epoch on a part of the mini set."""
    folder = tmp_path_factory.mktemp("runs")
    mini = fs.data.load("mini")
    few = dataclasses.replace(mini, train=mini.train.subset(slice(64)), test=mini.test.subset(slice(50)))
    weights = folder / "float-start.safetensors"
    fs.save_weights(tiny.Tiny(), weights)
    config = tiny.config(data="mini", method="ste", epochs=1, batch_size=16, weights=str(weights))
    fs.Trainer(config, few, run=RunFolder.create(folder / "ste", config)).fit()
    return folder / "ste"


def test_a_run_from_beginning_to_end(run, tmp_path):
    found = [curvature.measure(run, 3, 2, 0, None) for _ in range(2)]
    assert found[0]["rows"] == found[1]["rows"]
    rows = {row["layer"]: row for row in found[0]["rows"]}
    assert {name: row["weights"] for name, row in rows.items()} == {"c2": 288, "c3": 576}
    assert all(row["gradient_rms"] > 0 and row["curvature_error"] > 0 and row["k"] >= 0 for row in rows.values())
    assert found[0]["config"]["weights"] == "name:float-start"
    assert (found[0]["epochs"], found[0]["settings"]["batch_size"]) == (1, 16)
    assert len(curvature.table(found[0]["rows"]).splitlines()) == 3
    assert str(run.parent) not in json.dumps(found)
    write_record(tmp_path / "diagnosis" / "curvature.json", found[0])
    write_report(tmp_path, tmp_path / "docs")
    assert "after 1 epoch of STE" in (tmp_path / "docs" / "diagnosis.md").read_text()
    assert (tmp_path / "docs" / "figures" / "curvature.svg").is_file()


def test_the_factors_are_the_library_s_and_nothing_moves(run):
    network, config = curvature.load_trained(run)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    data = [(torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))) for _ in range(2)]
    torch.manual_seed(0)
    found = curvature.factor_rows(network, config, data, cross_entropy, 10)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    turned = torch.tensor([row["k_alone"] / row["k_error"] ** 2 for row in found])
    expected = torch.tensor([row["k_error"] ** -2 for row in found])
    torch.testing.assert_close(
        torch.tensor([row["k"] for row in found]), factors(turned, expected), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"method": "fsg"}, "give a run of ste or fsg-plus"), ({"activations": "sign"}, "with real inputs")],
)
def test_what_it_refuses(fields, words):
    config = tiny.config(data="mini", **{"method": "ste", **fields})
    with pytest.raises(ValueError, match=words):
        curvature.check(curvature.build_model(config, 10), config)


@pytest.mark.slow
def test_the_command(run, tmp_path):
    """With a network that every process knows."""
    mini = tmp_path / "run"
    train = [sys.executable, "-m", "fastslow", "train", "--model", "resnet8", "--data", "mini", "--method", "ste"]
    subprocess.run([*train, "--epochs", "1", "--weights", "none", "--run", mini], check=True, capture_output=True)
    command = [sys.executable, ROOT / "tools" / "curvature.py", mini, "--batches", "2", "--probes", "1"]
    done = subprocess.run([*command, "--json", tmp_path / "c.json"], check=True, capture_output=True, text=True)
    rows = json.loads((tmp_path / "c.json").read_text())["rows"]
    assert len(done.stdout.splitlines()) == 1 + len(rows)
    assert subprocess.run([*command, "--batches", "1"], capture_output=True, check=False).returncode == 2


# -- the report -------------------------------------------------------------------------------------------------------


def made_up(**changes: Any) -> dict[str, Any]:
    row = {"layer": "a-b", "weights": 8, "gradient_rms": 1e-3, "mean_gradient_rms": 1e-4, "curvature": 2e-4}
    row |= {"curvature_error": 1e-5, "batch_size_times_v": 1e-4, "curvature_by_quarter": [-1e-6, 1e-5, 1e-4, 1e-3]}
    row |= {"batch_size_times_v_by_quarter": [1e-6, 1e-5, 1e-4, 1e-3], "k": 50.0, "k_alone": -40.0, "k_error": 20.0}
    return {
        "config": {"model": "resnet20", "data": "cifar10", "method": "ste"},
        "epochs": 2,
        "settings": {"batches": 24, "batch_size": 128, "probes": 8, "seed": 0},
        "rows": [{**row, **changes}],
    }


def test_the_report_shows_it_and_says_what_it_left_out(tmp_path):
    write_record(tmp_path / "diagnosis" / "curvature.json", made_up())
    assert load_diagnoses(tmp_path) == []
    table, figure = curvature_section(Results(tmp_path)).items
    assert isinstance(table, Table)
    assert isinstance(figure, Figure)
    assert table.rows[0][0] == "a-b"
    assert table.rows[0][4:] == ("2.00e−04 ± 1.00e−05", "1.00e−04", "2.00", "50", "−40 ± 20")
    assert figure.title.endswith("; estimates below zero, left out: 1")
    assert figure.body.count("<title>") == 3
    assert "between 2.00 and 2.00" in figure.alt
    write_record(tmp_path / "diagnosis" / "curvature.json", made_up(curvature_by_quarter=[1e-6, 1e-5, 1e-4, 1e-3]))
    assert "left out" not in curvature_section(Results(tmp_path)).items[1].title
    assert curvature_section(Results(tmp_path / "nothing")).items == ()


@pytest.mark.skipif(not RECORDED.is_file(), reason="not a clone of the repository")
def test_the_recorded_curvature_is_about_batch_size_times_v():
    """In every layer of a ResNet-20, and in every quarter of its weights, over three orders of magnitude."""
    found = json.loads(RECORDED.read_text())
    assert len(found["rows"]) == 20
    assert found["conditions"]["commit"]
    assert not any(isinstance(value, str) and "/" in value for value in found["config"].values())
    for row in found["rows"]:
        assert 0.9 < row["curvature"] / row["batch_size_times_v"] < 2.4
        pairs = zip(row["curvature_by_quarter"], row["batch_size_times_v_by_quarter"], strict=True)
        assert all(0.6 < h / v < 3.5 for h, v in pairs)
