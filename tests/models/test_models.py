import pytest
import torch

from unalike._utils.errors import UnalikeError
from unalike.models.registry import model


def size(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "expected"),
    [
        ("linear", (1, 8, 8), 10, 64 * 10 + 10),
        ("linear", (5,), None, 5 + 1),
        ("mlp", (1, 28, 28), 10, 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10),
        ("mlp(hidden=(64, 32))", (64,), 3, 64 * 64 + 64 + 64 * 32 + 32 + 32 * 3 + 3),
        ("mlp(hidden=7)", (2,), None, 2 * 7 + 7 + 7 + 1),
        # 896 + 18496 + 36928 + 65600 + 650
        (
            "cnn",
            (3, 32, 32),
            10,
            3 * 32 * 9 + 32 + 32 * 64 * 9 + 64 + 64 * 64 * 9 + 64 + 1024 * 64 + 64 + 64 * 10 + 10,
        ),
        # 28 -> 26, 13 -> 11, 5 -> 3
        ("cnn", (1, 28, 28), 10, 32 * 9 + 32 + 18496 + 36928 + 9 * 64 * 64 + 64 + 650),
        # 8, 4, 2 with padding
        ("cnn", (1, 8, 8), 10, 32 * 9 + 32 + 18496 + 36928 + 4 * 64 * 64 + 64 + 650),
        ("cnn(norm='batch')", (3, 32, 32), 10, 122570 + 2 * (32 + 64 + 64)),
        (
            "cnn(norm='group', channels=(4, 6), hidden=5)",
            (1, 8, 9),
            2,
            40 + 8 + 222 + 12 + 6 * 16 * 5 + 5 + 12,
        ),
    ],
)
def test_model_has_expected_parameters_and_outputs(spec, shape, classes, expected):
    module = model(spec, shape, classes)
    assert size(module) == expected
    assert module(torch.rand(4, *shape)).shape == (4, classes or 1)
    assert isinstance(module.head, torch.nn.Linear) and module.head.out_features == (classes or 1)


def test_cnn_as_published_has_122570_parameters():
    assert size(model("cnn", (3, 32, 32), 10)) == 122_570


def test_model_seed_decides_weights_and_leaves_global_generator():
    before = torch.get_rng_state()
    first, again, other = (model("mlp", (4,), 3, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_model_options_beside_spec_are_used():
    assert size(model("mlp", (4,), 3, hidden=(5,))) == size(model("mlp(hidden=(5,))", (4,), 3))


def test_mlp_without_hidden_layers_is_linear():
    mlp, linear = model("mlp(hidden=())", (4,), 3), model("linear", (4,), 3)
    assert all(torch.equal(a, b) for a, b in zip(mlp.parameters(), linear.parameters()))


def test_mlp_hidden_accepts_number_or_list():
    assert (
        size(model("mlp(hidden=3)", (4,), 2))
        == size(model("mlp", (4,), 2, hidden=[3]))
        == 5 * 3 + 4 * 2
    )


def test_model_with_invalid_seed_raises():
    with pytest.raises(UnalikeError, match="found seed=None, expected a whole number"):
        model("mlp", (4,), 3, seed=None)
    for seed in (-1, 2**63):
        with pytest.raises(
            UnalikeError, match=f"found seed={seed}, expected 0 or more and less than"
        ):
            model("mlp", (4,), 3, seed=seed)
    assert size(model("mlp", (4,), 3, seed=2**63 - 1)) == size(model("mlp", (4,), 3))


def test_cnn_padding_option_is_used():
    assert size(model("cnn(padding=1)", (3, 32, 32), 10)) > 122_570


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        ("cnn", (64,), "use 'mlp' or 'linear' for rows"),
        (
            "cnn",
            (1, 3, 30),
            "images of 3 pixels shrink to nothing at .* with padding=1; use fewer channels or 'mlp';",
        ),
        ("cnn", (28, 28, 3), r"images of 3 pixels shrink .*; channels come first, \[C, H, W\]"),
        ("cnn(padding=0)", (1, 8, 8), "convolution 2 of 3|convolution 3 of 3"),
        ("cnn(norm='layer')", (1, 28, 28), "unknown norm for cnn 'layer'"),
        ("cnn(padding=-1)", (1, 28, 28), "padding=-1"),
        ("mlp(hidden=(0,))", (4,), "whole numbers from 1 to"),
        (f"mlp(hidden=({10**20},))", (4,), "whole numbers from 1 to"),
        ("mlp(hidden=(2000000000, 2000000000))", (4,), "cannot be made for .*memory"),
        ("mlp(width=3)", (4,), "it takes mlp"),
        ("mpl", (4,), "did you mean 'mlp'"),
        ("mlp", (), "input_shape"),
        ("mlp", 4, r"found input_shape=4, expected \(a whole number, \.\.\.\)"),
        ("cnn(channels=())", (1, 28, 28), r"found channels=\(\), expected whole numbers"),
        (
            "conditional_cnn(channels=())",
            (1, 28, 28),
            r"found channels=\(\), expected whole numbers",
        ),
        ("textcnn(widths=())", (4,), r"found widths=\(\), expected whole numbers"),
        ("cnn(hidden=(3, 4))", (1, 28, 28), r"found hidden=\(3, 4\), expected a whole number"),
        ("cnn(padding=1.5)", (1, 28, 28), "found padding=1.5, expected a whole number or None"),
        ("cnn(norm=3)", (1, 28, 28), "found norm=3, expected a text or None"),
        ("densenet121(norm=None)", (3, 32, 32), "found norm=None, expected a text"),
        (
            "conditional_ensemble(experts=(1, 2))",
            (4,),
            r"found experts=\(1, 2\), expected a whole number",
        ),
    ],
)
def test_model_with_invalid_spec_or_shape_raises(spec, shape, message):
    with pytest.raises(UnalikeError, match=message):
        model(spec, shape, 10)
