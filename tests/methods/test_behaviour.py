"""What makes each method what it is."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, distance, mlp, plane, same
from torch import nn

from unalike.core import tree
from unalike.methods.method import Method

SIZES = (3, 5, 8, 16)
WORK = {"epochs": 2, "batch_size": 4, "lr": 0.1}


def rounds(method, count=2, module=None, clients=None, present=None, **more):
    sim = Simulation(method, module or mlp(), clients or Clients.random(SIZES), **(WORK | more))
    for _ in range(count):
        sim.round(present)
    return sim


# --- equal to FedAvg, or to each other
# ---------------------------------------------------------------------------------

BITWISE = {
    "fedprox(mu=0)": "fedavg",
    "moon(mu=0)": "fedavg",
    "fedntd(beta=0)": "fedavg",
    "fedlws(beta=0)": "fedavg",
    "fedlws(beta=0, scope='model', mode='only_opt')": "fedavg",
    "fedlws(beta=0, scope='tensor', mode='only_reg')": "fedavg",
    "fedavgm(momentum=0)": "fedavg",
    "clip(norm=inf)": "fedavg",
    "clip(norm=1e9)": "fedavg",
    "ditto(lam=0.7)": "fedavg",
    "apfl": "fedavg",
    "apfl(mixing='output', adaptive=False)": "fedavg",
    "fedsa(threshold=1)": "uniform",
    "fedpake(threshold=1, variant='literal')": "uniform",
    "fedsa(threshold=1, variant='literal')": "uniform",
    "fedsa(threshold=1, weighted=True)": "fedavg",
    "fedprox(mu=0.1) + fednova": "fedmix(mu=0.1)",
    "fedmix(mu=0)": "fednova",
    "fednova + lws + fedprox": "lws + fedprox + fednova",
}


@pytest.mark.parametrize("neutral, other", BITWISE.items())
def test_method_limit_case_is_bitwise_equal_to_other_method(neutral, other):
    a, b = rounds(neutral, 3), rounds(other, 3)
    assert same(a.params, b.params)
    assert distance(a.params, a.settings.model.params, a.settings.model.params) > 0


def test_method_parse_equivalent_texts_give_equal_methods():
    parse = Method.parse
    assert (
        parse("fedprox(mu=0.1) + fednova")
        == parse("fedmix(mu=0.1)")
        == parse("fednova + fedprox(mu=0.1)")
    )
    assert hash(parse("fedprox + fednova")) == hash(parse("fedmix"))
    assert parse("fedavg + fedavg") == parse("fedavg") == Method()
    assert parse("scaffold") == parse("uniform + control_variates") and parse("fedlws") == parse(
        "lws"
    )
    assert parse("scaffold(weighted=True)") == parse("control_variates")


def test_fednova_equal_steps_equals_fedavg():
    """Equal sizes give equal steps: tau_eff p_k / tau = p_k up to one rounding (1e-6 of the update in float32)."""
    clients = Clients.random((8, 8, 8, 8))
    for nova, avg in (("fednova", "fedavg"), ("fedmix(mu=0.3)", "fedprox(mu=0.3)")):
        for solver in ({}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}):
            a, b = (rounds(m, 3, clients=clients, **solver) for m in (nova, avg))
            assert distance(a.params, b.params, b.settings.model.params) < 1e-6
    # and by `steps`, whatever the sizes
    a, b = (rounds(m, 3, steps=3) for m in ("fednova", "fedavg"))
    assert distance(a.params, b.params, b.settings.model.params) < 1e-6
    # but not for unequal ones
    a, b = (rounds(m, 1) for m in ("fednova", "fedavg"))
    assert distance(a.params, b.params, b.settings.model.params) > 0.01


def test_fednova_prox_aware_small_mu_approaches_fednova():
    a, b = (
        rounds(m, 1) for m in ("fedprox(mu=1e-3) + fednova(prox_aware=True)", "fedmix(mu=1e-3)")
    )
    assert (
        distance(a.params, b.params, b.settings.model.params) < 1e-3
    )  # alpha tau / 2 = 1e-4 * 8 / 2
    assert same(
        *(
            rounds(m, 1).params
            for m in ("fedprox(mu=0) + fednova(prox_aware=True)", "fedprox(mu=0) + fednova")
        )
    )


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_first_round_equals_uniform_fedavg(option):
    assert same(rounds(f"scaffold(option={option})", 1).params, rounds("uniform", 1).params)
    assert same(
        rounds(f"scaffold(option={option}, weighted=True)", 1).params, rounds("fedavg", 1).params
    )


def test_fedavg_one_full_batch_step_equals_fedsgd():
    a, b = rounds("fedsgd"), rounds("fedavg", epochs=1, batch_size=None)
    assert same(a.params, b.params)


def test_fedsgd_one_round_equals_gradient_step_on_pooled_data():
    """w+ = w - lr grad F(w), F the mean over all samples (float64; p_k is exact as 32 samples are)."""
    clients = Clients.random(SIZES, dtype=torch.float64)
    module = mlp().double()
    sim = rounds("fedsgd", 1, module, clients)
    nn.functional.cross_entropy(module(clients.x[1:]), clients.y[1:]).backward()
    for name, p in module.named_parameters():
        torch.testing.assert_close(
            sim.params[name], (p - 0.1 * p.grad).detach(), rtol=1e-12, atol=1e-14
        )


def test_fedavg_single_client_equals_central_sgd():
    """One client with all the data: FedAvg is SGD with its batches (float32, 1e-5)."""
    clients, module = Clients.random((20,)), mlp()
    sim = rounds("fedavg", 1, module, clients, momentum=0.5)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    for rows in sim.batches(0, 0):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(clients.x[rows]), clients.y[rows]).backward()
        optimizer.step()
    start = sim.settings.model.params
    assert distance(sim.params, {n: p.detach() for n, p in module.named_parameters()}, start) < 1e-5


# --- drift ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", ["", " + fedlama(phi=2)", " + fedala(modules=0)"])
def test_scaffold_one_full_batch_step_makes_both_options_equal(beside):
    """(x - y) / lr is the gradient at x, where the step began, if no variate corrected it."""
    sims = [
        Simulation(
            f"scaffold(option={option}){beside}",
            mlp(),
            Clients.random(SIZES),
            batch_size=None,
            lr=0.1,
        )
        for option in (1, 2)
    ]
    for _ in range(5):
        for sim in sims:
            sim.round()
    torch.testing.assert_close(sims[0].params, sims[1].params, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "text", ["scaffold", "scaffold(option=1)", "scaffold(weighted=True)", "scaffold(server_lr=0.5)"]
)
def test_scaffold_partial_participation_keeps_server_variate_at_client_mean(text):
    """The mean of all clients with the weights of the objective."""
    sizes = [float(n) for n in SIZES] if "weighted" in text else [1.0] * 4
    sim = Simulation(text, mlp().double(), Clients.random(SIZES, dtype=torch.float64), **WORK)
    for present in ([0, 1, 2, 3], [1, 3], [2], [0, 1, 2, 3], [0, 3]):
        sim.round(present)
        own = [
            tree.scale(sim.memory(k)["control_variates"], sizes[k] / sum(sizes)) for k in range(4)
        ]
        mean = tree.map(lambda *v: sum(v), *own)
        for name, c in sim.state.part_states["control_variates"].items():
            torch.testing.assert_close(
                mean[name], c, rtol=1e-12, atol=1e-13
            )  # sums of float64 in another order


def quadratics(repeats=(1, 3)):
    """F_A = (w1 - 3)^2 and F_B = 4 (w1 + 1)^2, B with more samples, all equal."""
    return Clients.of(
        ([[1.0, 0.0]] * repeats[0], [3.0] * repeats[0]),
        ([[2.0, 0.0]] * repeats[1], [-2.0] * repeats[1]),
        dtype=torch.float64,
    )


def parabolas():
    """F_A = (w1 - 3)^2 with 1 sample, F_B = (w1 + 1)^2 with 3: batches of 1 make 1 and 3 steps."""
    return Clients.of(([[1.0, 0.0]], [3.0]), ([[1.0, 0.0]] * 3, [-1.0] * 3), dtype=torch.float64)


def settled(method, clients, count, **work):
    sim = Simulation(method, plane(0.5, 2).double(), clients, task="regression", **work)
    for _ in range(count):
        sim.round()
    return float(sim.params["head.weight"][0, 0])


def test_fednova_unequal_steps_reach_minimum_that_fedavg_misses():
    """The minimum of 1/4 (w-3)^2 + 3/4 (w+1)^2 is 0. FedAvg weighs by p_k tau_k = (1/4, 9/4): (3/4 - 9/4) / (5/2) =
    -3/5. At lr = 0.005 what is left of the local curvature is lr-sized: d_B = 2 (w+1) (1 - 2 lr), so w = 3/4 * 2 lr =
    0.0075."""
    work = {"batch_size": 1, "lr": 0.005}
    assert settled("fednova", parabolas(), 300, **work) == pytest.approx(0.0075, abs=1e-3)
    assert settled("fedavg", parabolas(), 300, **work) == pytest.approx(-0.6, abs=0.01)


def test_feddyn_and_scaffold_many_local_steps_reach_minimum_that_fedavg_misses():
    """(w-3)^2 + 4 (w+1)^2 has its minimum at (3 - 4)/5 = -1/5. Many local steps take the clients to 3 and -1: FedAvg,
    uniform, stays at 1."""
    clients = quadratics((2, 2))
    work = {"steps": 60, "batch_size": None, "lr": 0.05}
    assert settled("uniform", clients, 3, **work) == pytest.approx(1, abs=0.02)
    assert settled("feddyn(alpha=1)", clients, 25, **work) == pytest.approx(-0.2, abs=1e-3)
    work = {"steps": 5, "batch_size": None, "lr": 0.05}
    assert abs(settled("uniform", clients, 60, **work) + 0.2) > 0.05
    for option in (1, 2):
        assert settled(f"scaffold(option={option})", clients, 60, **work) == pytest.approx(
            -0.2, abs=1e-3
        )


def test_fedprox_larger_mu_gives_smaller_update():
    ways = []
    for mu in (0, 0.5, 5):
        update = rounds(f"fedprox(mu={mu})", 0, steps=20).run().update
        ways.append(float(tree.norm(update)))
    assert ways[0] > ways[1] > ways[2]


def test_fedavgm_constant_updates_accelerate():
    """With a constant update d the velocity is d, d (1 + m), d (1 + m + m^2), ..."""
    from simulation import Server

    server, way = Server("fedavgm(momentum=0.5)", {"w": [0.0]}), []
    for _ in range(4):
        now = server.state.params["w"].item()
        way.append(server.advance([{"w": [now + 1]}])["w"].item() - now)
    assert way == [1, 1.5, 1.75, 1.875]


# --- personal models --------------------------------------------------------------------------------------------------


def test_ditto_lam_zero_is_local_training_and_large_lam_stays_near_shared_model():
    own, alone = rounds("ditto(lam=0)", 3), rounds("local_only", 3)
    for k in range(4):
        assert (
            distance(
                own.memory(k)["proximal_model"],
                alone.memory(k)["private"],
                own.settings.model.params,
            )
            < 1e-6
        )
    near = rounds("ditto(lam=9.9)", 1, steps=50)  # lr lam = 0.99
    far = rounds("ditto(lam=0.01)", 1, steps=50)
    start = near.settings.model.params
    ways = [float(tree.norm(tree.sub(s.memory(3)["proximal_model"], start))) for s in (near, far)]
    assert ways[0] < 0.1 * ways[1]


def test_apfl_alpha_one_is_local_training_and_alpha_zero_is_shared_model():
    """a = 1 is local training; a = 0 leaves v where it was, and the personal model is the shared one."""
    alone = rounds("local_only", 2)
    for mixing, part in (("parameters", "parameter_mixture"), ("output", "output_mixture")):
        one = rounds(f"apfl(alpha=1, adaptive=False, mixing={mixing!r})")
        none = rounds(f"apfl(alpha=0, adaptive=False, mixing={mixing!r})")
        start = none.settings.model.params
        for k in range(4):
            v = tree.only(one.memory(k)[part], start)
            assert distance(v, alone.memory(k)["private"], start) < 1e-6
            assert same(tree.only(none.memory(k)[part], start), start)
        person = none.method.personalizer
        x = none.clients.x[:5]
        out = person.predict(none.settings.model, none.params, none.memory(0)[part], {}, x, {})
        torch.testing.assert_close(
            out.logits, none.settings.model(none.params, x, buffers={}).logits
        )


def test_apfl_output_mixing_predicts_mixed_logits():
    sim = rounds("apfl(alpha=0.25, adaptive=False, mixing='output')", 2)
    x, memory, model = sim.clients.x, sim.memory(2)["output_mixture"], sim.settings.model
    shared, own = (model(p, x, buffers={}).logits for p in (sim.params, memory))
    found = sim.method.personalizer.predict(model, sim.params, memory, {}, x, {}).logits
    torch.testing.assert_close(found, 0.25 * own + 0.75 * shared)


def test_local_only_client_equals_training_alone():
    sim, alone = rounds("local_only", 2), Simulation("fedavg", mlp(), Clients.random(SIZES), **WORK)
    # client 2 by itself, with the batches it has among the four
    alone.round([2])
    alone.round([2])
    assert distance(sim.memory(2)["private"], alone.params, alone.settings.model.params) < 1e-6
    assert same(sim.params, sim.settings.model.params)
    person = sim.method.personalizer.personal(
        sim.settings.model, sim.params, sim.memory(2)["private"]
    )
    assert same(person, sim.memory(2)["private"])


# --- MOON and FedNTD
# ---------------------------------------------------------------------------------------------------


def test_moon_first_participation_equals_fedavg():
    a, b = rounds("moon(mu=5)", 1, present=[0, 1]), rounds("fedavg", 1, present=[0, 1])
    assert same(a.params, b.params)
    first = tree.row(a.run([2]).update, 0)
    assert same(first, tree.row(b.run([2]).update, 0))  # its first
    assert not same(tree.row(a.run([0]).update, 0), tree.row(b.run([0]).update, 0))  # its second


def test_moon_zero_features_keep_parameters_finite():
    """A dead layer: cosines of zero vectors have no direction; the step stays finite."""
    module = nn.Sequential(OrderedDict(body=nn.Linear(4, 5), act=nn.ReLU(), head=nn.Linear(5, 3)))
    with torch.no_grad():
        module.body.bias.fill_(-100)
    for executor in ("loop", "batched"):
        sim = rounds("moon", 2, module, executor=executor)
        assert all(t.isfinite().all() for t in sim.params.values())


def test_fedntd_single_class_client_preserves_other_class_ratios():
    """After training on one class alone, the ratios of the other classes' probabilities have moved less."""
    x = np.random.default_rng(0).normal(size=(12, 4))
    moved = []
    for beta in (0, 5):
        sim = Simulation(
            f"fedntd(beta={beta})",
            mlp(),
            Clients.of((x, np.zeros(12, int))),
            steps=40,
            batch_size=None,
            lr=0.2,
        )
        model, x_ = sim.settings.model, sim.clients.x
        before = model(sim.params, x_, buffers={}).logits[:, 1:].log_softmax(1)
        sim.round()
        moved.append(
            float(
                (model(sim.params, x_, buffers={}).logits[:, 1:].log_softmax(1) - before)
                .abs()
                .mean()
            )
        )
    assert moved[1] < 0.5 * moved[0]


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["fedavg", "uniform", "fednova", "scaffold"])
def test_aggregation_float64_model_keeps_float64_precision(text):
    """Three equal clients: any weighted mean of theirs is the client itself, to float64."""
    data = np.random.default_rng(0).normal(size=(3, 4)), np.array([0, 1, 2])
    sims = [
        Simulation(
            text,
            mlp().double(),
            Clients.of(*[data] * n, dtype=torch.float64),
            batch_size=None,
            lr=0.1,
        )
        for n in (1, 3)
    ]
    for sim in sims:
        for _ in range(3):
            sim.round()
    assert distance(sims[1].params, sims[0].params, sims[0].settings.model.params) < 1e-12


# --- private parameters
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "term",
    [
        "proximal(mu=1)",
        "dynamic_regularizer(alpha=1)",
        "control_variates",
        "model_contrast",
        "not_true_distillation",
    ],
)
def test_private_parameters_with_drift_terms_train_as_local_only(term):
    """With one step per round a proximal term has no gradient: v = w where the client begins. Nothing is shared here,
    so training
    goes on as it would alone; MOON's and FedNTD's teacher is the received model by definition and is left out of the
    numbers."""
    plain, held = (rounds(t, 5, steps=1, epochs=1) for t in ("local_only", f"local_only + {term}"))
    if term.startswith(("model", "not")):
        assert all(t.isfinite().all() for t in held.memory(0)["private"].values())
    else:
        assert (
            distance(
                held.memory(3)["private"], plain.memory(3)["private"], plain.settings.model.params
            )
            < 1e-5
        )


@pytest.mark.parametrize("steps", [1, 4])
def test_scaffold_option_1_variate_equals_gradient_of_all_local_data(steps):
    """Samples (1,0)->3, (0,1)->1, (1,1)->0 at w = (1, 2): residuals -2, 1, 3: gradient 2/3 ((-2,0) + (0,1) + (3,3)) =
    (2/3, 8/3)."""
    clients = Clients.of(([[1.0, 0], [0, 1], [1, 1]], [3.0, 1, 0]))
    sim = Simulation(
        "scaffold(option=1)", plane(1, 2), clients, task="regression", steps=steps, batch_size=1
    )
    sim.round()
    assert sim.memory(0)["control_variates"]["head.weight"].flatten().tolist() == pytest.approx(
        [2 / 3, 8 / 3]
    )


@pytest.mark.parametrize("name", ["fedsa", "fedpake"])
def test_fedsa_and_fedpake_literal_variant_warns(name):
    from unalike.core.work import Work

    with pytest.warns(UserWarning):
        Method.parse(f"{name}(variant='literal')").check(Work())


@pytest.mark.parametrize("text, part", [("ditto", "proximal_model"), ("apfl", "parameter_mixture")])
def test_personal_model_frozen_parameter_stays_unchanged(text, part):
    module = mlp()
    module.body.weight.requires_grad_(False)
    sim = rounds(text, 2, module)
    assert same(sim.params["body.weight"], sim.settings.model.params["body.weight"])
    state, personal = sim.memory(0)[part], sim.method.personalizer.personal
    assert "body.weight" not in state
    own = personal(sim.settings.model, sim.params, state)
    assert same(own["body.weight"], sim.settings.model.params["body.weight"])


def test_apfl_gradient_clip_limits_step_of_personal_model():
    """y = w1 x1, targets 3 and -9: client 0's gradient a grad f(v_bar) stays above 1, so each step of v has length lr
    = 1/4."""
    clients = Clients.of(([[1.0, 0]], [3.0]), ([[1.0, 0]], [-9.0]))
    sim = Simulation(
        "apfl(alpha=0.5, adaptive=False)",
        plane(1, 2),
        clients,
        task="regression",
        lr=0.25,
        clip=1.0,
    )
    for number in range(1, 4):
        sim.round()
        assert sim.memory(0)["parameter_mixture"]["head.weight"][0, 0].item() == pytest.approx(
            1 + number / 4
        )
