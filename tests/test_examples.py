"""The examples are run as they stand, on a few images: other people's loops need no change of the wrapper."""

from __future__ import annotations

import logging
from pathlib import Path
from types import ModuleType

import pytest
import torch

import fastslow as fs
from scripts import load_script


def example(name: str) -> ModuleType:
    return load_script(f"examples/{name}.py")


@pytest.fixture(scope="module")
def few() -> fs.data.ImageSet:
    training = fs.data.load("mini").train
    return training.subset(torch.arange(0, len(training), 50))


def assert_packs(model: torch.nn.Module, path: Path) -> None:
    """The file computes what the trained network does."""
    fs.pack(model, path)
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = model.eval()(x)
    found = torch.from_numpy(fs.load_packed(path, threads=1)(x.numpy()))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_plain_loop(few, tmp_path):
    torch.manual_seed(0)
    model, means = example("plain_loop").train("ste", 3, few, batch_size=16)
    assert means[-1] < means[0]
    assert_packs(model, tmp_path / "model.safetensors")


@pytest.mark.parametrize("method", ["ste", "fsg-weight"])
def test_own_model(method, few, tmp_path):
    torch.manual_seed(0)
    model, means = example("own_model").train(method, 4, few, batch_size=16)
    assert means[-1] < means[0]
    assert sorted(fs.binary_layers(model)) == sorted(f"blocks.{i}.{j}" for i in range(3) for j in ("expand", "project"))
    assert_packs(model, tmp_path / "model.safetensors")


def test_accelerate(few, tmp_path):
    torch.manual_seed(0)
    model, losses = example("accelerate_loop").train("fsg-weight", 4, few, 16, state=tmp_path / "state")
    assert sum(losses[-4:]) < sum(losses[:4])
    assert_packs(model, tmp_path / "model.safetensors")


def test_transformer():
    torch.manual_seed(0)
    transformer = example("transformer")
    model, losses = transformer.train("ste", 120)
    assert sum(losses[-10:]) < 0.95 * sum(losses[:10])
    assert transformer.accuracy(model) > 0.125  # twice what guessing one of the symbols shown gives
    assert len(fs.binary_layers(model)) == 4
    _, losses = transformer.train("fsg-weight", 8)
    assert all(torch.isfinite(torch.tensor(losses)))


@pytest.mark.slow
def test_transformer_learns_its_task():
    torch.manual_seed(0)
    transformer = example("transformer")
    assert transformer.accuracy(transformer.train("ste", 1000)[0]) > 0.95


@pytest.mark.filterwarnings("ignore:::pytorch_lightning", "ignore:::lightning_fabric", "ignore:::torchmetrics")
def test_lightning_resumes_from_its_own_checkpoint_bit_for_bit(few, tmp_path):
    import pytorch_lightning as lightning
    from torch.utils.data import DataLoader

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    module = example("lightning_module")
    batches = DataLoader(module.loader(few).dataset, 16, drop_last=True)  # in order: Lightning keeps no generator

    def fit(checkpoint: Path | None = None) -> torch.nn.Module:
        torch.manual_seed(0)
        classifier = module.BinaryClassifier("fsg-weight", lr=1e-2)
        trainer = lightning.Trainer(
            max_epochs=2,
            gradient_clip_val=5.0,
            accelerator="cpu",
            default_root_dir=tmp_path,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[lightning.callbacks.ModelCheckpoint(tmp_path / "kept", "{epoch}", save_top_k=-1)],
        )
        trainer.fit(classifier, batches, ckpt_path=checkpoint)
        return classifier.network

    straight = fit()
    resumed = fit(tmp_path / "kept" / "epoch=0.ckpt")
    fresh = module.BinaryClassifier("fsg-weight").network
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert not torch.equal(straight[3].weight, fresh[3].weight)
    assert_packs(resumed, tmp_path / "model.safetensors")
