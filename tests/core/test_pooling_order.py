"""Pooling before a ReLU gives the same numbers as the module as written."""

import pytest
import torch
from torch import nn

from unalike.core.model import Model
from unalike.core.pooling_order import PooledFirst, pools_first


class Sliced(nn.Module):
    """A module that slices its own sequence between the ReLU and the pooling."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(8 * 3 * 3, 3)

    def forward(self, x):
        before = self.features[:2](x)
        after = self.features[2](before)
        corner = before[..., :3, :3]
        return self.head(torch.cat([after, corner], 1).flatten(1))


def sequence(relu, pool):
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), relu, pool),
        *(nn.Flatten(), nn.LazyLinear(3)),
    )


def gradients(compute, params):
    logits = compute(params)
    return logits, torch.autograd.grad(logits.square().sum(), [*params.values()])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.MaxPool2d(3, stride=1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.AdaptiveMaxPool2d(2),
    ],
)
@pytest.mark.parametrize("inplace", [False, True])
def test_pool_first_logits_and_gradients_equal_module_bitwise(pool, inplace, training):
    torch.manual_seed(0)
    module = sequence(nn.ReLU(inplace), pool)
    x = torch.randn(5, 2, 9, 9).round()  # whole numbers, so that neighbours are alike
    x[0] = -5.0
    module(x)
    nn.init.zeros_(module[0].weight[:1].detach())  # a channel of zeros: all neighbours are alike
    module.train(training)
    model = Model(module)
    params = {n: p.clone().requires_grad_() for n, p in model.params.items()}
    buffers = {n: b.clone() for n, b in model.buffers.items()}
    ours = gradients(lambda p: model(p, x, buffers=buffers, training=training).logits, params)
    plain = gradients(lambda p: torch.func.functional_call(module, {**p, **buffers}, (x,)), params)
    assert torch.equal(ours[0], plain[0])
    for a, b in zip(ours[1], plain[1], strict=True):
        assert torch.equal(a, b)


def test_pool_first_with_nan_input_keeps_nan():
    module = nn.Sequential(nn.ReLU(), nn.MaxPool1d(2))
    x = torch.tensor([[[1.0, float("nan"), -1.0, -2.0]]])
    assert torch.equal(
        torch.nan_to_num(PooledFirst(*module)(x), 7.0), torch.nan_to_num(module(x), 7.0)
    )


def test_pools_first_swaps_only_max_pool_after_relu_without_hooks():
    relu, pool, conv = nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(1, 1, 3)
    assert pools_first([conv, relu, pool, nn.Flatten()])[:3] == [conv, pool, relu]
    for layers in (
        [relu, conv, pool],
        [pool, relu],
        [nn.LeakyReLU(), pool],
        [relu, nn.AvgPool2d(2)],
        [relu],
        [],
    ):
        assert pools_first(layers) == layers
    for watched in (relu, pool):
        handle = watched.register_forward_hook(lambda *_: None)
        assert pools_first([relu, pool]) == [relu, pool]
        handle.remove()
    assert pools_first([relu, pool]) == [pool, relu]


def test_hooked_relu_sees_unpooled_activations():
    seen = []
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )
    module[1].register_forward_hook(lambda _module, _inputs, output: seen.append(output.shape))
    model = Model(module)
    model(model.params, torch.randn(2, 2, 8, 8), buffers=model.buffers)
    assert seen == [torch.Size([2, 4, 6, 6])]


def test_sliced_sequence_equals_module():
    module = Sliced()
    model, x = Model(module), torch.randn(2, 2, 8, 8)
    assert torch.equal(model(model.params, x, buffers={}).logits, module(x))


def test_sequential_subclass_is_left_as_it_is():
    class Own(nn.Sequential):
        def forward(self, x):
            return super().forward(x) + 1

    module = Own(nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(2, 2))
    model, x = Model(module), torch.randn(3, 1, 4)
    assert torch.equal(model(model.params, x, buffers={}).logits, module(x))


def test_model_given_and_returned_modules_are_plain_sequences():
    module = nn.Sequential(
        nn.Conv2d(1, 1, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9, 2)
    )
    model = Model(module)
    assert type(module) is nn.Sequential
    assert type(model.module(model.params, model.buffers)) is nn.Sequential
