"""What makes the methods of the server what they are: their neutral settings, what they need, what they do to training."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, advance, distance, mlp, same
from torch.nn import functional as F

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.types import Batch
from unalike.methods.plan import Stage, StagedPlan

SIZES = (3, 5, 8, 16)
WORK = {"epochs": 2, "batch_size": 4, "lr": 0.1}


def samples(n=24, seed=9):
    """Samples of a task that a model can learn: the class is the largest of three linear scores."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    return x, (x @ np.random.default_rng(0).normal(size=(4, 3))).argmax(1)


PROXY = Batch(*map(torch.as_tensor, samples()))


def rounds(method, count=3, **more):
    sim = Simulation(method, mlp(), Clients.random(SIZES), proxy=PROXY, **(WORK | more))
    for _ in range(count):
        sim.round()
    return sim


NEUTRAL = {
    "awd(lam=0)": "fedavg",
    "adadecay(lam=0)": "fedavg",
    "fixed_shrink(step=0)": "fedavg",
    "gaussian_noise(std=0)": "fedavg",
    "topk(fraction=1)": "fedavg",
    "topk(fraction=1, error_feedback=True)": "fedavg",
    "quantize(bits=32)": "fedavg",
    "feddf(steps=0)": "fedavg",
    "fedbe(steps=0)": "fedavg",
    "multikrum(keep=99)": "fedavg",
}


@pytest.mark.parametrize("neutral, other", NEUTRAL.items())
def test_server_parts_limit_case_is_bitwise_equal_to_other_method(neutral, other):
    assert same(rounds(neutral).params, rounds(other).params)


NEARLY = {
    "feddisco(a=0, b=0)": "fedavg",
    "trimmed_mean(beta=0)": "uniform",
    "fedlaw(epochs=0)": "fedavg",
    "fedlaw(epochs=0, mapping='quadratic')": "uniform",
}


@pytest.mark.parametrize("neutral, other", NEARLY.items())
def test_server_parts_limit_case_is_close_to_other_method(neutral, other):
    """1e-5 of the update, float32."""
    a, b = rounds(neutral), rounds(other)
    assert distance(a.params, b.params, b.settings.model.params) < 1e-5


@pytest.mark.parametrize(
    "rule", ["median", "krum", "multikrum", "geometric_median", "trimmed_mean"]
)
def test_robust_rules_equal_clients_equal_single_client(rule):
    """Clients with the same data and batches send the same update, whatever the rule."""
    x, y = samples(8)
    sims = [
        Simulation(spec, mlp(), Clients.of(*[(x, y)] * k), batch_size=None, lr=0.1)
        for spec, k in ((rule, 4), ("fedavg", 1))
    ]
    for sim in sims:
        sim.round()
    assert distance(*(s.params for s in sims), sims[1].settings.model.params) < 1e-5


def test_quantize_eight_bits_stays_close_to_fedavg():
    """8 bits: within 1/127 of the largest entry of each tensor, a few per cent of the update."""
    plain, coarse = rounds("fedavg", 1), rounds("quantize", 1)
    assert 0 < distance(coarse.params, plain.params, plain.settings.model.params) < 0.03


def test_feddisco_client_with_even_labels_gets_larger_weight():
    """Two clients of equal size, one with a single class: the other one counts more."""
    x, _ = samples(6)
    sim = Simulation(
        "feddisco(a=0.5, b=0)",
        mlp(),
        Clients.of((x, [0, 0, 0, 0, 0, 2]), (x, [0, 1, 2, 0, 1, 2])),
        **WORK,
    )
    cohort = sim.round()
    start, u = sim.settings.model.params, cohort.update
    moved = tree.flatten(tree.sub(sim.params, start))
    weights = torch.linalg.lstsq(tree.flatten(u, rows=2).T, moved[:, None]).solution[:, 0]
    assert weights[1] > 0.9 and weights.sum() == pytest.approx(1, abs=1e-4)


def loss(sim, params):
    return F.cross_entropy(sim.settings.model.module(params, {})(PROXY.x), PROXY.y).item()


@pytest.mark.parametrize("spec", ["fedlaw(lr=0.05)", "fedlaw(lr=0.05, mapping='quadratic')"])
def test_fedlaw_one_client_with_wrong_labels_beats_plain_mean_on_proxy(spec):
    """Of three clients one has its labels turned round; on the proxy samples the learned mean is better than the mean."""
    honest = [samples(40, seed) for seed in (1, 2)]
    x, y = samples(40, 3)
    clients = Clients.of(*honest, (x, (y + 1) % 3))
    sim = Simulation(spec, mlp(), clients, proxy=PROXY, epochs=5, batch_size=8, lr=0.2)
    cohort = sim.run()
    one = torch.full((3,), 1 / 3)
    server = advance(sim.method, sim.settings, sim.state, cohort)
    mean = tree.add(sim.params, tree.weighted_sum(cohort.update, one))
    assert loss(sim, server.params) < 0.8 * loss(sim, mean)


def test_feddf_training_moves_average_closer_to_ensemble():
    sims = [rounds(spec, 2) for spec in ("feddf(steps=0)", "feddf(steps=60, lr=0.01)")]
    sim = sims[0]
    cohort = sim.run()
    model, start = sim.settings.model, sim.params
    with torch.no_grad():
        z = torch.stack(
            [
                model.module(tree.add(start, tree.row(cohort.update, k)), {})(PROXY.x)
                for k in range(4)
            ]
        )
        target = z.mean(0).log_softmax(1)
        gaps = []
        for spec in sims:
            state = advance(spec.method, sim.settings, sim.state, cohort)
            found = model.module(state.params, {})(PROXY.x).log_softmax(1)
            gaps.append(F.kl_div(found, target, reduction="batchmean", log_target=True).item())
    assert gaps[1] < 0.5 * gaps[0]


# --- what a run needs -------------------------------------------------------------------------------------------------


def clients_of(n=4):
    return [ua.ClientData(train=samples(12, seed), test=samples(6, seed + 50)) for seed in range(n)]


@pytest.mark.parametrize("spec", ["fedlaw", "feddf", "fedprox + learned_mean"])
def test_run_without_proxy_samples_is_refused(spec):
    with pytest.raises(UnalikeError, match="pass proxy="):
        ua.run(spec, clients_of(), model="mlp", rounds=1)
    run = ua.run(spec, clients_of(), model="mlp", rounds=1, proxy=samples())
    assert np.isfinite(run.history.rounds["loss"]).all()


def test_run_stage_without_proxy_samples_is_refused():
    @dataclass(frozen=True)
    class Late(StagedPlan):
        def stages(self, plan_inputs):
            yield Stage("late", ua.Method.parse("fedlaw"), plan_inputs.rounds)

    with pytest.raises(UnalikeError, match="learned_mean: found no samples on the server"):
        ua.run(Late(), clients_of(), model="mlp", rounds=1)


def test_run_proxy_samples_of_wrong_shape_are_refused():
    x, y = samples()
    with pytest.raises(UnalikeError, match="shape"):
        ua.run("fedlaw", clients_of(), model="mlp", rounds=1, proxy=(x[:, :2], y))


def test_run_resumed_with_other_proxy_samples_is_refused(tmp_path):
    """Going on with other samples on the server is refused, like other data."""
    x, y = samples()
    more = {"model": "mlp", "rounds": 1, "out": tmp_path / "run"}
    ua.run("fedlaw(epochs=2)", clients_of(), proxy=(x, y), **more)
    ua.run("fedlaw(epochs=2)", clients_of(), proxy=(x, y), **more)
    with pytest.raises(UnalikeError):
        ua.run("fedlaw(epochs=2)", clients_of(), proxy=(x + 1, y), **more)


def test_run_resumed_with_server_state_equals_whole_run(tmp_path):
    """Ten rounds are five and five, bitwise: the server's memories, the residuals and histograms included."""
    spec = "fedyogi + awd + feddisco + topk(error_feedback=True) + quantize + gaussian_noise + clip"
    work = ua.Work(batch_size=4, lr=0.1)
    whole = ua.run(spec, clients_of(), model="mlp", rounds=4, work=work, seed=2)
    ua.run(
        spec,
        clients_of(),
        model="mlp",
        rounds=4,
        work=work,
        seed=2,
        out=tmp_path,
        stop=lambda row: row["round"] == 2,
    )
    again = ua.run(spec, clients_of(), model="mlp", rounds=4, work=work, seed=2, out=tmp_path)
    assert same(dict(whole.params), dict(again.params))


def test_history_quantize_and_feddisco_counts_bytes():
    """The mlp has P numbers; 8 bits, a scale for each tensor and the histogram of 3 classes go up, from each of 4 clients."""
    run = ua.run("quantize + feddisco", clients_of(), model="mlp", rounds=1)
    sizes = [t.numel() for t in run.params.values()]
    row = run.history.rounds.iloc[1]
    assert row["bytes_up"] == 4 * (sum(sizes) + 4 * len(sizes) + 3 * 8 + 16) and row[
        "bytes_down"
    ] == 4 * 4 * sum(sizes)


def test_feddisco_empty_histogram_keeps_parameters_finite():
    """An empty histogram is nobody's: weights stay finite."""
    sim = Simulation("feddisco", mlp(), Clients.random(SIZES), **WORK)
    cohort = sim.run()
    counts = cohort.stacked.shared["label_histogram"]["counts"].clone()
    counts[0] = 0
    report = cohort.stacked._replace(shared={"label_histogram": {"counts": counts}})
    state = advance(sim.method, sim.settings, sim.state, replace(cohort, stacked=report))
    assert all(t.isfinite().all() for t in state.params.values())


@pytest.mark.parametrize("spec", ["fedlaw(epochs=3)", "feddf(steps=3)"])
def test_run_normalizes_proxy_samples_as_it_does_those_of_clients(spec):
    def images(n, seed, change):
        x, y = samples(n, seed)
        return change(x.reshape(n, 1, 2, 2)).astype(np.float32), y

    def trained(change, **options):
        clients = [
            ua.ClientData(train=images(12, k, change), test=images(6, k + 50, change))
            for k in range(3)
        ]
        return ua.run(
            spec, clients, model="mlp", rounds=2, proxy=images(24, 9, change), **options
        ).history.rounds

    plain = trained(lambda x: x, transform="normalize(mean=0.5, std=0.25)")
    before = trained(lambda x: (x - 0.5) / 0.25)
    np.testing.assert_allclose(plain["loss"], before["loss"], rtol=1e-5)
