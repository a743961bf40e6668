"""Parameter counts of the published architectures, each as the sum of its layers."""

from itertools import pairwise

import pytest
import torch

from unalike._utils.errors import UnalikeError
from unalike.core.pooling_order import pools_first
from unalike.models.registry import model, registry
from unalike.models.vit import Attention


def size(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def conv(before: int, after: int, side: int = 3) -> int:
    """A convolution without bias and the norm after it."""
    return before * after * side**2 + 2 * after


def residual(
    colours: int,
    widths: tuple[int, ...],
    blocks: tuple[int, ...],
    classes: int,
    projected: bool = True,
) -> int:
    total, before = conv(colours, widths[0]), widths[0]
    for after, count in zip(widths, blocks):
        total += conv(before, after) + (2 * count - 1) * conv(after, after)
        total += conv(before, after, 1) if projected and before != after else 0
        before = after
    return total + before * classes + classes


def dense(colours: int, classes: int) -> int:
    total, width = colours * 64 * 9, 64
    for i, count in enumerate((6, 12, 24, 16)):
        if i:
            total, width = total + 2 * width + width * width // 2, width // 2
        for _ in range(count):
            total, width = total + 2 * width + width * 128 + 2 * 128 + 128 * 32 * 9, width + 32
    return total + 2 * width + width * classes + classes


def transformer(patches: int, patch: int, width: int, depth: int, classes: int) -> int:
    block = (
        4 * width
        + 3 * width * width
        + 3 * width
        + width * width
        + width
        + 8 * width * width
        + 5 * width
    )
    return (
        patch * width
        + width
        + width
        + (patches + 1) * width
        + depth * block
        + 2 * width
        + width * classes
        + classes
    )


def mobile(colours: int, classes: int, width: float = 1.0) -> int:
    """Table 2 of MobileNetV2, with the widths in `CHANNELS` as the authors' code rounds them."""
    first, *stages, last = CHANNELS[width]
    total, before = conv(colours, first), first
    for after, expansion, count in zip(
        stages, (1, 6, 6, 6, 6, 6, 6), (1, 2, 3, 4, 3, 3, 1), strict=True
    ):
        for _ in range(count):
            inner = before * expansion
            total += conv(before, inner, 1) if expansion > 1 else 0
            total += conv(1, inner) + conv(inner, after, 1)
            before = after
    return total + conv(before, last, 1) + last * classes + classes


# 24 / 2 = 12 is rounded to 16
CHANNELS = {
    1.0: (32, 16, 24, 32, 64, 96, 160, 320, 1280),
    0.5: (16, 8, 16, 16, 32, 48, 80, 160, 1280),
}

# convolutions with bias of VGG-11: 1,792 + 73,856 + 295,168 + 590,080 + 1,180,160 + 3 * 2,359,808
VGG11 = sum(a * b * 9 + b for a, b in pairwise((3, 64, 128, 256, 256, 512, 512, 512, 512)))

DEEP, EIGHTEEN, THIRTYFOUR = (64, 128, 256, 512), (2, 2, 2, 2), (3, 4, 6, 3)

COUNTS = [
    ("logistic", (20,), 10, 20 * 10 + 10, 210),
    ("2nn", (1, 28, 28), 10, 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10, 199_210),
    ("two_nn", (1, 28, 28), 10, 199_210, 199_210),
    (
        "emnist_cnn",
        (1, 28, 28),
        62,
        25 * 16 + 16 + 16 * 25 * 32 + 32 + 7 * 7 * 32 * 62 + 62,
        110_526,
    ),
    # LeNet-5 with complete connections: 456 + 2,416 + 48,120 + 10,164 + 850
    (
        "lenet",
        (3, 32, 32),
        10,
        75 * 6 + 6 + 150 * 16 + 16 + 25 * 16 * 120 + 120 + 120 * 84 + 84 + 84 * 10 + 10,
        62_006,
    ),
    ("lenet", (1, 28, 28), 10, 25 * 6 + 6 + 2416 + 16 * 16 * 120 + 120 + 10_164 + 850, 44_426),
    # section 3 of McMahan et al. 2017: 832 + 51,264 + 1,606,144 + 5,130
    (
        "mcmahan_cnn",
        (1, 28, 28),
        10,
        25 * 32 + 32 + 32 * 25 * 64 + 64 + 49 * 64 * 512 + 512 + 512 * 10 + 10,
        1_663_370,
    ),
    # the usual VGG-11 for CIFAR: 9,225,610 without normalization, and two parameters for each of 2,752 channels with it
    ("vgg11(norm=None)", (3, 32, 32), 10, VGG11 + 512 * 10 + 10, 9_225_610),
    ("vgg11", (3, 32, 32), 10, VGG11 + 2 * (64 + 128 + 2 * 256 + 4 * 512) + 5130, 9_231_114),
    ("vgg11(norm='batch')", (3, 32, 32), 10, 9_231_114, 9_231_114),
    # FedNova's VGG-11: two linear layers of 512
    (
        "vgg11(norm=None, hidden=(512, 512))",
        (3, 32, 32),
        10,
        VGG11 + 2 * (512 * 512 + 512) + 5130,
        9_750_922,
    ),
    ("mobilenet_v2", (3, 32, 32), 10, mobile(3, 10), 2_236_682),
    ("mobilenet_v2(norm='group')", (3, 224, 224), 1000, mobile(3, 1000), 3_504_872),
    ("mobilenet_v2(width=0.5)", (3, 224, 224), 1000, mobile(3, 1000, 0.5), 1_968_680),
    # 4 gates x 256 units, two biases in torch; LEAF's 80 characters in and out: 640 + 272,384 + 526,336 + 20,560
    (
        "char_lstm(vocabulary=80)",
        (80,),
        80,
        80 * 8 + 1024 * (8 + 256 + 2) + 1024 * (512 + 2) + 257 * 80,
        819_920,
    ),
    ("resnet20", (3, 32, 32), 10, residual(3, (16, 32, 64), (3, 3, 3), 10), 272_474),
    (
        "resnet20(shortcut='pad')",
        (3, 32, 32),
        10,
        residual(3, (16, 32, 64), (3, 3, 3), 10, False),
        269_722,
    ),
    ("resnet18", (3, 32, 32), 10, residual(3, DEEP, EIGHTEEN, 10), 11_173_962),
    ("resnet34(norm='group')", (3, 32, 32), 10, residual(3, DEEP, THIRTYFOUR, 10), 21_282_122),
    # torchvision's resnet18 and resnet34: a 7x7 convolution in the place of the 3x3 one
    (
        "resnet18(stem='imagenet')",
        (3, 224, 224),
        1000,
        residual(3, DEEP, EIGHTEEN, 1000) + 3 * 64 * 40,
        11_689_512,
    ),
    (
        "resnet34(stem='imagenet')",
        (3, 32, 32),
        1000,
        residual(3, DEEP, THIRTYFOUR, 1000) + 3 * 64 * 40,
        21_797_672,
    ),
    ("wrn56_4", (3, 32, 32), 10, residual(3, (64, 128, 256), (9, 9, 9), 10), 13_628_234),
    ("densenet121", (3, 32, 32), 10, dense(3, 10), 6_956_298),
    ("vit", (3, 32, 32), 10, transformer(64, 48, 192, 12, 10), 5_362_762),
    (
        "textcnn(vocabulary=50)",
        (9,),
        2,
        50 * 300 + 300 * 100 * (3 + 4 + 5) + 300 + 300 * 2 + 2,
        375_902,
    ),
    ("conditional_linear", (10,), None, 11 * 11, 121),
    ("conditional_ensemble", (10,), None, 11 * 8 + 11 * 8, 176),
    ("conditional_mlp(hidden=(7,), statistic=3)", (10,), None, 13 * 7 + 7 + 7 + 1, 106),
    (
        "conditional_cnn",
        (1, 28, 28),
        62,
        576 + 32 + 18496 + 36928 + (576 + 62) * 64 + 64 + 64 * 62 + 62,
        100_958,
    ),
]


@pytest.mark.parametrize(("spec", "shape", "classes", "by_layers", "published"), COUNTS)
def test_published_model_has_published_parameters(spec, shape, classes, by_layers, published):
    assert size(model(spec, shape, classes)) == by_layers == published


@pytest.mark.parametrize("name", sorted(set(registry) - {"textcnn", "char_lstm", "unet"}))
def test_published_model_maps_two_images_to_logits(name):
    torch.manual_seed(0)
    shape, context = (3, 32, 32), {}
    statistic = (
        {"statistic": 4}
        if name in ("conditional_linear", "conditional_ensemble", "conditional_mlp")
        else {}
    )
    module = model(name, shape, 5, **statistic).eval()
    if name.startswith("conditional"):
        context = {
            "context": {
                "conditional": {"statistic": torch.rand(4 if statistic else 3 * 32 * 32 + 5)}
            }
        }
    with torch.no_grad():
        out = module(torch.rand(2, *shape), **context)
    assert out.shape == (2, 5) and out.isfinite().all()


def test_resnet_accepts_images_of_other_sizes():
    for shape in ((3, 64, 64), (1, 28, 28), (1, 7, 9)):
        assert model("resnet20", shape, 4).eval()(torch.rand(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize(
    ("stem", "sides"), [("cifar", [224, 224, 112, 56, 28]), ("imagenet", [56, 56, 28, 14, 7])]
)
def test_stem_decides_the_sides_of_all_stages_and_the_smallest_images_pass(stem, sides):
    module = model(f"resnet18(stem='{stem}')", (3, 224, 224), 4).to("meta")
    x, found = torch.empty(1, 3, 224, 224, device="meta"), []
    for layer in (module.stem, *module.stages):
        x = layer(x)
        found.append(x.shape[-1])
    assert found == sides
    small = model(f"resnet18(stem='{stem}')", (1, 1, 3), 4).eval()
    assert small(torch.rand(2, 1, 1, 3)).shape == (2, 4)


def test_resnet_with_group_norm_has_no_buffers():
    for name in ("resnet20", "resnet18", "wrn56_4", "densenet121", "vgg11", "mobilenet_v2"):
        assert not list(model(name, (3, 32, 32), 10, norm="group").buffers())


def test_vgg11_as_torchvision_has_its_parameters():
    with torch.device("meta"):  # 530 MB otherwise
        module = model("vgg11(norm=None, hidden=(4096, 4096))", (3, 224, 224), 1000)
    # 9,220,480 + (7 * 7 * 512 + 1) * 4096 + (4096 + 1) * 4096 + (4096 + 1) * 1000
    assert size(module) == 132_863_336


def test_mobilenet_halves_small_images_three_times_and_large_ones_five_times():
    module = model("mobilenet_v2(width=0.25)", (3, 32, 32), 4).eval()
    large = model("mobilenet_v2(width=0.25)", (3, 96, 96), 4).eval()
    assert module.body(torch.rand(1, 3, 32, 32)).shape[-2:] == (4, 4)
    assert large.body(torch.rand(1, 3, 96, 96)).shape[-2:] == (3, 3)


def test_char_lstm_reads_the_text_in_order_and_gives_logits_of_the_last_position():
    module = model("char_lstm(vocabulary=5, hidden=6)", (4,), 3).eval()
    text = torch.tensor([[2, 3, 4, 2], [3, 2, 4, 2]])
    whole, _ = module.lstm(module.characters(text))
    assert torch.equal(module(text), module.head(whole[:, 3]))
    assert not torch.allclose(*module(text))


@pytest.mark.parametrize(("name", "swaps"), [("lenet", 2), ("mcmahan_cnn", 2), ("vgg11", 5)])
def test_convolutions_pool_before_their_relu(name, swaps):
    layers = [*model(name, (3, 32, 32), 10).convolutions]
    moved = [after for before, after in zip(layers, pools_first(layers)) if before is not after]
    assert sum(isinstance(layer, torch.nn.MaxPool2d) for layer in moved) == swaps


def test_model_defaults_are_published():
    assert size(model("resnet20")) == 272_474


def test_attention_equals_torch_multi_head_attention():
    ours, theirs = Attention(12, 3), torch.nn.MultiheadAttention(12, 3, batch_first=True)
    state = {"in_proj_weight": ours.qkv.weight, "in_proj_bias": ours.qkv.bias}
    theirs.load_state_dict(
        state | {"out_proj.weight": ours.out.weight, "out_proj.bias": ours.out.bias}
    )
    x = torch.rand(2, 5, 12)
    assert torch.allclose(ours(x), theirs(x, x, x, need_weights=False)[0], atol=1e-6)


def test_textcnn_logits_do_not_depend_on_padding():
    module = model("textcnn(vocabulary=30)", (12,), 3).eval()
    text = torch.randint(1, 30, (2, 6))
    alone, padded = (module(torch.nn.functional.pad(text, (0, extra))) for extra in (0, 6))
    assert torch.allclose(alone, padded, atol=1e-6)
    short = module(torch.zeros(1, 12, dtype=torch.int64))
    assert torch.equal(short, module.head.bias[None])


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        ("resnet20", (10,), "expected images"),
        ("resnet18(norm='none')", (3, 32, 32), "unknown norm for resnet 'none'"),
        ("resnet20(shortcut='none')", (3, 32, 32), "unknown shortcut"),
        ("resnet34(stem='none')", (3, 32, 32), "unknown stem for resnet 'none'"),
        (
            "resnet18(stem='imagenet')",
            (10,),
            "resnet: found samples of shape .10,., expected images",
        ),
        ("lenet", (1, 15, 28), "15x28 pixels, expected 16x16"),
        ("vgg11", (3, 28, 28), "28x28 pixels, expected 32x32"),
        ("vgg11(norm='layer')", (3, 32, 32), "unknown norm for vgg 'layer'"),
        ("mobilenet_v2(width=0)", (3, 32, 32), "found width=0, expected a factor above 0"),
        ("char_lstm", (1, 8, 8), r"expected tokens \(length,\)"),
        ("char_lstm(layers=0)", (8,), "whole numbers from 1 to"),
        ("densenet121", (1, 4, 4), "4x4 pixels, expected 8x8"),
        ("vit", (3, 30, 32), "30x32 pixels do not divide into patches of patch=4"),
        ("vit(heads=5)", (3, 32, 32), "width=192 does not divide among heads=5"),
        ("textcnn", (3, 32, 32), r"expected tokens \(length,\)"),
        ("textcnn(dropout=1)", (9,), "dropout=1"),
        ("conditional_mlp(statistic=0)", (9,), "statistic=0"),
        ("3nn", (9,), "cannot read|unknown model"),
    ],
)
def test_published_model_with_invalid_spec_or_shape_raises(spec, shape, message):
    with pytest.raises(UnalikeError, match=message):
        model(spec, shape, 10)


@pytest.mark.parametrize("name", ["conditional_linear", "conditional_ensemble", "conditional_mlp"])
def test_conditional_model_without_statistic_raises(name):
    module = model(name, (4,), None)
    with pytest.raises(UnalikeError, match=r"found none.*conditional\(statistic="):
        module(torch.rand(2, 4), {})
    with pytest.raises(
        UnalikeError, match=r"shape \(3,\), expected \(5,\); build the model with statistic=3"
    ):
        module(torch.rand(2, 4), {"conditional": {"statistic": torch.rand(3)}})


def test_conditional_cnn_error_names_its_option():
    module = model("conditional_cnn(components=2)", (1, 8, 8), 3)
    wanted = r"shape \(192,\), expected \(134,\); condition it by conditional\(statistic='pca', components=2\), as it was built"
    with pytest.raises(UnalikeError, match=wanted):
        module(torch.rand(2, 1, 8, 8), {"conditional": {"statistic": torch.rand(192)}})


def test_conditional_linear_is_bilinear_in_input_and_statistic():
    module, x, mu = model("conditional_linear", (3,), None), torch.rand(5, 3), torch.rand(4)
    w = module.head.weight.reshape(4, 4)  # the transpose of the paper's W
    expected = torch.cat([x, torch.ones(5, 1)], 1) @ w.T @ mu
    assert torch.allclose(module(x, {"conditional": {"statistic": mu}})[:, 0], expected, atol=1e-6)


def test_conditional_ensemble_equals_mixture_of_experts():
    module, x, mu = (
        model("conditional_ensemble(experts=2)", (3,), None),
        torch.rand(5, 3),
        torch.rand(4),
    )
    experts = torch.cat([x, torch.ones(5, 1)], 1) @ module.head.weight.reshape(2, 4).T
    expected = experts @ (module.gate[0].weight @ mu).softmax(0)
    assert torch.allclose(module(x, {"conditional": {"statistic": mu}})[:, 0], expected, atol=1e-6)
