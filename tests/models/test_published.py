"""Parameter counts of the published architectures, each as the sum of its layers."""

import pytest
import torch

from unalike._utils.errors import UnalikeError
from unalike.models import model, registry
from unalike.models.vit import Attention


def size(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def conv(before: int, after: int, side: int = 3) -> int:
    """A convolution without bias and the norm after it."""
    return before * after * side**2 + 2 * after


def residual(
    colours: int, widths: tuple[int, ...], blocks: tuple[int, ...], classes: int, projected: bool = True
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
    block = 4 * width + 3 * width * width + 3 * width + width * width + width + 8 * width * width + 5 * width
    return patch * width + width + width + (patches + 1) * width + depth * block + 2 * width + width * classes + classes


DEEP, EIGHTEEN, THIRTYFOUR = (64, 128, 256, 512), (2, 2, 2, 2), (3, 4, 6, 3)

COUNTS = [
    ("logistic", (20,), 10, 20 * 10 + 10, 210),
    ("2nn", (1, 28, 28), 10, 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10, 199_210),
    ("two_nn", (1, 28, 28), 10, 199_210, 199_210),
    ("emnist_cnn", (1, 28, 28), 62, 25 * 16 + 16 + 16 * 25 * 32 + 32 + 7 * 7 * 32 * 62 + 62, 110_526),
    ("resnet20", (3, 32, 32), 10, residual(3, (16, 32, 64), (3, 3, 3), 10), 272_474),
    ("resnet20(shortcut='pad')", (3, 32, 32), 10, residual(3, (16, 32, 64), (3, 3, 3), 10, False), 269_722),
    ("resnet18", (3, 32, 32), 10, residual(3, DEEP, EIGHTEEN, 10), 11_173_962),
    ("resnet34(norm='group')", (3, 32, 32), 10, residual(3, DEEP, THIRTYFOUR, 10), 21_282_122),
    ("wrn56_4", (3, 32, 32), 10, residual(3, (64, 128, 256), (9, 9, 9), 10), 13_628_234),
    ("densenet121", (3, 32, 32), 10, dense(3, 10), 6_956_298),
    ("vit", (3, 32, 32), 10, transformer(64, 48, 192, 12, 10), 5_362_762),
    ("textcnn(vocabulary=50)", (9,), 2, 50 * 300 + 300 * 100 * (3 + 4 + 5) + 300 + 300 * 2 + 2, 375_902),
    ("conditional_linear", (10,), None, 11 * 10, 110),
    ("conditional_ensemble", (10,), None, 11 * 8 + 10 * 8, 168),
    ("conditional_mlp(hidden=(7,), statistic=3)", (10,), None, 13 * 7 + 7 + 7 + 1, 106),
    ("conditional_cnn", (1, 28, 28), 62, 576 + 32 + 18496 + 36928 + (576 + 62) * 64 + 64 + 64 * 62 + 62, 100_958),
]


@pytest.mark.parametrize(("spec", "shape", "classes", "by_layers", "published"), COUNTS)
def test_published_model_has_published_parameters(spec, shape, classes, by_layers, published):
    assert size(model(spec, shape, classes)) == by_layers == published


@pytest.mark.parametrize("name", sorted(set(registry) - {"textcnn"}))
def test_published_model_maps_two_images_to_logits(name):
    torch.manual_seed(0)
    shape, context = (3, 32, 32), {}
    statistic = {"statistic": 4} if name in ("conditional_linear", "conditional_ensemble", "conditional_mlp") else {}
    module = model(name, shape, 5, **statistic).eval()
    if name.startswith("conditional"):
        context = {"context": {"conditional": {"statistic": torch.rand(4 if statistic else 3 * 32 * 32 + 5)}}}
    with torch.no_grad():
        out = module(torch.rand(2, *shape), **context)
    assert out.shape == (2, 5) and out.isfinite().all()


def test_resnet_accepts_images_of_other_sizes():
    for shape in ((3, 64, 64), (1, 28, 28), (1, 7, 9)):
        assert model("resnet20", shape, 4).eval()(torch.rand(2, *shape)).shape == (2, 4)


def test_resnet_with_group_norm_has_no_buffers():
    for name in ("resnet20", "resnet18", "wrn56_4", "densenet121"):
        assert not list(model(name, (3, 32, 32), 10, norm="group").buffers())


def test_model_defaults_are_published():
    assert size(model("resnet20")) == 272_474


def test_attention_equals_torch_multi_head_attention():
    ours, theirs = Attention(12, 3), torch.nn.MultiheadAttention(12, 3, batch_first=True)
    state = {"in_proj_weight": ours.qkv.weight, "in_proj_bias": ours.qkv.bias}
    theirs.load_state_dict(state | {"out_proj.weight": ours.out.weight, "out_proj.bias": ours.out.bias})
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
    with pytest.raises(UnalikeError, match=r"shape \(3,\), expected \(4,\); build the model with statistic=3"):
        module(torch.rand(2, 4), {"conditional": {"statistic": torch.rand(3)}})


def test_conditional_cnn_error_names_its_option():
    module = model("conditional_cnn(components=2)", (1, 8, 8), 3)
    wanted = r"shape \(192,\), expected \(134,\); condition it by conditional\(statistic='pca', components=2\), as it was built"
    with pytest.raises(UnalikeError, match=wanted):
        module(torch.rand(2, 1, 8, 8), {"conditional": {"statistic": torch.rand(192)}})


def test_conditional_linear_is_bilinear_in_input_and_statistic():
    module, x, mu = model("conditional_linear", (3,), None), torch.rand(5, 3), torch.rand(3)
    w = module.head.weight.reshape(3, 4)  # the transpose of the paper's W
    expected = torch.cat([x, torch.ones(5, 1)], 1) @ w.T @ mu
    assert torch.allclose(module(x, {"conditional": {"statistic": mu}})[:, 0], expected, atol=1e-6)


def test_conditional_ensemble_equals_mixture_of_experts():
    module, x, mu = model("conditional_ensemble(experts=2)", (3,), None), torch.rand(5, 3), torch.rand(3)
    experts = torch.cat([x, torch.ones(5, 1)], 1) @ module.head.weight.reshape(2, 4).T
    expected = experts @ (module.gate[0].weight @ mu).softmax(0)
    assert torch.allclose(module(x, {"conditional": {"statistic": mu}})[:, 0], expected, atol=1e-6)
