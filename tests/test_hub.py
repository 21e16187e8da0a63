"""Pushing to and loading from a hub, against a stand-in of its HTTP API on this machine."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import constants

import fastslow as fs
import tiny
from fastslow.hub import HubError, _one_sentence
from fastslow.model_card import model_card
from fastslow.report.load import load_trained
from fastslow.training.run import RunFolder
from hub_server import TOKEN, Hub

# The hub's library sends large files in a way that its HTTP library no longer likes.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The tiny network, one epoch on a part of the mini set."""
    folder = tmp_path_factory.mktemp("hub") / "first-run"
    config = tiny.config("fsg-weight", data="mini", epochs=1, batch_size=100)
    mini = fs.data.load("mini")
    part = dataclasses.replace(mini, train=mini.train.subset(slice(300)), test=mini.test.subset(slice(100)))
    fs.Trainer(config, part, run=RunFolder.create(folder, config)).fit()
    return folder


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that everything here talks to; large files go the documented way, not through Xet's own protocol."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with Hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


IMAGES = np.random.default_rng(0).standard_normal((3, 3, 32, 32), np.float32)


def test_a_run_goes_to_the_hub_and_comes_back(hub, run, tmp_path):
    address = fs.push_to_hub(run, "user/tiny", licence="mit")
    assert address.startswith(f"{hub.endpoint}/user/tiny/commit/")
    assert set(hub.repositories["user/tiny"]["main"]) == {
        *("README.md", "config.json", "model.safetensors", "result.json", "weights.safetensors")
    }
    expected = load_trained(run)[0].eval()(torch.from_numpy(IMAGES)).detach().numpy()
    engine = fs.from_pretrained("user/tiny", threads=1)
    np.testing.assert_allclose(engine(IMAGES), expected, rtol=1e-4, atol=1e-4)
    network = fs.from_pretrained("user/tiny", torch=True)
    assert not network.training
    assert torch.equal(network(torch.from_numpy(IMAGES)), torch.from_numpy(expected))
    # It is a network to train on.
    optimizer = fs.optimizer(network.train(), torch.optim.Adam(network.parameters(), lr=1e-3))
    before = network.c2.weight.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        network(torch.from_numpy(IMAGES)).square().mean().backward()
        optimizer.step()
    assert not torch.equal(network.c2.weight, before)


def test_the_card_says_what_was_measured(hub, run):
    fs.push_to_hub(run, "user/tiny", licence="mit")
    text = hub.repositories["user/tiny"]["main"]["README.md"].decode()
    result = RunFolder.open(run).result()
    assert result is not None
    _, front, page = text.split("---\n", 2)
    facts = yaml.safe_load(front)
    assert facts["library_name"] == "fastslow"
    assert facts["license"] == "mit"
    assert facts["tags"] == ["binary-neural-network", "1-bit", "fsg-weight"]
    (entry,) = facts["model-index"][0]["results"]
    assert entry["dataset"]["name"] == "mini"
    assert entry["metrics"][0]["value"] == result["test_accuracy"]
    assert entry["metrics"][0]["name"] == "test accuracy of the last epoch"
    assert f"| Test accuracy of the last epoch (100 images) | {result['test_accuracy']:.2f} % |" in page
    for part in (result["conditions"]["torch"], result["key"], "| Method | fsg-weight |", "| Seed | 0 |", "airplane"):
        assert part in page
    assert "POST /api/validate-yaml" in hub.requests


def test_a_packed_file_goes_alone(hub, run, tmp_path):
    packed = fs.pack(load_trained(run)[0], tmp_path / "own|name.safetensors")
    fs.push_to_hub(packed, "user/packed")
    assert set(hub.repositories["user/packed"]["main"]) == {"README.md", "model.safetensors"}
    card = hub.repositories["user/packed"]["main"]["README.md"].decode()
    assert "| Accuracy | not recorded |" in card
    assert "model-index" not in card
    assert fs.from_pretrained("user/packed", threads=1)(IMAGES).shape == (3, 10)
    with pytest.raises(HubError, match=r"user/packed has no config.json; .* load it without torch=True"):
        fs.from_pretrained("user/packed", torch=True)


def test_revisions(hub, run, tmp_path):
    network = load_trained(run)[0]
    fs.pack(network, tmp_path / "one.safetensors")
    with torch.no_grad():
        network.fc.bias += 1
    fs.pack(network, tmp_path / "two.safetensors")
    first = fs.push_to_hub(tmp_path / "one.safetensors", "user/tiny").rpartition("/")[2]
    fs.push_to_hub(tmp_path / "two.safetensors", "user/tiny", message="Second")
    old, new = (fs.from_pretrained("user/tiny", revision=name, threads=1)(IMAGES) for name in (first, "main"))
    np.testing.assert_allclose(new, old + 1, rtol=1e-4, atol=1e-4)
    with pytest.raises(HubError, match="user/tiny has no revision v9; give a branch, a tag or a commit"):
        fs.from_pretrained("user/tiny", revision="v9")
    with pytest.raises(HubError, match="has no revision v9"):
        fs.push_to_hub(tmp_path / "one.safetensors", "user/tiny", revision="v9")


def test_what_the_hub_refuses_is_one_sentence(hub, run, tmp_path, monkeypatch):
    with pytest.raises(HubError, match="the hub has no user/absent that this token may see"):
        fs.from_pretrained("user/absent")
    for name in ("a/b/c", "", "user/na me"):
        with pytest.raises(HubError, match="is no name on the hub; write user/name"):
            fs.push_to_hub(run, name)
    fs.push_to_hub(run, "user/secret", private=True)
    fs.from_pretrained("user/secret", threads=1)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(HubError, match="the hub answered 401 for user/tiny; log in with `hf auth login`"):
        fs.push_to_hub(run, "user/tiny")
    with pytest.raises(HubError, match="that this token may see"):
        fs.from_pretrained("user/secret", cache_dir=tmp_path / "other")


def test_no_way_to_the_hub(run, tmp_path, monkeypatch):
    with pytest.raises(HubError, match="the hub can't be used for user/tiny: "):
        fs.push_to_hub(run, "user/tiny", endpoint="http://127.0.0.1:9", token=TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # otherwise it tries for half a minute
    with pytest.raises(
        HubError, match=r"model.safetensors of user/tiny is not in the cache, and the hub can't be reach"
    ):
        fs.from_pretrained("user/tiny", endpoint="http://127.0.0.1:9", cache_dir=tmp_path)


def test_only_finished_runs_and_packed_files_go_out(hub, run, tmp_path):
    config = tiny.config()
    RunFolder.create(tmp_path / "new", config)
    with pytest.raises(ValueError, match="isn't finished; continue it with"):
        fs.push_to_hub(tmp_path / "new", "user/tiny")
    with pytest.raises(ValueError, match="holds no run"):
        fs.push_to_hub(tmp_path / "absent", "user/tiny")
    with pytest.raises(ValueError, match=r"weights\.safetensors"):
        fs.push_to_hub(run / "weights.safetensors", "user/tiny")
    assert hub.requests == []


DAMAGED = {
    "{": "config.json is no config of a run: ",
    "[]": "config.json is no config of a run: it holds no JSON object",
    '{"colour": 1}': "config.json is no config of a run: unknown config field 'colour'",
    '{"lr": "high"}': "config.json is no config of a run: lr='high'",
    '{"model": "absent"}': "unknown model 'absent'",
    '{"model": "resnet8"}': "weights.safetensors doesn't fit this",
    '{"model": "tiny", "model_fields": {"depth": 3}}': "model tiny doesn't take these fields",
    '{"model": "tiny", "method": "absent"}': "unknown method 'absent'",
    "\xff": "config.json is no config of a run: ",
}


def test_a_damaged_config_is_one_sentence(hub, run, tmp_path):
    fs.push_to_hub(run, "user/tiny")
    files = hub.repositories["user/tiny"]["main"]
    for number, (content, sentence) in enumerate(DAMAGED.items()):
        files["config.json"] = content.encode("latin-1")
        with pytest.raises(ValueError) as caught:  # from a cache of its own: the old file has the same commit
            fs.from_pretrained("user/tiny", torch=True, cache_dir=tmp_path / str(number))
        assert sentence in str(caught.value)


def test_no_path_of_this_machine_is_published(tmp_path):
    from fastslow.shipping import published

    config = tiny.config(data=f"folder:{tmp_path}/cats", weights=f"{tmp_path}/float.safetensors").to_dict()
    assert (published(config)["data"], published(config)["weights"]) == ("folder:cats", "float.safetensors")
    assert published(tiny.config().to_dict())["weights"] == "none"
    taught = tiny.config(distill=0.5, teacher=f"{tmp_path}/teacher.safetensors", teacher_model="resnet20").to_dict()
    assert str(tmp_path) not in json.dumps(published({**config, "teacher": taught["teacher"]}))
    assert published(taught)["teacher"] == "teacher.safetensors"


def test_odd_words_cannot_break_the_card(run, tmp_path):
    result = {
        "test_accuracy": 50.0,
        "metric": 'x"\n---\n',
        "config": {"method": "a: [b", "data": "folder:a|b", "model": "m"},
    }
    fs.pack(load_trained(run)[0], tmp_path / "m.safetensors", result=result)
    text = model_card(fs.load_packed(tmp_path / "m.safetensors").model, "user/name")
    facts = yaml.safe_load(text.split("\n---\n")[0].removeprefix("---\n"))
    assert facts["tags"][2] == "a: [b"
    assert facts["model-index"][0]["results"][0]["metrics"][0]["name"] == 'x"\n---\n'


def test_the_card_counts_the_bits(run, tmp_path):
    fs.pack(load_trained(run)[0], tmp_path / "m.safetensors", result={"config": {"method": "ste", "bits": 2}})
    text = model_card(fs.load_packed(tmp_path / "m.safetensors").model, "user/name")
    assert "2-bit weights" in text
    assert "1-bit" not in text


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HubError, match=r"the hub needs the package huggingface_hub: pip install 'fastslow\[hub\]'"):
        fs.from_pretrained("user/tiny")


def test_the_command_and_a_process_without_torch(hub, run, tmp_path):
    """``fastslow push`` in a process of its own, which takes the hub's address from HF_ENDPOINT."""
    packed = tmp_path / "m.safetensors"
    fs.pack(load_trained(run)[0], packed)
    environment = {**os.environ, "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "fastslow", "push", str(packed), "user/cli", "--private", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["commit"].startswith(f"{hub.endpoint}/user/cli/commit/")
    assert hub.private["user/cli"]
    code = "import sys, fastslow; print(fastslow.from_pretrained('user/cli').output_shape, 'torch' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert loaded.stdout.strip() == "(10,) False", loaded.stderr


@pytest.mark.parametrize(
    "result", [{"config": "cfg.yaml"}, {"conditions": "cpu"}, {"test_accuracy": "92 %"}, {"seconds": None}]
)
def test_a_card_of_a_result_of_ones_own(tmp_path, result):
    model = torch.nn.Sequential(torch.nn.Linear(8, 3))
    fs.binarize_(model, "ste")
    fs.pack(model, tmp_path / "m.safetensors", input_shape=(8,), result=result)
    text = model_card(fs.load_packed(tmp_path / "m.safetensors").model, "user/name")
    assert "| Accuracy | not recorded |" in text


@pytest.mark.parametrize("kind", [ConnectionError, TimeoutError])
def test_a_connection_that_breaks_is_the_hubs_trouble(kind: type[Exception]) -> None:
    """What the hub's second way of sending files raises are Python's own exceptions."""
    with (
        pytest.raises(HubError, match="the hub can't be used for user/name: Network error"),
        _one_sentence("user/name"),
    ):
        raise kind("Network error")
