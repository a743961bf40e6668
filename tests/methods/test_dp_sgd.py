"""DP-SGD: gradients of single samples against a loop, the same steps in every executor, noise, accounting, refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, distance, mlp
from torch import nn

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.privacy import ReleaseSampling, epsilon_of, noise_multiplier_of
from unalike.core.types import Batch
from unalike.methods.sample_gradients import clipped_sum, private_mean
from unalike.runtime.setup.run_config import configure_run
from unalike.training.server.server_update import initial_server_state

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
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3)
        )
        x = torch.randn(7, 1, 6, 6)
    batch, params = Batch(x, torch.randint(3, (7,))), dict(model.named_parameters())

    def loss(params, row):
        return nn.functional.cross_entropy(
            torch.func.functional_call(model, params, (row.x,)), row.y
        )

    found = clipped_sum(loss, tree.detach(params), batch, 0.7)
    torch.testing.assert_close(
        [*found.values()], _gradients_by_a_loop(model, batch, 0.7), rtol=1e-4, atol=1e-6
    )
    padded = batch._replace(weight=torch.tensor([1.0] * 4 + [0.0] * 3))
    some = clipped_sum(loss, tree.detach(params), padded, 0.7)
    four = Batch(x[:4], batch.y[:4])
    torch.testing.assert_close(
        [*some.values()], _gradients_by_a_loop(model, four, 0.7), rtol=1e-4, atol=1e-6
    )
    without = clipped_sum(loss, tree.detach(params), Batch(x[1:], batch.y[1:]), 0.7)
    assert float(tree.norm(tree.sub(found, without))) <= 0.7 * (1 + 1e-5)  # of adjacent data


@pytest.mark.parametrize("method", ["fedavg", "fedprox(mu=1)", "scaffold", "ditto"])
@pytest.mark.parametrize("executor", ["by hand", "batched"])
@pytest.mark.parametrize("batches", ["shuffled", "poisson"])
def test_executors_agree_without_noise(method, executor, batches):
    spec = f"{method} + dp_sgd(noise_multiplier=0, clip=0.3, batches={batches!r})"
    sizes, work = (
        ((7, 3, 1, 5), WORK)
        if batches == "shuffled"
        else ((7, 3, 1, 6, 5), WORK | {"batch_size": 1})
    )
    sims = [
        Simulation(spec, mlp(), Clients.random(sizes), executor=e, **work)
        for e in ("loop", executor)
    ]
    if (
        batches == "poisson"
    ):  # with empty batches among them, and clients with other numbers of steps
        assert 0 in {
            len(b)
            for k in range(len(sizes))
            for b in sims[0].executor.client_pool.schedules([k], 0)[0][0]
        }
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


def test_poisson_batches_have_binomial_sizes_and_samples_of_their_own():
    """10 batches of a pass over 40 samples: each has Binomial(40, 1 / 10), each pair of samples is together by chance."""
    work, rows = ua.Work(epochs=100, batch_size=4), np.arange(100, 140)
    drawn = [set(b.tolist()) for b in work.poisson_batches(rows, np.random.default_rng(0))]
    assert len(drawn) == 1000 == work.steps_for(40)
    sizes, times = (
        np.array([*map(len, drawn)]),
        np.array([sum(k in b for b in drawn) for k in rows]),
    )
    assert sizes.mean() == pytest.approx(4, abs=4 * (3.6 / 1000) ** 0.5)
    assert sizes.var() == pytest.approx(3.6, rel=4 * (2 / 1000) ** 0.5 * 1.2)
    assert np.abs(times - 100).max() < 5 * 90**0.5
    together = np.mean([(rows[0] in b) == (rows[1] in b) for b in drawn])
    assert together == pytest.approx(0.1**2 + 0.9**2, abs=4 * (0.82 * 0.18 / 1000) ** 0.5)
    whole = ua.Work(batch_size=None).poisson_batches(rows, np.random.default_rng(0))
    assert [b.tolist() for b in whole] == [rows.tolist()]


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_poisson_step_divides_by_the_expected_number_and_adds_noise_to_an_empty_batch(executor):
    """n = 7 and batches of 2: 4 of them, 7/4 samples are expected in each. An eighth of the batches are empty."""
    sizes, seed = (7,) * 60, 3
    work = {"epochs": 1, "batch_size": 2, "lr": 1.0, "optimizer": "sgd"}

    def updates(z, clip=0.02):
        spec = f"dp_sgd(noise_multiplier={z}, clip={clip}, batches='poisson')"
        sim = Simulation(spec, mlp(), Clients.random(sizes), executor=executor, seed=seed, **work)
        found = sim.run().stacked
        assert (
            found.steps.tolist() == [4.0] * 60
        )  # also with empty batches, whose number would tell the draw
        return sim, found.update

    sim, still = updates(0)
    batches = [sim.executor.client_pool.schedules([k], 0)[0][0] for k in range(60)]
    assert {0, 1} < {len(b) for of in batches for b in of}
    for k in range(5):
        model = mlp()
        for rows in batches[k]:
            grads = _gradients_by_a_loop(
                model, Batch(sim.clients.x[rows], sim.clients.y[rows]), 0.02
            )
            with torch.no_grad():
                for p, g in zip(model.parameters(), grads, strict=True):
                    p -= g / (7 / 4)
        moved = [
            p.detach() - start
            for p, start in zip(model.parameters(), mlp().parameters(), strict=True)
        ]
        torch.testing.assert_close([*tree.row(still, k).values()], moved, rtol=1e-4, atol=1e-6)
    _, noisy = updates(2)
    apart = torch.cat([(noisy[n] - still[n]).reshape(60, -1) for n in still], 1)
    for some in (apart, apart[[any(not len(b) for b in of) for of in batches]]):
        wanted = 2 * 0.02 / (7 / 4) * 4**0.5
        assert float(some.std()) == pytest.approx(wanted, rel=4 / (2 * some.numel()) ** 0.5 + 0.02)


def test_epsilon_of_poisson_batches_is_that_of_dp_accounting():
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    orders = [*range(2, 65)]

    sizes = (20, 50, 30)  # 2, 5 and 3 batches of a pass
    clients = [ua.ClientData((torch.randn(n, 4), torch.arange(n) % 3)) for n in sizes]
    options = {
        "model": "linear",
        "rounds": 2,
        "progress": None,
        "executor": "loop",
        "participation": 0.5,
    }
    work = ua.Work(epochs=3, batch_size=10, lr=0.1)

    def accounted(accountant):
        """The largest of the clients' own."""
        events = [
            (dp.PoissonSampledDpEvent(1 / b, dp.GaussianDpEvent(2.0)), 2 * 3 * b) for b in (2, 5, 3)
        ]
        return max(accountant().compose(*event).get_epsilon(1e-5) for event in events)

    run = ua.run("dp_sgd(noise_multiplier=2, batches='poisson')", clients, work=work, **options)
    found = run.history.last["epsilon"]
    exact, shuffled = accounted(PLDAccountant), epsilon_of(2.0, ReleaseSampling(1, 1), 6, 1e-5)
    assert found == pytest.approx(accounted(lambda: RdpAccountant(orders)), rel=1e-6)
    assert exact < found < 1.15 * exact < shuffled
    run = ua.run("dp_sgd(epsilon=2, batches='poisson')", clients, work=work, **options)
    assert 1.98 < run.history.last["epsilon"] <= 2


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_budget_gives_clients_with_more_batches_less_noise(executor):
    """Each client's samples have the budget; those of a client with one batch are in all of its releases."""
    pytest.importorskip("dp_accounting")
    sizes, work, kinds = (2, 7, 40), {"epochs": 1, "batch_size": 4, "lr": 1.0}, (1, 2, 10)
    updates = []
    for z in ("epsilon=3", "noise_multiplier=0"):
        spec = f"dp_sgd({z}, clip=0.01, batches='poisson')"
        sim = Simulation(spec, mlp(), Clients.random(24 * sizes), executor=executor, **work)
        sim.settings = replace(
            sim.settings, sampling=ReleaseSampling(72, 72, releases=5, sizes=sizes)
        )
        object.__setattr__(sim.executor.client_pool, "settings", sim.settings)
        sim.state = initial_server_state(sim.method, sim.settings)
        updates.append(sim.run().stacked.update)
    apart = torch.cat([u.reshape(24, 3, -1) for u in tree.sub(*updates).values()], -1)
    found = []
    for k, (b, n) in enumerate(zip(kinds, sizes, strict=True)):
        z = noise_multiplier_of(
            3.0, ReleaseSampling(b, 1, "poisson" if b > 1 else "all", 5 * b), 1e-5
        )
        assert float(apart[:, k].std()) == pytest.approx(z * 0.01 / (n / b) * b**0.5, rel=0.1)
        found.append(z)
    assert found[0] > 1.1 * found[1] > 1.5 * found[2]


def test_sites_draw_poisson_batches_in_secret():
    """The seed is known to the coordinator and to other sites; who knows the draw has no amplification."""
    sim = Simulation("dp_sgd(batches='poisson')", mlp(), Clients.random((40,)), **WORK)

    def drawn(secret):
        pool = replace(
            sim.executor.client_pool, settings=replace(sim.settings, secret_noise=secret)
        )
        return [b.tolist() for b in pool.schedules([0], 0)[0][0]]

    assert drawn(False) == drawn(False) and drawn(True) != drawn(True)


def test_noise_of_a_step_has_the_deviation_of_the_mechanism():
    zeros = {"w": torch.zeros(4000)}
    torch.manual_seed(0)
    assert float(private_mean(zeros, 8.0, 2.0, False)["w"].std()) == pytest.approx(2 / 8, rel=0.05)
    work = {"epochs": 1, "batch_size": None, "lr": 0.5}
    noisy, still = (
        Simulation(f"dp_sgd(noise_multiplier={z}, clip=0.1)", mlp(), Clients.random((5, 5)), **work)
        for z in (3, 0)
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
    wanted = [epsilon_of(5.0, ReleaseSampling(1, 1), passes, 1e-5) for passes in (0, 2, 4, 6)]
    assert (
        run.history.rounds["epsilon"].tolist() == wanted
        and run.history.rounds["train_loss"].isna().all()
    )
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
        (
            "dp_sgd",
            {"work": ua.Work(loss="cross_entropy(class_weights='balanced')")},
            "weighs classes by their counts",
        ),
        ("dp_sgd + client_dp", {}, "two parts of the role Privacy"),
    ],
)
def test_what_sees_samples_without_noise_is_refused(spec, options, why):
    clients = Clients.random((7, 3, 5))
    with pytest.raises(UnalikeError, match=why):
        configure_run(
            spec,
            [ua.ClientData((clients.x[k], clients.y[k])) for k in clients.train],
            **{"model": mlp(), "rounds": 2} | options,
        )
