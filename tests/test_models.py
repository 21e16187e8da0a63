import copy
import hashlib
import pickle

import pytest
import torch
from torch import nn

import fastslow as fs
from fastslow.models import get_model, list_models

BN = ("weight", "bias", "running_mean", "running_var")

# ResNet-8 in full: every longer ResNet repeats the block of its stage. A name with one number is a BatchNorm.
RESNET8 = """
conv1 16 3 3 3
bn1 16
layer1.0.conv1 16 16 3 3
layer1.0.bn1 16
layer1.0.conv2 16 16 3 3
layer1.0.bn2 16
layer2.0.conv1 32 16 3 3
layer2.0.bn1 32
layer2.0.conv2 32 32 3 3
layer2.0.bn2 32
layer2.0.downsample.0 32 16 1 1
layer2.0.downsample.1 32
layer3.0.conv1 64 32 3 3
layer3.0.bn1 64
layer3.0.conv2 64 64 3 3
layer3.0.bn2 64
layer3.0.downsample.0 64 32 1 1
layer3.0.downsample.1 64
fc 10 64
"""

VGG_SMALL = """
conv1 128 3 3 3
bn1 128
conv2 128 128 3 3
bn2 128
conv3 256 128 3 3
bn3 256
conv4 256 256 3 3
bn4 256
conv5 512 256 3 3
bn5 512
conv6 512 512 3 3
bn6 512
fc 10 8192
"""


def expand(table: str) -> dict[str, tuple[int, ...]]:
    """The keys and shapes of a state_dict from one line a layer."""
    shapes: dict[str, tuple[int, ...]] = {}
    for line in table.strip().splitlines():
        name, *numbers = line.split()
        shape = tuple(map(int, numbers))
        if len(shape) == 1:
            shapes |= {f"{name}.{key}": shape for key in BN} | {f"{name}.num_batches_tracked": ()}
        else:
            shapes[f"{name}.weight"] = shape
            if len(shape) == 2:
                shapes[f"{name}.bias"] = shape[:1]
    return shapes


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}


@pytest.mark.parametrize(("name", "table"), [("resnet8", RESNET8), ("vgg_small", VGG_SMALL)])
def test_keys_and_shapes(name, table):
    assert shapes_of(get_model(name)) == expand(table)


# MD5 of the sorted lines "key shape" of the float weights that MetaQuant published, taken from the files themselves.
@pytest.mark.parametrize(
    ("name", "num_classes", "md5"),
    [
        ("resnet20", 10, "baab2cf59438c3950e8ba8baba9f3f6d"),
        ("resnet32", 10, "ff83bc5ec0f530f7ab127b0163d59aef"),
        ("resnet44", 10, "76d171c9161e115c843eba24d2e551a2"),
        ("resnet56", 100, "c4f17ba352833c4b7d801bfd160ae3ad"),
    ],
)
def test_keys_match_published_weights(name, num_classes, md5):
    shapes = shapes_of(get_model(name, num_classes=num_classes))
    lines = sorted(f"{key} {shape}" for key, shape in shapes.items())
    assert hashlib.md5("\n".join(lines).encode()).hexdigest() == md5


@pytest.mark.parametrize(
    ("name", "parameters", "layers"),
    [
        ("resnet8", 78_042, 10),
        ("resnet20", 272_474, 22),
        ("resnet32", 466_906, 34),
        ("resnet44", 661_338, 46),
        ("resnet56", 855_770, 58),
        ("resnet110", 1_730_714, 112),
        ("vgg_small", 4_660_106, 7),
        ("resnet18", 11_689_512, 21),
        ("resnet34", 21_797_672, 37),
    ],
)
def test_size(name, parameters, layers):
    model = get_model(name)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in model.modules()) == layers


def test_bn_before_fc_adds_one_batch_norm():
    plain, extra = get_model("resnet8"), get_model("resnet8", bn_before_fc=True)
    assert shapes_of(extra) == shapes_of(plain) | {f"bn2.{key}": (64,) for key in BN} | {"bn2.num_batches_tracked": ()}
    missing, unexpected = extra.load_state_dict(plain.state_dict(), strict=False)
    assert unexpected == []
    assert {key.split(".")[0] for key in missing} == {"bn2"}
    features = torch.randn(16, 3, 32, 32)
    assert not torch.equal(plain(features), extra(features))


@pytest.mark.parametrize("name", ["resnet8", "vgg_small", "resnet18"])
@pytest.mark.parametrize("train", [True, False])
def test_forward_shape_and_gradient(name, train):
    model = get_model(name, num_classes=7).train(train)
    x = torch.randn(2, 3, 32, 32)
    logits = model(x)
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("size", [8, 33, 64])
def test_resnet_takes_any_size(size):
    assert get_model("resnet8").eval()(torch.randn(1, 3, size, size + 1)).shape == (1, 10)


@pytest.mark.parametrize("size", [8, 35, 64])
def test_vgg_small_of_another_size(size):
    assert get_model("vgg_small", image_size=size).eval()(torch.randn(1, 3, size, size)).shape == (1, 10)


def test_the_imagenet_stem_takes_a_224_pixel_image_to_56_and_the_last_stage_to_7():
    model = get_model("resnet18", num_classes=3).eval()
    sides = {}
    for name in ("layer1", "layer2", "layer3", "layer4"):
        model.get_submodule(name).register_forward_hook(
            lambda m, i, out, name=name: sides.update({name: out.shape[-1]})
        )
    with torch.no_grad():
        assert model(torch.randn(1, 3, 224, 224)).shape == (1, 3)
    assert sides == {"layer1": 56, "layer2": 28, "layer3": 14, "layer4": 7}
    # The names of the weights that are usually published for it: a strict load must take them.
    names = {"conv1.weight", "bn1.running_mean", "layer2.0.downsample.0.weight", "layer4.1.bn2.bias", "fc.bias"}
    assert names <= model.state_dict().keys()
    assert len(model.state_dict()) == 122


def test_a_binary_resnet18_packs_and_computes_the_same(tmp_path):
    model = get_model("resnet18", num_classes=3)
    fs.binarize_(model, "ste", skip=["conv1", "fc"])
    model.eval()
    fs.pack(model, tmp_path / "model.safetensors", input_shape=(3, 64, 64))
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = model(x)
    packed = torch.from_numpy(fs.load_packed(tmp_path / "model.safetensors")(x.numpy()))
    torch.testing.assert_close(packed, expected, rtol=1e-3, atol=1e-3)


def test_single_image_in_training_mode_of_resnet_without_head_bn():
    assert get_model("resnet8").train()(torch.randn(1, 3, 32, 32)).shape == (1, 10)


@pytest.mark.parametrize("name", ["resnet8", "resnet20", "vgg_small"])
def test_init_is_deterministic(name):
    torch.manual_seed(3)
    first = get_model(name).state_dict()
    torch.manual_seed(3)
    second = get_model(name).state_dict()
    other = get_model(name).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])


@pytest.mark.parametrize("name", ["resnet20", "vgg_small"])
def test_init_is_kaiming(name):
    torch.manual_seed(0)
    for module in get_model(name).modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 5000:
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)


@pytest.mark.parametrize("name", ["resnet8", "vgg_small"])
def test_channels_last_gives_the_same(name):
    torch.manual_seed(0)
    model = get_model(name).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = model(x)
        got = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet8", "vgg_small"])
def test_compiles_as_one_graph(name):
    model = get_model(name).eval()
    x = torch.randn(2, 3, 32, 32)
    # The eager backend tests what is ours, that nothing breaks the graph, without the wait for a C++ compiler.
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(x), model(x))


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_equal_and_independent(copier):
    model = get_model("resnet8", bn_before_fc=True).eval()
    twin = copier(model)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(twin(x), model(x))
    with torch.no_grad():
        twin.fc.weight.zero_()
    assert model.fc.weight.abs().sum() > 0


def test_list_and_unknown_names():
    ours = [
        *("resnet8", "resnet20", "resnet32", "resnet44", "resnet56", "resnet110", "vgg_small"),
        *("resnet18", "resnet34"),
        *("resnet20_bireal", "resnet18_bireal", "resnet20_irnet", "resnet20_reste", "wide_resnet20"),
    ]
    assert list_models()[: len(ours)] == ours  # then what other tests of this process have registered
    with pytest.raises(ValueError, match=r"'resnet21'.*resnet20"):
        get_model("resnet21")
    with pytest.raises(ValueError, match="resnet8"):  # nothing is near: all are named
        get_model("???")
    with pytest.raises(TypeError, match="bn_before_fc"):
        get_model("vgg_small", bn_before_fc=True)
