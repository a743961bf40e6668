"""DP-SGD: gradients of single samples against a loop, the same steps in every executor, noise, accounting, refusals."""

import pytest
import torch
from simulation import Clients, Simulation, distance, mlp
from torch import nn

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.privacy import Sampling, epsilon_of
from unalike.core.types import Batch
from unalike.runtime.run_config import prepare_run
from unalike.training.sample_gradients import clipped_sum, private_mean

WORK = {"epochs": 2, "batch_size": 4, "lr": 0.1}


def _gradients_by_a_loop(model, batch, clip):
    total = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in zip(batch.x, batch.y, strict=True):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        grads = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.cat([g.flatten() for g in grads]).norm()
        total = [t + g * min(1.0, clip / float(norm)) for t, g in zip(total, grads, strict=True)]
    return total


@pytest.mark.parametrize("layers", ["linear", "convolution with group norm"])
def test_clipped_sum_equals_a_loop_over_samples(layers):
    torch.manual_seed(0)
    if layers == "linear":
        model, x = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(7, 5)
    else:
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))
        x = torch.randn(7, 1, 6, 6)
    batch, params = Batch(x, torch.randint(3, (7,))), dict(model.named_parameters())

    def loss(params, row):
        return nn.functional.cross_entropy(torch.func.functional_call(model, params, (row.x,)), row.y)

    found = clipped_sum(loss, tree.detach(params), batch, 0.7)
    torch.testing.assert_close([*found.values()], _gradients_by_a_loop(model, batch, 0.7), rtol=1e-4, atol=1e-6)
    padded = batch._replace(weight=torch.tensor([1.0] * 4 + [0.0] * 3))
    some = clipped_sum(loss, tree.detach(params), padded, 0.7)
    four = Batch(x[:4], batch.y[:4])
    torch.testing.assert_close([*some.values()], _gradients_by_a_loop(model, four, 0.7), rtol=1e-4, atol=1e-6)
    without = clipped_sum(loss, tree.detach(params), Batch(x[1:], batch.y[1:]), 0.7)
    assert float(tree.norm(tree.sub(found, without))) <= 0.7 * (1 + 1e-5)  # of adjacent data


@pytest.mark.parametrize("method", ["fedavg", "fedprox(mu=1)", "scaffold", "ditto"])
@pytest.mark.parametrize("executor", ["by hand", "batched"])
def test_executors_agree_without_noise(method, executor):
    sims = [
        Simulation(
            f"{method} + dp_sgd(noise_multiplier=0, clip=0.3)", mlp(), Clients.random((7, 3, 1, 5)), executor=e, **WORK
        )
        for e in ("loop", executor)
    ]
    for sim in sims:
        sim.round(), sim.round()
    assert distance(sims[0].params, sims[1].params, sims[0].settings.model.params) < 1e-4


def test_without_bound_and_noise_it_is_the_method():
    free, plain = (
        Simulation(spec, mlp(), Clients.random((7, 3, 5)), **WORK)
        for spec in ("dp_sgd(noise_multiplier=0, clip=1e9)", "fedavg")
    )
    free.round(), plain.round()
    assert distance(free.params, plain.params, plain.settings.model.params) < 1e-4


def test_noise_of_a_step_has_the_deviation_of_the_mechanism():
    zeros = {"w": torch.zeros(4000)}
    torch.manual_seed(0)
    assert float(private_mean(zeros, 8.0, 2.0, False)["w"].std()) == pytest.approx(2 / 8, rel=0.05)
    work = {"epochs": 1, "batch_size": None, "lr": 0.5}
    noisy, still = (
        Simulation(f"dp_sgd(noise_multiplier={z}, clip=0.1)", mlp(), Clients.random((5, 5)), **work) for z in (3, 0)
    )
    drawn = tree.flatten(tree.sub(noisy.run().stacked.update, still.run().stacked.update))
    assert float(drawn.std()) == pytest.approx(0.5 * 3 * 0.1 / 5, rel=4 / (2 * len(drawn)) ** 0.5)
    rows = [tree.flatten(tree.row(noisy.run().stacked.update, k)) for k in range(2)]
    assert not torch.equal(*rows)


def test_epsilon_counts_the_passes_of_all_rounds():
    pytest.importorskip("dp_accounting")
    clients = ua.partition(ua.load("digits"), "iid", clients=20, seed=0)
    options = {"model": "linear", "rounds": 3, "progress": None, "participation": 0.2}
    run = ua.run("dp_sgd(noise_multiplier=5)", clients, work=ua.Work(epochs=2, lr=0.1), **options)
    wanted = [epsilon_of(5.0, Sampling(1, 1), passes, 1e-5) for passes in (0, 2, 4, 6)]
    assert run.history.rounds["epsilon"].tolist() == wanted and run.history.rounds["train_loss"].isna().all()
    run = ua.run("dp_sgd(epsilon=2)", clients, work=ua.Work(epochs=2, lr=0.1), **options)
    assert 1.98 < run.history.last["epsilon"] <= 2


@pytest.mark.parametrize(
    "spec, options, why",
    [
        ("feddisco + dp_sgd", {}, "it reads the training data outside the steps"),
        ("fedala + dp_sgd", {}, "it reads the training data"),
        ("perfedavg + dp_sgd", {}, "its inner steps have no noise"),
        ("fedrep + dp_sgd", {}, "its phases are not accounted"),
        ("dp_sgd", {"model": mlp(norm=True)}, "batch norm, .* group norm does not"),
        ("dp_sgd", {"work": ua.Work(steps=3)}, "whole passes are accounted"),
        ("dp_sgd", {"work": ua.Work(loss="cross_entropy(class_weights='balanced')")}, "weighs classes by their counts"),
        ("dp_sgd + client_dp", {}, "two parts of the role Privacy"),
    ],
)
def test_what_sees_samples_without_noise_is_refused(spec, options, why):
    clients = Clients.random((7, 3, 5))
    with pytest.raises(UnalikeError, match=why):
        prepare_run(
            spec,
            [ua.ClientData((clients.x[k], clients.y[k])) for k in clients.train],
            **{"model": mlp(), "rounds": 2} | options,
        )
