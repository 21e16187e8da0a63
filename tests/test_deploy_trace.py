"""`pack` of torch models: the packed network computes what torch computes, on every backend."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastslow as fs
from fastslow.deploy import UnsupportedLayerError, available_backends, load_packed
from fastslow.deploy.pack import pack
from fastslow.layers import Sign


def randomize(model: nn.Module) -> nn.Module:
    """BatchNorm statistics as after a training."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, -1.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return model.eval()


def check(model: nn.Module, shape: tuple[int, ...], path: Path, batch: int = 7) -> None:
    packed = pack(model, path, input_shape=shape)
    assert packed.file_bytes == path.stat().st_size
    x = torch.randn(batch, *shape)
    with torch.no_grad():
        expected = model.eval()(x).numpy()
    for backend in available_backends():
        actual = load_packed(path, backend)(x.numpy())
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
        top = np.sort(expected, axis=1)
        clear = top[:, -1] - top[:, -2] > 1e-3
        assert (actual.argmax(1) == expected.argmax(1))[clear].all()


class OptionA(nn.Module):
    """A shortcut without weights: every second pixel, channels filled up with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.conv = nn.Conv2d(6, 10, 3, 2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(10)
        self.fc = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        shortcut = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2), "constant", 0)
        x = F.relu(self.bn(self.conv(x)) + shortcut)
        x = F.avg_pool2d(x, x.size()[3])
        return self.fc(x.view(x.size(0), -1))


class Dense(nn.Module):
    """Concatenation, a layer called twice, a value read three times, in-place operations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding="same", groups=2)
        self.mix = nn.Conv2d(12, 5, 1)
        self.act = nn.PReLU(5)

    def forward(self, x: Tensor) -> Tensor:
        a = self.conv(x)
        b = self.conv(a)
        y = self.act(self.mix(torch.cat([x, a, b], 1)))
        y += y
        return torch.flatten(F.adaptive_avg_pool2d(F.max_pool2d(y, 2), 1), 1)


class SignNetwork(nn.Module):
    """1-bit activations: layers that take signs, with float shortcuts between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn0 = nn.Conv2d(3, 20, 3, padding=1, bias=False), nn.BatchNorm2d(20)
        self.sign = Sign()
        self.conv1, self.bn1 = nn.Conv2d(20, 20, 3, padding=1, bias=False), nn.BatchNorm2d(20)
        self.conv2, self.bn2 = nn.Conv2d(20, 33, 3, 2, padding=1, bias=False), nn.BatchNorm2d(33)
        self.conv3, self.bn3 = nn.Conv2d(33, 33, 3, padding=1, bias=False), nn.BatchNorm2d(33)
        self.fc = nn.Linear(33, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn0(self.stem(x))
        x = self.bn1(self.conv1(self.sign(x))) + x
        x = self.bn2(self.conv2(self.sign(x)))
        x = self.bn3(self.conv3(self.sign(F.hardtanh(x))))
        return self.fc(x.mean((2, 3)))


def plain(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: copy.deepcopy(nn.Sequential(*layers))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet8": (fs.models.resnet8, (3, 32, 32)),
    "resnet20": (fs.models.resnet20, (3, 32, 32)),
    "resnet8 with bn": (lambda: fs.models.resnet8(bn_before_fc=True), (3, 16, 24)),
    "option a": (OptionA, (3, 12, 12)),
    "dense": (Dense, (4, 9, 9)),
    "signs": (SignNetwork, (3, 10, 10)),
    "sequence": (
        plain(
            nn.Conv1d(3, 8, 5, 2, padding=2),
            nn.BatchNorm1d(8),
            nn.ReLU6(),
            nn.MaxPool1d(3, 2, padding=1),
            nn.Conv1d(8, 6, 3, bias=False),
            nn.LeakyReLU(0.1),
            nn.AvgPool1d(2),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        ),
        (3, 40),
    ),
    "mlp": (
        plain(nn.Linear(20, 33), nn.BatchNorm1d(33), nn.Hardtanh(), nn.Dropout(), nn.Linear(33, 17), nn.Linear(17, 5)),
        (20,),
    ),
    "pooling": (
        plain(
            nn.ZeroPad2d((1, 0, 2, 1)),
            nn.Conv2d(2, 9, (3, 2), dilation=(1, 2)),
            nn.AvgPool2d(3, 2, 1),
            nn.AdaptiveAvgPool2d((2, 3)),
            nn.Identity(),
            nn.Flatten(1),
            nn.Linear(54, 4),
        ),
        (2, 10, 13),
    ),
}


@pytest.mark.parametrize("binarizer", ["dorefa", "scaled-sign-filter"])
@pytest.mark.parametrize("name", MODELS)
def test_equals_torch(name: str, binarizer: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, shape = MODELS[name]
    model = randomize(build())
    few = name in ("dense", "sequence", "pooling")  # then all layers are binary
    fs.binarize_(model, "ste", binarizer=binarizer, skip=() if few else fs.first_and_last(model))
    check(model, shape, tmp_path / "model.safetensors")


def test_real_images_on_real_weights(tmp_path: Path) -> None:
    """The embedded images through the network that comes with the package, binarized."""
    weights = Path(fs.__file__).parent / "pretrained" / "resnet20_cifar10.safetensors"
    if not weights.exists():
        pytest.skip("the pretrained weights are not in this checkout")
    test = fs.data.load("mini").test.subset(slice(0, 100))
    model = fs.models.resnet20()
    model.load_state_dict(fs.load_weights(weights))
    fs.binarize_(model.eval(), "ste", skip=fs.first_and_last(model))
    packed = pack(model, tmp_path / "a.safetensors", mean=test.mean, std=test.std, classes=test.classes)
    mean, std = (torch.tensor(values)[:, None, None] for values in (test.mean, test.std))
    with torch.no_grad():
        expected = model((test.images.float() / 255 - mean) / std).numpy()
    engine = load_packed(packed.path)
    actual = engine(engine.preprocess(test.images.permute(0, 2, 3, 1).numpy()))
    error = np.abs(actual - expected).max(1) / np.abs(expected).max(1)
    assert error.max() < 1e-4
    top = np.sort(expected, axis=1)
    clear = top[:, -1] - top[:, -2] > 1e-3
    assert (actual.argmax(1) == expected.argmax(1))[clear].all()


def test_layers_that_take_the_signs_of_their_input(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = randomize(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 9, 3, padding=1), nn.Flatten()))
    fs.binarize_(model, "ste", only="2", activations="sign")
    x = torch.randn(5, 3, 6, 6)
    expected = model(x).detach().numpy()
    for number, form in enumerate([model, fs.freeze(model)]):
        packed = pack(form, tmp_path / f"{number}.safetensors", input_shape=(3, 6, 6))
        for backend in available_backends():
            engine = load_packed(packed.path, backend)
            assert engine.model.graph.nodes[1]["sign_input"]
            np.testing.assert_allclose(engine(x.numpy()), expected, rtol=1e-4, atol=1e-3)


def test_a_hook_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    model[1].register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedLayerError, match="1 has a forward hook"):
        pack(model, tmp_path / "a.safetensors", input_shape=(3, 2, 2))
    other = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
    other[1].register_forward_hook(lambda _module, _inputs, output: 2 * output)
    with pytest.raises(UnsupportedLayerError, match="1 has a forward hook"):
        pack(other, tmp_path / "a.safetensors", input_shape=(3, 2, 2))
    whole = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    whole.register_forward_pre_hook(lambda _module, inputs: (-inputs[0],))
    with pytest.raises(UnsupportedLayerError, match="the model has a forward hook"):
        pack(whole, tmp_path / "a.safetensors", input_shape=(3, 2, 2))


class InPlace(nn.Module):
    """Tensors that are read again after they were changed."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.clip = nn.Hardtanh(inplace=True)

    def change(self, x: Tensor) -> Tensor:
        forms = {
            "layer": lambda: self.relu(x),
            "clipped": lambda: self.clip(x),
            "by name": lambda: F.relu(x, inplace=True),
            "by place": lambda: F.relu(x, True),
            "bounds": lambda: F.hardtanh(x, -0.5, 0.5, True),
            "method": lambda: x.relu_(),
            "dropout": lambda: F.dropout(x, training=False, inplace=True),
        }
        return forms[self.form]()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.form == "sum":
            y = self.conv(x)
            z = x
            z += y
            return torch.flatten(x + y, 1)
        if self.form == "statement":
            F.relu(x, inplace=True)
            return torch.flatten(self.conv(x) + x, 1)
        if self.form in ("view", "viewed"):
            flat = torch.flatten(x, 1)
            self.relu(flat if self.form == "view" else x)
            return torch.flatten(self.conv(x), 1) + flat
        return torch.flatten(self.conv(self.change(x)) + x, 1)


@pytest.mark.parametrize(
    "form", ["layer", "clipped", "by name", "by place", "bounds", "method", "dropout", "sum", "statement"]
)
def test_what_is_changed_in_place_is_changed_for_all_who_read_it(form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = randomize(InPlace(form))
    fs.binarize_(model, "ste", only="conv")
    check(model, (3, 6, 6), tmp_path / "a.safetensors")


class Spelled(nn.Module):
    """The same calls in numpy's words, and with everything by name."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.form == "mean":
            return x.mean(axis=(2, 3), keepdims=False)
        if self.form == "cat":
            return torch.flatten(input=torch.cat([x, x], axis=1), start_dim=1)
        if self.form == "reshape":
            return x.reshape(shape=(-1, 16))
        if self.form == "sizes":
            features = x.size(1)
            features += 12
            return x.view(x.size(0), features)
        return x.mean((2, 3), dtype=torch.float64)


@pytest.mark.parametrize("form", ["mean", "cat", "reshape", "sizes", "dtype"])
def test_other_spellings(form: str, tmp_path: Path) -> None:
    model = Spelled(form).eval()
    if form == "dtype":
        with pytest.raises(UnsupportedLayerError, match="'dtype'; such a call has no packed form"):
            pack(model, tmp_path / "a.safetensors", input_shape=(3, 2, 2))
    else:
        check(model, (3, 2, 2), tmp_path / "a.safetensors")


@pytest.mark.parametrize("form", ["view", "viewed"])
def test_a_view_of_what_is_changed_is_refused(form: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedLayerError, match="in place that is also used in another shape"):
        pack(InPlace(form).eval(), tmp_path / "a.safetensors", input_shape=(3, 6, 6))


@pytest.mark.parametrize(
    ("channels", "groups", "binary"), [(2, 1, ["1"]), (66, 2, ["0", "1"]), (6, 2, ["0", "1"]), (6, 3, ["0", "1"])]
)
def test_packed_signs_never_lie_where_something_else_lay(
    channels: int, groups: int, binary: list[str], tmp_path: Path
) -> None:
    """Memory is used again by what has the same size; between packed signs there are bits that must stay 0."""
    torch.manual_seed(0)
    first, second = (nn.Conv2d(channels, channels, 3, padding=1, groups=g) for g in (1, groups))
    model = nn.Sequential(first, second, nn.Flatten())
    fs.binarize_(model, "bnn", only=binary)
    check(model, (channels, 6, 6), tmp_path / "a.safetensors")


@pytest.mark.parametrize("backend", available_backends())
def test_a_maximum_of_what_is_no_number_is_none(backend: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.MaxPool2d(2), nn.Flatten())
    pack(model.eval(), tmp_path / "a.safetensors", input_shape=(1, 4, 4))
    for place in range(4):  # in each corner of the window
        x = torch.randn(1, 1, 4, 4)
        x[0, 0, place // 2, place % 2] = np.nan
        with torch.no_grad():
            expected = np.isnan(model(x).numpy())
        assert expected.sum() == 1
        np.testing.assert_array_equal(np.isnan(load_packed(tmp_path / "a.safetensors", backend)(x.numpy())), expected)


def test_a_frozen_model_packs_to_the_same_bits(tmp_path: Path) -> None:
    model = randomize(fs.models.resnet8())
    fs.binarize_(model, "ste", skip=fs.first_and_last(model))
    one = pack(model, tmp_path / "a.safetensors")
    two = pack(fs.freeze(model), tmp_path / "b.safetensors")
    assert one.layers == two.layers
    x = np.random.default_rng(0).standard_normal((2, 3, 32, 32))
    np.testing.assert_array_equal(load_packed(one.path)(x), load_packed(two.path)(x))


def test_more_bits_stay_float_and_training_mode_survives(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
    fs.binarize_(model, "ste", binarizer="dorefa", bits=2)
    model.train()
    model[1].eval()
    packed = pack(model, tmp_path / "a.safetensors", example_input=torch.zeros(2, 3, 5, 5))
    assert [layer.binary for layer in packed.layers] == [False]
    assert model.training
    assert not model[1].training


def test_half_precision_is_smaller_and_close(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = randomize(fs.models.resnet8())
    fs.binarize_(model, "ste", skip=fs.first_and_last(model))
    full = pack(model, tmp_path / "a.safetensors")
    half = pack(model, tmp_path / "b.safetensors", dtype="float16")
    assert half.payload_bytes < full.payload_bytes
    x = np.random.default_rng(0).standard_normal((4, 3, 32, 32))
    expected = load_packed(full.path)(x)
    np.testing.assert_allclose(load_packed(half.path)(x), expected, rtol=0.05, atol=0.05 * np.abs(expected).max())


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.constant = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.ReLU(), nn.GroupNorm(1, 3)), r"1 is a GroupNorm; supported are Conv1d"),
        (nn.Sequential(nn.LSTM(3, 3)), "0 is a LSTM"),
        (nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect")), r"0: padding_mode='reflect'"),
        (nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)), "0 has no running statistics"),
        (nn.Sequential(nn.Conv2d(3, 3, 3), nn.Linear(6, 2)), r"1: a Linear layer needs \(batch, features\)"),
        (nn.Sequential(nn.Softmax(1)), "Softmax"),
        (Branches(), "can't trace Branches.forward"),
        (Calls(lambda x: x + 1), "adds a constant"),
        (Calls(lambda x: x.reshape(-1, 3, 4)), "reshape"),
        (Calls(lambda x: x.mean(1)), "mean over height and width"),
        (Calls(lambda x: x[:, 1:]), "strided slices"),
        (Calls(lambda x: F.pad(x, (1, 1), value=2.0)), "zeros"),
        (Calls(lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True)), "ceil_mode"),
        (Calls(lambda x: torch.cat([x, x], 2)), "along channels"),
        (Calls(lambda x: x), "one tensor that it computed"),
        (nn.Sequential(nn.Conv2d(4, 3, 3)), "expected .* for a weight of"),
    ],
)
def test_what_is_not_supported_is_named(model: nn.Module, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedLayerError, match=message):
        pack(model, tmp_path / "a.safetensors", input_shape=(3, 8, 8))
    assert not list(tmp_path.iterdir())


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    model, path = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), tmp_path / "a.safetensors"
    shape = (3, 2, 2)
    with pytest.raises(ValueError, match="dtype='int8'"):
        pack(model, path, input_shape=shape, dtype="int8")
    with pytest.raises(ValueError, match="mean and std must both have 3"):
        pack(model, path, input_shape=shape, mean=[0.5], std=[0.5])
    with pytest.raises(ValueError, match="2 class names for 3 outputs"):
        pack(model, path, input_shape=shape, classes=["a", "b"])
    with pytest.raises(ValueError, match="JSON can't express"):
        pack(model, path, input_shape=shape, result={"accuracy": float("nan")})
    with torch.no_grad():
        model[1].bias.fill_(1e6)
    with pytest.raises(ValueError, match=r"1\.bias doesn't fit into float16"):
        pack(model, path, input_shape=shape, dtype="float16")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {},
            r"the model itself can't compute an input of shape \(3, 32, 32\), which was taken as none was given \(mat1",
        ),
        ({"input_shape": (3, 9, 9)}, r"can't compute an input of shape \(3, 9, 9\) \(mat1"),
        ({"example_input": torch.zeros(1, 4, 8, 8)}, r"an input of shape \(4, 8, 8\) .*give its input_shape$"),
    ],
)
def test_an_input_that_the_model_refuses_is_named(given, sentence, tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 5)).train()
    fs.binarize_(model, "ste")
    with pytest.raises(UnsupportedLayerError, match=sentence):
        fs.pack(model, tmp_path / "p.safetensors", **given)
    assert model.training
    fs.pack(model, tmp_path / "p.safetensors", input_shape=tuple(np.array([3, 8, 8])))


@pytest.mark.parametrize("shape", [3, (3, 8.0, 8), "abc"])
def test_a_shape_is_whole_numbers(shape, tmp_path):
    with pytest.raises(TypeError, match=r"give whole numbers, for example \(3, 32, 32\)"):
        fs.pack(nn.Linear(3, 2), tmp_path / "p.safetensors", input_shape=shape)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numbers_that_are_not_finite_are_said_to_be_so(dtype, tmp_path):
    model = nn.Sequential(nn.Linear(4, 3))
    model[0].weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match="weight isn't finite: the network is broken"):
        fs.pack(model, tmp_path / "p.safetensors", input_shape=(4,), dtype=dtype)
