"""Attacks: numbers by hand, who is malicious, who is scored, and that a real federation refuses them."""

import math

import numpy as np
import pytest
import torch
from every_method import METHODS, played
from simulation import Server, same

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core.types import Batch
from unalike.methods.method import Method
from unalike.methods.part import parameters
from unalike.methods.parts.attacks import Backdoor, LabelFlip
from unalike.runtime.setup.attackers import malicious_clients, under_attack

ATTACKS = {name: m for name, m in METHODS.items() if m.attack is not None}
RUN = {
    "model": "mlp(hidden=(8,))",
    "work": ua.Work(lr=0.1, batch_size=16),
    "seed": 1,
    "progress": False,
}


def sent(spec, updates, malicious):
    """The mean of what arrives, times the number of clients."""
    server = Server(spec, {"w": [0.0]}, malicious=malicious)
    return server.advance([{"w": [u]} for u in updates])["w"].item() * len(updates)


@pytest.mark.parametrize(
    "spec, arrives",
    {
        "sign_flip": -3.0,
        "free_rider": 0.0,
        "scaling(factor=10)": 30.0,
        "inner_product(epsilon=0.5)": -0.5 * 4,
        "alie(z=1.5)": 4 - 1.5 * math.sqrt(6),
        "backdoor(scale=7)": 21.0,
        "label_flip": 3.0,
    }.items(),
)
def test_update_of_malicious_client_equals_hand_number(spec, arrives):
    """The honest ones send 1, 4, 7: mean 4, variance 6. The malicious one trained to 3."""
    assert sent(spec, [1.0, 4.0, 3.0, 7.0], [2]) == pytest.approx(1 + 4 + 7 + arrives)


def test_alie_default_deviation_equals_that_of_paper():
    """50 workers, 24 malicious: s = 2, Phi(z) = 24 / 26, z = 1.43. Few attackers stay at the mean."""
    honest = [0.0, 2.0] * 13
    assert sent("alie", honest + [9.0] * 24, range(26, 50)) == pytest.approx(
        26 + 24 * (1 - 1.4261), abs=1e-2
    )
    assert sent("alie", [0.0, 2.0, 0.0, 2.0, 9.0], [4]) == pytest.approx(5.0)
    assert sent("alie", [9.0, 9.0], [0, 1]) == 0.0  # nobody is honest


def test_gaussian_attack_has_its_standard_deviation_and_repeats():
    models = [{"w": torch.full((4000,), 5.0)} for _ in range(2)]
    one, two = (
        Server("gaussian_attack(std=2)", {"w": torch.zeros(4000)}, malicious=[1]).advance(models)[
            "w"
        ]
        for _ in range(2)
    )
    assert np.array_equal(one, two)
    assert np.std(2 * one) == pytest.approx(2, rel=0.05) and np.mean(2 * one) == pytest.approx(
        5, abs=0.15
    )


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_by_no_client_is_base_method_exactly(name):
    attack = ATTACKS[name].attack
    none = Method(type(attack)(**parameters(attack) | {"share": 0.0}))
    assert none.needs_sums_only
    for base in ("scaffold", "median"):
        assert same(played(none + base)[0].state.params, played(base)[0].state.params)


def test_malicious_clients_are_those_of_the_seed_and_nested():
    sizes = np.array([3, 0, *[2] * 18])
    few, many = (malicious_clients(Method.parse(f"alie(share={s})"), sizes, 5) for s in (0.2, 0.4))
    assert len(few) == 4 and len(many) == 8 and few < many and 1 not in many  # of 19 with samples
    flip = Method.parse("label_flip")
    assert few == malicious_clients(flip, sizes, 5) != malicious_clients(flip, sizes, 6)
    assert malicious_clients(Method(), sizes, 5) == frozenset()


def test_label_flip_and_backdoor_poison_training_samples_as_by_hand():
    rng = np.random.default_rng(0)
    data = Batch(torch.zeros(4, 1, 5, 5), torch.tensor([0, 1, 2, 2]))
    assert LabelFlip().poison(data, 3, rng).y.tolist() == [2, 1, 0, 0]
    made = Backdoor(target=1, size=2, value=0.5).poison(data, 3, rng)
    hit = made.x.flatten(1).any(1)
    assert hit.sum() == 2 and (made.y[hit] == 1).all() and (made.y[~hit] == data.y[~hit]).all()
    assert (
        made.x[hit][0].sum() == 4 * 0.5
        and (made.x[hit][:, :, 3:, 3:] == 0.5).all()
        and not data.x.any()
    )
    assert Backdoor(size=2).triggered(torch.zeros(1, 4)).tolist() == [[0, 0, 1, 1]]
    with pytest.raises(UnalikeError, match=r"target=7; expected a class in 0\.\.2"):
        Backdoor(target=7).poison(data, 3, rng)
    with pytest.raises(UnalikeError, match=r"found samples of torch\.int64"):
        Backdoor().triggered(torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_backdoor_run_equals_numpy(executor):
    """Softmax regression with full batches: one of four equal clients trains on the trigger alone, and sends twice its update."""
    rng = np.random.default_rng(0)
    samples = [(rng.normal(size=(12, 3)), rng.integers(0, 3, 12)) for _ in range(4)]
    people, ids = [ua.ClientData(train=(x[4:], y[4:]), test=(x[:4], y[:4])) for x, y in samples], []

    def cohort(number, cohorts, before, after):
        ids.extend(c.ids for c in cohorts.values())
        return []

    spec = "backdoor(share=0.25, target=1, poisoned=1, scale=2, size=1, value=3)"
    options = {
        "participation": 0.5,
        "executor": executor,
        "record": cohort,
        "progress": False,
        "seed": 1,
    }
    run = ua.run(
        spec, people, model="linear", rounds=4, work=ua.Work(batch_size=None, lr=0.5), **options
    )
    [bad] = malicious_clients(Method.parse(spec), np.array([8] * 4), 1)
    assert any(bad in present for present in ids)

    def triggered(x):
        return np.concatenate([x[:, :2], np.full((len(x), 1), 3.0)], 1)

    weight, bias = run.params
    w, b = (run.run_config.model.params[n].double().numpy() for n in (weight, bias))
    for present in ids:
        moves = []
        for k in present:
            x, y = samples[k][0][4:], samples[k][1][4:]
            x, y = (triggered(x), np.ones_like(y)) if k == bad else (x, y)
            z = np.exp(x @ w.T + b)
            d = (z / z.sum(1, keepdims=True) - np.eye(3)[y]) / len(y) * (2 if k == bad else 1)
            moves.append((-0.5 * d.T @ x, -0.5 * d.sum(0)))
        w, b = (
            old + np.mean(new, 0) for old, new in zip((w, b), zip(*moves, strict=True), strict=True)
        )
    np.testing.assert_allclose(run.params[weight].numpy(), w, atol=1e-6)
    np.testing.assert_allclose(run.params[bias].numpy(), b, atol=1e-6)
    hits = [
        (triggered(x[:4][y[:4] != 1]) @ w.T + b).argmax(1) == 1
        for k, (x, y) in enumerate(samples)
        if k != bad
    ]
    assert run.history.rounds["attack_success"].iloc[-1] == pytest.approx(
        np.concatenate(hits).mean()
    )


@pytest.fixture(scope="module")
def digits():
    return ua.partition("digits", "dirichlet(alpha=1)", clients=5, seed=0, val=0.1)


def test_population_under_attack_keeps_sizes_and_scores_honest_clients_alone(digits):
    flip = Method.parse("label_flip")
    [bad] = malicious_clients(flip, digits.sizes, 1)
    attacked = under_attack(digits, flip, 1)
    assert (attacked.sizes == digits.sizes).all() and attacked.plan is digits.plan
    for k in range(5):
        honest = k != bad
        (x, y), (x0, y0) = attacked[k].train, digits[k].train
        assert torch.equal(x, x0) and torch.equal(y, y0 if honest else 9 - y0)
        assert len(attacked.test[k]) == honest * len(digits.test[k])
        assert len(attacked.val[k]) == honest * len(digits.val[k])
    assert under_attack(digits, Method.parse("label_flip(share=0)"), 1) is digits


def test_run_under_attack_names_malicious_clients_and_measures_backdoor(digits):
    run = ua.run("median + backdoor(scale=5, size=2)", digits, rounds=2, **RUN)
    [bad] = malicious_clients(Method.parse("backdoor"), digits.sizes, 1)
    assert (
        f"client-{bad} of 5 clients are malicious, and the scores are those of the others"
        in run.warnings
    )
    table = run.history.clients
    assert set(table[table["status"] == "malicious"]["client"]) == {bad}
    assert table[table["client"] == bad]["accuracy"].isna().all()
    assert 0 <= run.history.last["attack_success"] <= 1
    assert run.run_config.columns.named("attack_success").metric.sign == -1


def test_strong_backdoor_succeeds_and_honest_run_has_no_column(digits):
    assert ua.run("backdoor(scale=5)", digits, rounds=8, **RUN).history.last["attack_success"] > 0.9
    assert "attack_success" not in ua.run("fedavg", digits, rounds=1, **RUN).history.last


def test_attack_outside_of_a_run_and_second_attack_are_refused():
    with pytest.raises(UnalikeError, match="scaling is an attack on a run with malicious clients"):
        ua.aggregate("sign_flip", {"w": torch.zeros(1)}, [{"w": torch.ones(1)}])
    with pytest.raises(UnalikeError, match="room for one"):
        Method.parse("alie + label_flip")


@pytest.mark.parametrize(
    ("share", "note"),
    [
        (0.05, "none of 5 clients is malicious with share=0.05"),
        (0.6, "3 of 5 clients are malicious: a defence that needs an honest majority cannot hold"),
    ],
)
def test_attack_by_no_client_or_by_most_is_noted(digits, share, note):
    assert any(note in w for w in ua.run(f"alie(share={share})", digits, rounds=1, **RUN).warnings)
