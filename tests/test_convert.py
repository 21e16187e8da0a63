"""Between plain and binary models: nothing but the bits changes."""

from __future__ import annotations

import copy
import logging
import pickle

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel

import fastslow as fs
from fastslow.layers import BinaryConv2d, BinaryLinear, Sign
from fastslow.weights import load_strictly


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(self.block(torch.relu(self.conv1(x))).mean((2, 3)))


X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def binary_net(**kwargs):
    torch.manual_seed(0)
    net = Net()
    fs.binarize_(net, kwargs.pop("method", "ste"), **kwargs)
    return net


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(4, 6, 3), (2, 4, 7, 7)),
        (nn.Conv2d(4, 6, (1, 3), stride=(2, 1), padding=(0, 2), dilation=2, groups=2), (2, 4, 9, 9)),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", groups=4), (1, 4, 5, 5)),
        (nn.Conv2d(4, 4, 3, padding=2, padding_mode="reflect", bias=False), (1, 4, 5, 5)),
        (nn.Conv2d(4, 4, 3, padding="same", padding_mode="replicate"), (1, 4, 5, 5)),
        (nn.Conv1d(3, 5, 4, stride=3, padding=2), (2, 3, 11)),
        (nn.Conv1d(3, 3, 3, padding=1, padding_mode="reflect", groups=3), (2, 3, 8)),
        (nn.Linear(5, 3), (4, 5)),
        (nn.Linear(5, 3, bias=False), (2, 4, 5)),
    ],
)
@pytest.mark.parametrize("method", ["ste", "fsg-weight"])
def test_every_layer_computes_with_its_bits(layer, shape, method):
    layer = copy.deepcopy(layer)
    plain = copy.deepcopy(layer)
    weight = layer.weight
    fs.binarize_(layer, method)
    assert layer.weight is weight
    assert isinstance(layer, type(plain))
    with torch.no_grad():
        plain.weight.copy_(layer.binary_weight)
    assert set(layer.binary_weight.unique().tolist()) <= {-1.0, 1.0}
    x = torch.randn(shape)
    for training in (True, False):
        assert torch.equal(layer.train(training)(x), plain(x))


def test_keys_parameters_and_strict_loading():
    plain, net = Net(), binary_net()
    assert list(net.state_dict()) == list(plain.state_dict())
    assert [p.shape for p in net.parameters()] == [p.shape for p in plain.parameters()]
    net.load_state_dict(plain.state_dict())  # after
    other = Net()
    other.load_state_dict(net.state_dict())  # and back into a plain one
    assert torch.equal(net.conv1.weight, plain.conv1.weight)


def test_report_and_log(caplog):
    net = Net()
    with caplog.at_level(logging.INFO, logger="fastslow"):
        report = fs.binarize_(net, "ste", skip=fs.first_and_last(net))
    assert report.converted == ("block.0",)
    assert report.left == {"conv1": "skipped", "fc": "skipped"}
    assert "binarized 1 layers" in caplog.text
    assert "conv1: skipped" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "converted"),
    [
        ({}, {"conv1", "block.0", "fc"}),
        ({"skip": "conv1"}, {"block.0", "fc"}),
        ({"skip": ["*1", "fc"]}, {"block.0"}),
        ({"only": "block*"}, {"block.0"}),
        ({"only": lambda name, module: isinstance(module, nn.Linear)}, {"fc"}),
        ({"skip": lambda name, module: name == "fc", "only": ["*"]}, {"conv1", "block.0"}),
    ],
)
def test_choosing_layers(arguments, converted):
    assert set(fs.binary_layers(binary_net(**arguments))) == converted


def test_a_pattern_means_the_full_name():
    net = nn.ModuleDict({"conv1": nn.Conv2d(1, 1, 1), "layer1": nn.ModuleDict({"conv1": nn.Conv2d(1, 1, 1)})})
    fs.binarize_(net, "ste", skip="conv1")
    assert list(fs.binary_layers(net)) == ["layer1.conv1"]


def compiled(module):
    return torch.compile(module, backend="eager")


@pytest.mark.parametrize("wrap", [nn.DataParallel, AveragedModel, compiled, lambda net: compiled(nn.DataParallel(net))])
def test_prefixes_of_wrappers_do_not_count(wrap, tmp_path):
    wrapped = wrap(Net())
    report = fs.binarize_(wrapped, "ste", skip=["conv1", "fc"])
    assert report.converted == ("block.0",)
    assert type(fs.freeze(wrapped)) is Net
    fs.save_weights(wrapped, tmp_path / "w.safetensors")
    Net().load_state_dict(fs.load_weights(tmp_path / "w.safetensors"))
    safetensors.torch.save_file({f"module.{k}": v for k, v in Net().state_dict().items()}, tmp_path / "w.safetensors")
    Net().load_state_dict(fs.load_weights(tmp_path / "w.safetensors"))  # of a program that knows nothing of this


def test_a_compiled_part_of_a_model_keeps_its_plain_name(tmp_path):
    net = Net()
    net.block = compiled(net.block)
    assert fs.binarize_(net, "ste", skip=["conv1", "fc"]).converted == ("block.0",)
    fs.save_weights(net, tmp_path / "w.safetensors")
    Net().load_state_dict(fs.load_weights(tmp_path / "w.safetensors"))
    load_strictly(net, fs.load_weights(tmp_path / "w.safetensors"), "w")


class Doubled(nn.Module):
    """A model of one's own whose only child happens to be called as a wrapper's."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.module = net

    def forward(self, x):
        return 2 * self.module(x)


def test_a_child_that_is_called_module_is_no_wrapped_model(tmp_path):
    torch.manual_seed(0)
    net = Doubled(nn.Sequential(nn.Linear(3, 4), Doubled(nn.Linear(4, 4))))
    assert fs.binarize_(net, "ste").converted == ("module.0", "module.1.module")
    x = torch.randn(2, 3)
    frozen = fs.freeze(net)
    assert type(frozen) is Doubled
    torch.testing.assert_close(frozen(x), net.eval()(x))
    fs.save_weights(net, tmp_path / "w.safetensors")
    net.load_state_dict(fs.load_weights(tmp_path / "w.safetensors"))


def test_subclasses_attention_and_converted_layers_are_left_alone():
    class Own(nn.Conv2d):
        def forward(self, input):
            return super().forward(input) * 2

    net = nn.ModuleDict({"own": Own(1, 1, 1), "attention": nn.MultiheadAttention(4, 2), "fc": nn.Linear(2, 2)})
    report = fs.binarize_(net, "ste")
    assert report.converted == ("fc",)
    assert "behaviour of its own" in report.left["own"]
    assert "attention.out_proj" in report.left
    net["more"] = nn.Linear(2, 2)
    assert fs.binarize_(net, "fsg").left["fc"] == "binary already (ste)"


def test_what_has_no_binary_form_is_named():
    net = nn.ModuleDict(
        {
            "up": nn.ConvTranspose2d(2, 2, 2),
            "video": nn.Conv3d(1, 1, 1),
            "lazy": nn.LazyLinear(4),
            "normed": nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
            "fc[0]": nn.Linear(3, 3),
            "fc[1]": nn.Linear(3, 3),
        }
    )
    report = fs.binarize_(net, "ste", skip=["lazy", "fc[0]"])  # a name is itself, also where it could be a pattern
    assert report.converted == ("fc[1]",)
    assert report.left["up"] == "there is no binary ConvTranspose2d"
    assert report.left["video"] == "there is no binary Conv3d"
    assert report.left["lazy"] == report.left["fc[0]"] == "skipped"
    assert "normed" in report.left
    assert fs.first_and_last(net) == ["fc[0]", "fc[1]"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_that_are_made_of_others():
    net = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 3), nn.Linear(3, 3))
    assert "made of other parameters" in fs.binarize_(net, "ste", skip="2").left["0"]
    prune.random_unstructured(net[1], "weight", 0.5)
    with pytest.raises(ValueError, match="the weight of 1 is made of other parameters"):
        fs.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.1))


def test_transformer_encoder_layers_use_the_bits_in_evaluation_too():
    torch.manual_seed(0)
    net = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    fs.binarize_(net, "ste")
    frozen = fs.freeze(net).eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(x), frozen(x))
        torch.testing.assert_close(net.train()(x), frozen(x))


@pytest.mark.parametrize("method", ["ste", "fsg-weight"])
def test_freeze_gives_a_plain_model_with_exact_bits(method):
    net = binary_net(method=method, skip="fc").eval()
    frozen = fs.freeze(net)
    assert type(frozen.conv1) is nn.Conv2d
    assert type(frozen.fc) is nn.Linear
    assert set(frozen.conv1.weight.unique().tolist()) == {-1.0, 1.0}
    assert not frozen.conv1.weight.requires_grad
    assert frozen.fc.weight.requires_grad
    assert torch.equal(frozen(X), net(X))
    assert isinstance(net.conv1, BinaryConv2d), "the original stays binary"
    assert not any(key.startswith("_shift") for key in vars(frozen.conv1))
    assert set(vars(frozen.conv1)) <= set(vars(nn.Conv2d(1, 1, 1)))
    with pytest.raises(ValueError, match="no binary layer"):
        fs.freeze(frozen)


@pytest.mark.parametrize("binarizer", ["sign", "scaled-sign", "scaled-sign-filter"])
def test_other_binarizers(binarizer):
    net = binary_net(binarizer=binarizer).eval()
    assert torch.equal(fs.freeze(net)(X), net(X))
    per_filter = net.conv1.binary_weight.abs().flatten(1)
    assert torch.allclose(per_filter, per_filter[:, :1].expand_as(per_filter))


def test_copies_and_pickles_start_without_look_ahead():
    net = binary_net(method="fsg-weight")
    net.conv1._shift.fill_(7.0)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert isinstance(twin.conv1, BinaryConv2d)
        assert not twin.conv1._shift.any()
        assert torch.equal(twin.eval()(X), net.eval()(X))
        net.train()


def test_moving_takes_the_look_ahead_along():
    net = binary_net(method="fsg-weight").double()
    assert net.conv1._shift.dtype == torch.float64
    net.to("meta")
    assert net.conv1._shift.device.type == "meta"


def test_bits_show_in_repr():
    assert "bits=1, method=ste, binarizer=dorefa" in repr(binary_net())


@pytest.mark.parametrize("method", ["ste", "fsg-weight"])
def test_compiled_models_compute_the_same(method):
    net = binary_net(method=method)
    optimizer = fs.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.1))
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    twin = copy.deepcopy((net, optimizer))
    for _ in range(3):
        for opt, call in ((optimizer, compiled), (twin[1], twin[0])):
            opt.zero_grad()
            call(X).square().sum().backward()
            opt.step()
    for a, b in zip(net.parameters(), twin[0].parameters(), strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        torch.testing.assert_close(compiled.eval()(X), twin[0].eval()(X))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fs.binarize_(Net(), "fgs"), ValueError, "did you mean 'fsg'"),
        (lambda: fs.binarize_(Net(), "zzzzzz"), ValueError, "known: ste"),
        (lambda: fs.binarize_(Net(), "ste", skip="conv9"), ValueError, "'conv9' matches no layer"),
        (lambda: fs.binarize_(Net(), "ste", only=["fc", "nope.*"]), ValueError, r"'nope.\*' matches no layer"),
        (lambda: fs.binarize_(Net(), "ste", skip=[3]), TypeError, "3 is no pattern"),
        (lambda: fs.binarize_(Net(), "ste", skip="*"), ValueError, "nothing to binarize.*skipped"),
        (lambda: fs.binarize_(nn.ReLU(), "ste"), ValueError, "has no Conv1d, Conv2d or Linear"),
        (lambda: fs.binarize_(Net(), "fsg", betta=1), ValueError, "fsg has no field 'betta'; its fields: .*beta"),
        (lambda: fs.binarize_(Net(), "fsg", beta=1.5), ValueError, "beta=1.5"),
        (lambda: fs.binarize_(Net(), "fsg", length=0), ValueError, "length=0"),
        (lambda: fs.binarize_(Net(), "fsg", length="six"), ValueError, "length='six'"),
        (lambda: fs.binarize_(Net(), "fsg", beta="0.3"), ValueError, "beta=.0.3"),
        (lambda: fs.binarize_(Net(), "fcgrad", hidden=2.5), ValueError, "hidden=2.5"),
        (lambda: fs.binarize_(Net(), "fsg", layout="rows"), ValueError, "choose one of concat, per_weight"),
        (lambda: fs.binarize_(Net(), "fsg", projections=False, d_model=2), ValueError, "d_model=2 must equal patch=1"),
        (lambda: fs.binarize_(Net(), "fcgrad", hidden=0), ValueError, "hidden=0"),
        (lambda: fs.binarize_(Net(), "ste", bits=0), ValueError, "bits=0"),
        (lambda: fs.binarize_(nn.LazyConv2d(4, 3), "ste"), ValueError, "run one batch"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_learned_methods_refuse_one_weight_in_two_layers():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    with pytest.raises(ValueError, match="share one weight"):
        fs.binarize_(net, "fsg")
    assert type(net[0]) is nn.Linear, "a refused model stays as it was"
    fs.binarize_(net, "ste")
    assert isinstance(net[1], BinaryLinear)


def test_signs_are_exactly_one_and_pass_the_gradient_between_the_bounds():
    x = torch.cat([torch.randn(10_000), torch.tensor([0.0, 1.0, -1.0, 1.5])]).requires_grad_()
    y = Sign()(x)
    assert y.unique().tolist() == [-1.0, 1.0]
    assert torch.equal(y > 0, x > 0)
    y.sum().backward()
    assert torch.equal(x.grad, (x.abs() <= 1).float())


@pytest.mark.parametrize("method", ["ste", "rbnn", "fsg"])
def test_weights_that_are_not_finite_are_refused_before_anything_is_converted(method):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        model[2].weight[1, 2] = float("nan")
    with pytest.raises(ValueError, match=r"2\.weight isn't finite"):
        fs.binarize_(model, method)
    assert type(model[0]) is type(model[2]) is nn.Linear
    fs.binarize_(model, method, skip="2")


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_without_weights_is_left():
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 0))
    assert fs.binarize_(model, "fsg").left == {"1": "it has no weights"}
