"""Gradients of stacked clients equal those of each client alone, for every model."""

import pytest
import torch
from torch.func import grad, vmap

from unalike.core.model import Model
from unalike.core.tasks.dense import Segmentation
from unalike.core.tasks.registry import task_for
from unalike.models.densenet import DenseNet
from unalike.models.registry import model, registry
from unalike.models.resnet import ResNet
from unalike.models.vgg import POOL, VGG

IMAGES = (3, 8, 8)
SMALL = {
    "cnn": "cnn(channels=(4, 4, 4), norm='batch')",
    "resnet18": "imagenet_stem",
    "resnet34": None,
    "wrn56_4": None,
    "densenet121": None,
    "vit": "vit(width=8, depth=2, heads=2)",
    "textcnn": "textcnn(vocabulary=20, embedding=6, filters=4, dropout=0)",
    "lenet": None,
    "mcmahan_cnn": None,
    "vgg11": "vgg",
    "mobilenet_v2": "mobilenet_v2(width=0.1, norm='group')",
    "char_lstm": None,
    "unet": "unet(width=4, depth=1)",
    "conditional_linear": "conditional_linear(statistic=5)",
    "conditional_ensemble": "conditional_ensemble(statistic=5)",
    "conditional_mlp": "conditional_mlp(statistic=5)",
    "conditional_cnn": "conditional_cnn(channels=(4, 4), hidden=6)",
}
"""Smaller variants that keep the test fast; None: another model stands for it, or torch cannot stack it (LSTM)."""

SPECS = [*filter(None, (SMALL.get(name, name) for name in registry))]
SPECS += ["resnet20(norm='group')", "resnet20(shortcut='pad')", "densenet"]


SMALLER = {
    "densenet": lambda: DenseNet(IMAGES, 4, blocks=(2, 1), growth=4),
    "imagenet_stem": lambda: ResNet(IMAGES, 4, widths=(4, 8), blocks=(1, 1), stem="imagenet"),
    "vgg": lambda: VGG(IMAGES, 4, layers=(4, POOL, 8, POOL), norm="batch", hidden=6),
}


def build(spec: str) -> torch.nn.Module:
    return SMALLER[spec]() if spec in SMALLER else model(spec, drawn(spec)[1], 4)


def drawn(spec: str):
    torch.manual_seed(0)
    if spec.startswith("textcnn"):
        return torch.randint(0, 20, (2, 3, 7)), (7,), {}
    length = 3 * 8 * 8 + 4 if "cnn" in spec else 5
    x = torch.rand(2, 3, *IMAGES, dtype=torch.float64)
    return x, IMAGES, {"conditional": {"statistic": torch.rand(2, length, dtype=torch.float64)}}


@pytest.mark.parametrize("spec", SPECS)
def test_vmap_gradients_equal_gradients_of_each_client(spec):
    x, _, context = drawn(spec)
    net = Model(build(spec).double())
    y = torch.tensor([[0, 1, 2], [3, 3, 1]])
    task = task_for(y)
    if spec.startswith("unet"):
        task = Segmentation(classes=4)
        y = y[..., None, None].expand(2, 3, *IMAGES[1:])
    params = {n: torch.stack([p, p + 0.01 * torch.rand_like(p)]) for n, p in net.params.items()}
    buffers = {n: torch.stack([b, b]) for n, b in net.buffers.items()}

    def loss(params, buffers, x, y, context):
        return task.losses(
            net(params, x, buffers=buffers, context=context, training=True).logits, y
        ).mean()

    stacked = vmap(grad(loss))(params, buffers, x, y, context)
    for k in range(2):
        mine = {entry: {n: t[k] for n, t in tree.items()} for entry, tree in context.items()}
        alone = grad(loss)({n: p[k] for n, p in params.items()}, net.buffers, x[k], y[k], mine)
        for n, g in alone.items():
            assert torch.allclose(stacked[n][k], g, rtol=1e-5, atol=1e-7), n
    assert any(g.abs().max() > 0 for g in stacked.values())


def test_model_features_equal_input_of_head():
    for spec in ("resnet20", "vit(width=8, depth=1, heads=2)", "densenet"):
        net = Model(build(spec))
        out = net(net.params, torch.rand(2, *IMAGES), buffers=net.buffers)
        assert torch.allclose(net.head(net.params, out.features), out.logits, atol=1e-6)
