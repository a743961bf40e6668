"""What clients keep, in which order they train it, and what they are evaluated with."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, distance, mlp, plane, same
from torch import nn

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.types import Batch
from unalike.methods.method import Method
from unalike.methods.parts.fine_tuning import halves
from unalike.methods.roles import Personalizer
from unalike.training.client.client_task import BUFFERS
from unalike.training.wire import wire

SIZES = (3, 5, 8, 16)
WORK = {"epochs": 2, "batch_size": 4, "lr": 0.1}
HEAD, BODY = {"head.weight", "head.bias"}, {"body.weight", "body.bias"}


def rounds(method, count=2, module=None, clients=None, **more):
    sim = Simulation(method, module or mlp(), clients or Clients.random(SIZES), **(WORK | more))
    for _ in range(count):
        sim.round()
    return sim


def product(b, h):
    """y = h (b x): a body and a head of one parameter each. The gradient of (h b x - y)^2 is 2 (h b x - y) x (h, b)."""
    module = nn.Sequential(
        OrderedDict(body=nn.Linear(1, 1, bias=False), head=nn.Linear(1, 1, bias=False))
    )
    with torch.no_grad():
        module.body.weight.fill_(b), module.head.weight.fill_(h)
    return module.double()


def scalars(params):
    return params["body.weight"].item(), params["head.weight"].item()


def lines(*slopes):
    """Clients of one sample each, x = 1, y = slope."""
    return Clients.of(*(([[1.0]], [s]) for s in slopes), dtype=torch.float64)


LINE = {"task": "regression", "epochs": 1, "batch_size": None, "lr": 0.125}

# --- hand numbers -----------------------------------------------------------------------------------------------------


def test_fedbabu_one_round_trains_body_and_tuning_moves_both():
    """b = 1, h = 2, y = 3 and 1: residuals h b - y = -1 and 1; b_k = b - 1/8 * 2 r h = 1.5 and 0.5, mean 1. Tuned on client 0
    from (1, 2): r = -1, b = 1.5, h = 2 + 1/4 = 2.25; two epochs: r = 1.5 * 2.25 - 3 = 0.375, b = 1.5 - 0.25 * 0.375 * 2.25,
    h = 2.25 - 0.25 * 0.375 * 1.5."""
    sim = rounds("fedbabu(epochs=2)", 1, product(1, 2), lines(3.0, 1.0), **LINE)
    assert scalars(sim.params) == (1, 2)
    assert [u.item() for u in sim.run().update["body.weight"]] == [0.5, -0.5]
    assert scalars(sim.tuned()[0]) == pytest.approx(
        (1.5 - 0.25 * 0.375 * 2.25, 2.25 - 0.25 * 0.375 * 1.5), rel=1e-12
    )
    sim = rounds("fedbabu(epochs=1, tune='head')", 1, product(1, 2), lines(3.0, 1.0), **LINE)
    assert scalars(sim.tuned()[0]) == (1, 2.25)


def test_fedrep_one_round_trains_head_then_body():
    """b = 1, h = 2, y = 3: two head steps, h = 2 + 1/4 = 2.25, r = -0.75, h = 2.25 + 0.1875 = 2.4375; then the body at the new
    head: r = -0.5625, b = 1 + 0.25 * 0.5625 * 2.4375. The mean with client 1, y = 2, r = 0: nothing moves there."""
    sim = rounds("fedrep(epochs=2)", 1, product(1, 2), lines(3.0, 2.0), **LINE)
    moved = 0.25 * 0.5625 * 2.4375
    assert scalars(sim.params) == pytest.approx((1 + moved / 2, 2), rel=1e-12)
    assert [sim.memory(k)["private"]["head.weight"].item() for k in (0, 1)] == [2.4375, 2]
    assert set(sim.memory(0)["private"]) == {"head.weight"}


def test_fedper_one_round_keeps_head_on_client():
    """Both move at once: b = 1 + 0.25 * 2 = 1.5, h = 2.25 on client 0, nothing on client 1."""
    sim = rounds("fedper", 1, product(1, 2), lines(3.0, 2.0), **LINE)
    assert scalars(sim.params) == (1.25, 2)
    person = sim.method.personalizer.personal(
        sim.settings.model, sim.params, sim.memory(0)["private"]
    )
    assert scalars(person) == (1.25, 2.25)


def test_perturbation_estimated_beside_an_own_head_is_that_of_the_body():
    found, expected = (
        Simulation(text, mlp(), Clients.random((4, 6))) for text in ("fedper + fedlesam", "fedper")
    )
    for sim in (found, expected):
        sim.round()
    # no direction is known before the second participation
    assert same(found.params, expected.params)
    for sim in (found, expected):
        sim.round()
    assert not same(found.params, expected.params)


def test_local_finetune_equals_fedavg_with_tuning_afterwards():
    sim = rounds("local_finetune(epochs=1)", 1, product(1, 2), lines(3.0, 2.0), **LINE)
    b, h = scalars(sim.params)
    assert (b, h) == (1.25, 2.125)
    r = b * h - 3
    assert scalars(sim.tuned()[0]) == pytest.approx((b - 0.25 * r * h, h - 0.25 * r * b), rel=1e-12)
    assert same(rounds("local_finetune", 3).params, rounds("fedavg", 3).params)


def test_perfedavg_one_round_takes_gradient_at_adapted_parameters():
    """y = w1 x1 + w2 x2 at (1, 2); B' = (1, 0) -> 3, B'' = (1, 1) -> 2. g' = 2 (1 - 3) (1, 0) = (-4, 0), alpha = 1/4: adapted
    (2, 2); r'' = 4 - 2 = 2, g'' = (4, 4). First order: w = (1, 2) - lr (4, 4). Second: H' = 2 (1, 0)^T (1, 0), so
    (I - H'/4) g'' = (2, 4)."""
    clients = Clients.of(([[1.0, 0], [1, 1]], [3.0, 2]), dtype=torch.float64)
    for second, expected in ((False, [0.5, 1.5]), (True, [0.75, 1.5])):
        for executor in ("loop", "batched"):
            sim = Simulation(
                f"perfedavg(alpha=0.25, second_order={second})",
                plane(1, 2).double(),
                clients,
                task="regression",
                executor=executor,
                batch_size=None,
                lr=0.125,
            )
            order = sim.batches(0, 0)[0].tolist()
            if order[0] != 1:  # B' is the first row of the shuffled batch
                clients.x[[1, 2]], clients.y[[1, 2]] = (
                    clients.x[[2, 1]].clone(),
                    clients.y[[2, 1]].clone(),
                )
            sim.round()
            assert sim.params["head.weight"].flatten().tolist() == pytest.approx(
                expected, rel=1e-12
            )
            # evaluation: one full-batch step of alpha, whatever the round's work
            w, x, y = sim.params["head.weight"][0], clients.x[1:], clients.y[1:]
            g = 2 * ((x @ w - y)[:, None] * x).mean(0)
            torch.testing.assert_close(
                sim.tuned()[0]["head.weight"][0], w - 0.25 * g, rtol=1e-12, atol=0
            )
            if order[0] != 1:
                clients.x[[1, 2]], clients.y[[1, 2]] = (
                    clients.x[[2, 1]].clone(),
                    clients.y[[2, 1]].clone(),
                )


def test_halves_padded_batch_splits_real_rows_only():
    """Rows 0 to 4; what counts of each half is listed."""
    x = torch.arange(5.0)[:, None]
    for rows, weight, first, second in (
        (5, None, [0, 2, 4], [1, 3]),
        (1, None, [0], [0]),
        (5, [1, 1, 1, 0, 0], [0, 2], [1]),
        (5, [1, 0, 0, 0, 0], [0], [0]),
        (5, [0, 0, 0, 0, 0], [], []),
    ):
        batch = Batch(
            x[:rows],
            x[:rows, 0],
            None if weight is None else torch.tensor(weight, dtype=torch.float32),
        )
        for half, expected in zip(halves(batch), (first, second), strict=True):
            counted = slice(None) if half.weight is None else half.weight > 0
            assert half.x[counted].flatten().tolist() == half.y[counted].tolist() == expected


def test_fedala_start_weights_equal_hand_numbers():
    """One client beside a silent majority: after round 1 theta_k = 1.5, w = 1.25 by the mean with a client that stays at 1.
    W <- clip(1 - eta g (w - theta_k), 0, 1), g = 2 (w - 3) at theta = w: 1 - eta * (-3.5) * (-0.25) = 1 - 0.875 eta."""
    settings = LINE | {
        "clients": lines(3.0, 1.0),
        "module": nn.Sequential(OrderedDict(head=_one(1.0))),
    }
    sim = rounds("fedala(eta=0.5, threshold=1e9)", 1, **settings)
    assert (
        sim.params["head.weight"].item() == 1.25
        and sim.memory(0)["adaptive_start"]["head.weight"].item() == 1.5
    )
    sim.round()
    losses_window = 11  # passes until more than ten losses are there
    weight, theta = 1.0, 1.25
    for _ in range(losses_window):
        weight = min(1.0, max(0.0, weight - 0.5 * 2 * (theta - 3) * (1.25 - 1.5)))
        theta = 1.5 + (1.25 - 1.5) * weight
    memory = sim.memory(0)["adaptive_start"]
    assert memory["weight of head.weight"].item() == pytest.approx(weight, rel=1e-12)
    assert memory["head.weight"].item() == pytest.approx(theta - 0.25 * (theta - 3), rel=1e-12)
    # a later round takes one pass
    w = sim.params["head.weight"].item()
    theta = memory["head.weight"].item() + (w - memory["head.weight"].item()) * weight
    sim.round()
    new = min(1.0, max(0.0, weight - 0.5 * 2 * (theta - 3) * (w - memory["head.weight"].item())))
    assert sim.memory(0)["adaptive_start"]["weight of head.weight"].item() == pytest.approx(
        new, rel=1e-12
    )


def _one(value):
    layer = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        layer.weight.fill_(value)
    return layer


# --- what makes each what it is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["fedbabu", "fedper", "fedrep", "fedrep + fedprox(mu=1) + scaffold"]
)
def test_personal_head_methods_send_body_only(text):
    sim = rounds(text)
    cohort = sim.run()
    assert set(cohort.update) == BODY
    assert all(not set(letter) & HEAD for letter in cohort.stacked.messages.values())
    assert same({n: sim.params[n] for n in HEAD}, {n: sim.settings.model.params[n] for n in HEAD})
    whole, bodies = (
        {
            i.direction: i.bytes
            for i in wire(Method.parse(m), sim.settings.model)
            if i.what in ("parameters", "update")
        }
        for m in ("fedavg", text)
    )
    share = sum(sim.params[n].numel() for n in BODY) / sum(p.numel() for p in sim.params.values())
    assert all(bodies[way] == share * whole[way] for way in ("down", "up"))


def test_fedbabu_tuning_leaves_no_client_state_and_same_training():
    sim = rounds("fedbabu", 2)
    assert sim.memory(0) == {}
    body = rounds("fedbabu(epochs=3)", 2).params
    assert same(sim.params, body)  # the fine-tuning is no part of the training


def test_fedrep_same_number_of_steps_differs_from_fedper():
    rep, per = rounds("fedrep(epochs=2)"), rounds("fedper")
    assert distance(rep.params, per.params, per.settings.model.params) > 0.01
    assert rep.run().steps.tolist() == per.run().steps.tolist()


def test_fedbn_norm_parameters_and_statistics_stay_on_client():
    sim = rounds("fedbn", 2, mlp(norm=True))
    norm = {"norm.weight", "norm.bias"}
    cohort = sim.run()
    assert set(cohort.update) == {"body.weight"} | HEAD and not cohort.stacked.buffers
    assert set(sim.memory(0)["private"]) == norm
    assert set(sim.memory(0)[BUFFERS]) == {
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    }
    assert not same(sim.memory(0)["private"], sim.memory(3)["private"])
    assert sim.memory(3)[BUFFERS]["norm.num_batches_tracked"] == 2 * 8
    assert same(rounds("fedbn", 2).params, rounds("fedavg", 2).params)  # a model without norms


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_fedala_tiny_eta_equals_fedavg(executor):
    """eta so small that W stays 1 in float32: every start is the shared model, exactly."""
    clients = Clients.random((4, 4, 4, 4))
    sims = [
        rounds(m, 3, clients=clients, executor=executor) for m in ("fedala(eta=1e-30)", "fedavg")
    ]
    assert same(sims[0].params, sims[1].params)
    person, memory = sims[0].method.personalizer, sims[0].memory(1)["adaptive_start"]
    assert same(person.personal(sims[0].settings.model, sims[0].params, memory), sims[0].params)


def test_fedala_default_modules_adapt_head_only():
    sim = rounds("fedala(threshold=1e9)", 3)
    memory = sim.memory(0)["adaptive_start"]
    weights = {n: t for n, t in memory.items() if n.startswith("weight of ")}
    assert set(memory) - set(weights) - {"participations"} == HEAD
    assert all(((t >= 0) & (t <= 1)).all() for t in weights.values()) and any(
        (t < 1).any() for t in weights.values()
    )
    everything = rounds("fedala(modules=0, threshold=1e9)", 1).memory(0)["adaptive_start"]
    assert set(everything) > HEAD | BODY
    person = sim.method.personalizer.personal(sim.settings.model, sim.params, memory)
    assert same({n: person[n] for n in BODY}, {n: sim.params[n] for n in BODY})
    assert not same(person["head.weight"], sim.params["head.weight"])


def test_fedala_sample_share_differs_by_round_and_repeats():
    """Another share in every round, and the same at a repeated order."""
    sim = rounds("fedala(sample=0.5)", 0)
    site = sim.executor.client_pool
    orders = [np.concatenate(site.whole([3], r)[0]).tolist() for r in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[0]) == sorted(orders[2])
    part = sim.method.personalizer
    sizes = []
    for share in (0.01, 0.5, 0.8, 1.0):
        data = [Batch(sim.clients.x[i], sim.clients.y[i]) for i in site.whole([3], 0)[0]]
        local = type("L", (), {"data": type("D", (), {"whole": data})})
        sizes.append([len(b.y) for b in type(part)(sample=share)._sample(local)])
    assert sizes == [[1], [4, 4], [4, 4, 4, 1], [4, 4, 4, 4]]


def test_perfedavg_opposed_clients_adapt_better_than_fedavg():
    """Sine-like tasks: clients whose slopes differ in sign have FedAvg's mean slope 0; one step from a meta-trained start
    goes further down than from FedAvg's."""
    rng = np.random.default_rng(0)
    data = []
    for slope in (-2.0, 2.0, -1.0, 1.0):
        x = rng.normal(size=(16, 1))
        data.append((x, np.tanh(slope * x[:, 0])))
    module = mlp(1, 16, 1)
    losses = {}
    for name in ("perfedavg(alpha=0.1)", "fedavg"):
        sim = rounds(
            name, 60, module, Clients.of(*data), task="regression", batch_size=8, lr=0.05, epochs=2
        )
        tuner = Simulation("perfedavg(alpha=0.1)", module, sim.clients, task="regression", lr=0.05)
        tuner.state = tuner.state._replace(params=sim.params)
        tuned = tuner.tuned()
        losses[name] = np.mean(
            [
                (
                    (
                        sim.settings.model(tuned[k], torch.tensor(x).float(), buffers={}).logits[
                            :, 0
                        ]
                        - torch.tensor(y)
                    )
                    ** 2
                )
                .mean()
                .item()
                for k, (x, y) in enumerate(data)
            ]
        )
    assert losses["perfedavg(alpha=0.1)"] < 0.8 * losses["fedavg"]


def test_fedrep_kept_optimizer_state_has_own_momentum_per_phase():
    sim = rounds("fedrep(epochs=1)", 2, momentum=0.9, keep_optimizer_state=True)
    kept = tree.unpack(sim.memory(3)["solver"])
    assert set(kept) == {"0.model.momentum", "1.model.momentum"}
    assert set(kept["0.model.momentum"]) == HEAD and set(kept["1.model.momentum"]) == BODY


def test_tuning_client_without_samples_gives_shared_model():
    clients = Clients.random((3, 5))
    clients.train.append(np.zeros(0, np.int64))
    for executor in ("loop", "batched"):
        sim = Simulation("fedbabu(epochs=1)", mlp(), clients, executor=executor, **WORK)
        sim.round([0, 1])
        assert same(sim.tuned([2])[2], sim.params)
        assert distance(sim.tuned()[2], sim.params, sim.params) == 0


@pytest.mark.parametrize(
    "text",
    [
        "fedbabu + fedper",
        "fedbabu + local_finetune",
        "fedrep + fedbabu",
        "fedala + ditto",
        "fedper + fedbn",
        "fedrep + apfl",
    ],
)
def test_method_parse_conflicting_personal_parts_are_refused(text):
    with pytest.raises(UnalikeError, match="swap"):
        Method.parse(text)


def test_fedrep_phase_without_moving_parameters_is_refused():
    module = nn.Sequential(OrderedDict(head=nn.Linear(4, 3)))
    with pytest.raises(UnalikeError, match="nothing of the model moves"):
        rounds("fedrep(epochs=1)", 1, module)


def test_tuning_with_drift_terms_uses_task_loss_only():
    """SCAFFOLD's correction and a proximal term change the shared model, and not how a given one is tuned."""
    plain, changed = (
        rounds("local_finetune", 1),
        rounds("local_finetune + scaffold + fedprox(mu=5)", 1),
    )
    changed.state = changed.state._replace(params=plain.params)
    assert same(plain.tuned(), changed.tuned())


@dataclass(frozen=True)
class Rounded(Personalizer):
    """Starts from rounded parameters where they are large: control flow on data, which cannot be stacked."""

    name: ClassVar[str] = "rounded"
    vmappable: ClassVar[bool] = False

    def begin(self, local):
        return {
            n: w.round(decimals=1) if w.abs().max() > 0.3 else w for n, w in local.params.items()
        }, local.state


def test_personalizer_with_control_flow_on_data_is_equal_in_both_executors():
    """The report is relative to what was received, fine-tuning begins like training does; 1e-5 of the way."""
    method = Method(Rounded()) + "local_finetune"
    loop, batched = (rounds(method, 2, executor=e) for e in ("loop", "batched"))
    assert distance(batched.params, loop.params, loop.settings.model.params) < 1e-5
    ours, theirs = loop.tuned(), batched.tuned()
    assert all(distance(theirs[k], ours[k], loop.params) < 1e-5 for k in range(4))
    plain = rounds("local_finetune", 2)
    assert distance(loop.params, plain.params, plain.settings.model.params) > 0.01


# --- MOON's projection ------------------------------------------------------------------------------------------------


class Projected(nn.Module):
    """body -> projection -> head, as in MOON's code; the contrast is over the projection's output."""

    def __init__(self):
        super().__init__()
        self.body, self.projection, self.head = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(2, 3)

    def forward(self, x):
        return self.head(self.projection(torch.tanh(self.body(x))))


def test_moon_model_with_projection_contrasts_projections():
    """Round 2 by hand: full batch, one client; z, z_g, z_p are projections. float32, 1e-5 of the update."""
    torch.manual_seed(0)
    module, clients = Projected(), Clients.random((6, 4))
    sim = rounds("moon(mu=2)", 1, module, clients, epochs=1, batch_size=None)
    previous = rounds("moon(mu=2)", 0, module, clients, epochs=1, batch_size=None).run().update
    own = {n: p + previous[n][0] for n, p in sim.settings.model.params.items()}

    def z(params):
        hidden = torch.tanh(x @ params["body.weight"].T + params["body.bias"])
        return hidden @ params["projection.weight"].T + params["projection.bias"]

    x, y = clients.x[1:7], clients.y[1:7]
    w = {n: p.clone().requires_grad_() for n, p in sim.params.items()}
    here, there, before = z(w), z(sim.params), z(own)
    cos = torch.stack([torch.cosine_similarity(here, o) for o in (there, before)], 1) / 0.5
    logits = here @ w["head.weight"].T + w["head.bias"]
    (nn.functional.cross_entropy(logits, y) - 2 * cos.log_softmax(1)[:, 0].mean()).backward()
    update = tree.row(sim.run().update, 0)
    assert distance(update, {n: -0.1 * p.grad for n, p in w.items()}, tree.zeros(update)) < 1e-5
