"""Training in bf16, with channels-last images and with the fused solver step."""

import pytest
import torch
from simulation import Clients, Simulation, distance
from torch import nn

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.solvers import SGD
from unalike.training.server.update_checks import update_norms


def images(count=2, samples=12):
    g = torch.Generator().manual_seed(0)
    return [
        ua.ClientData(train=(torch.randn(samples, 3, 8, 8, generator=g), torch.arange(samples) % 3))
        for _ in range(count)
    ]


def net(view=False, frozen=False):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.head = (
                nn.Conv2d(3, 4, 3, padding=1),
                nn.BatchNorm2d(4),
                nn.Linear(4 * 64, 3),
            )

        def train(self, mode=True):
            super().train(mode)
            self.norm.train(mode and not frozen)
            return self

        def forward(self, x):
            h = self.norm(self.conv(x)).relu()
            return self.head(h.view(len(x), 4 * 64) if view else h.flatten(1))

    torch.manual_seed(0)
    return Net()


def run(model, **more):
    work = ua.Work(batch_size=4, lr=0.05, momentum=0.9)
    return ua.run("fedavg", images(), model=model, rounds=2, work=work, **more)


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("model", ["mlp(hidden=(8,))", "net", "frozen"])
def test_bf16_update_is_close_to_float32(executor, model):
    """Within a few per cent of the update, since products have 8 bits; parameters stay in float32."""
    given = net(frozen=model == "frozen") if model in ("net", "frozen") else model
    exact, rounded = (run(given, executor=executor, precision=p) for p in ("float32", "bf16"))
    start = exact.run_config.model.params
    names = list(start)
    a, b = ({n: r.params[n] for n in names} for r in (rounded, exact))
    assert 0 < distance(a, b, start) < 0.2
    assert {t.dtype for t in a.values()} == {torch.float32}
    assert exact.run_config.key != rounded.run_config.key  # other numbers, another run


def test_precision_unknown_is_refused():
    with pytest.raises(UnalikeError, match="precision"):
        run("cnn", precision="fp8")


def test_channels_last_step_equals_plain_step():
    """One step of one client, within 1e-4 of the update: sums have another order, which the norm enlarges."""
    shapes = {}
    for view in (
        True,
        False,
    ):  # with `view` the module asks for its activations as they were, and gets them
        model = Model(net(view))
        laid = model.channels_last(torch.randn(2, 3, 8, 8))
        assert (laid is model) == view
        result = ua.run(
            "fedavg",
            images(1),
            model=net(view),
            rounds=1,
            work=ua.Work(batch_size=None, lr=0.1),
            executor="loop",
        )
        shapes[view] = {n: result.params[n] for n in model.params}
        assert all(t.is_contiguous() for t in result.params.values())
    assert distance(shapes[True], shapes[False], Model(net()).params) < 1e-4
    dense = Model(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)))
    assert dense.channels_last(torch.randn(2, 3, 8, 8)) is dense


@pytest.mark.parametrize(("rows", "laid"), [(2, False), (30, True)])
def test_images_are_channels_last_where_a_batch_reuses_weights(rows, laid):
    """A convolution over 16 places makes 2 x 16 operations per weight and sample; 300 a batch are worth the other format."""
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(128, 3))
    images = torch.randn(30, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    sim = Simulation("fedavg", module, Clients.of((images, torch.arange(30) % 3)), batch_size=rows)
    assert (sim.executor.settings.model is not sim.settings.model) == laid


def test_norm_and_step_of_channels_last_tensors_copy_nothing():
    t = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    for held in (t, t.contiguous(memory_format=torch.channels_last)):
        seen = tree.in_memory_order(held)
        assert seen.is_contiguous() and seen.data_ptr() == held.data_ptr()
        [norm] = update_norms([5], {"conv": held.unsqueeze(0)}).values()
        assert norm == pytest.approx(float(t.norm()))
    last = torch.stack([t, 2 * t], -1).movedim(-1, 0)  # clients along the last dimension in memory
    one, other = update_norms([5, 6], {"conv": last}).values()
    assert (one, other) == pytest.approx((float(t.norm()), 2 * float(t.norm())))


@pytest.mark.parametrize(
    "solver",
    [SGD(), SGD(0.9), SGD(0.9, nesterov=True), SGD(0.5, weight_decay=0.1), SGD(weight_decay=0.1)],
)
def test_sgd_fused_step_equals_plain_step(solver):
    """1e-6: a fused multiply-add rounds once; gradients may lie in memory in another order than their parameters."""
    g = torch.Generator().manual_seed(0)
    shapes = {"conv": (4, 3, 2, 2), "weight": (5, 3), "bias": (5,)}
    params = {n: torch.randn(s, generator=g) for n, s in shapes.items()}
    held = {n: t.clone() for n, t in params.items()}
    held["conv"] = held["conv"].contiguous(memory_format=torch.channels_last)
    state, own = solver.init(params), solver.init(held)
    for _ in range(3):
        grads = {n: torch.randn(s, generator=g) for n, s in shapes.items()}
        grads["weight"] = grads["weight"].t().contiguous().t()
        params, state = solver.step(params, grads, state, 0.1)
        held, own = solver.step(held, grads, own, 0.1, owned=True, fused=True)
    for n in shapes:
        torch.testing.assert_close(held[n], params[n], rtol=1e-6, atol=1e-6)
