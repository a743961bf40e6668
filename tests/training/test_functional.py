"""One server round and one client's work by themselves give what the engine gives."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import unalike as ua
from unalike.methods.plan import steps_of
from unalike.runtime.round_loop import run_round
from unalike.runtime.setup.run_config import configure_run
from unalike.runtime.stages.local_backend import LocalStage

EXAMPLES = Path(__file__).parents[2] / "examples"
WORK = ua.Work(batch_size=4, lr=0.1)


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    return [
        ua.ClientData(
            train=(rng.normal(size=(n, 5)).astype(np.float32), rng.integers(0, 3, n)), name=f"c{n}"
        )
        for n in (9, 6, 14)
    ]


def network(norm: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [
            nn.Linear(5, 6),
            *([nn.BatchNorm1d(6)] if norm else []),
            nn.ReLU(),
            nn.Linear(6, 3),
        ]
        return nn.Sequential(*layers)


SAME = [
    "fedavg",
    "uniform",
    "fedprox(mu=1)",
    "fednova",
    "fedmix(mu=1)",
    "scaffold",
    "feddyn",
    "moon",
    "fedntd",
    "ditto",
]
SAME += [
    "apfl",
    "fedavgm",
    "fedlws",
    "fedpake",
    "fedsa + lws",
    "median",
    "krum",
    "feddisco",
    "fedadam",
    "scaffold + fednova",
]


def test_local_update_minimizes_the_loss_given(people):
    """One step with gamma = 0 and weights of 2 is a step of twice the length."""
    module, batch = (
        network(),
        [(torch.as_tensor(people[0].train[0]), torch.as_tensor(people[0].train[1]))],
    )
    params = module.state_dict()
    options = {"params": params, "batches": batch, "lr": 0.1}
    plain, double = (
        ua.local_update("fedprox", module, loss=loss, **options)[0]
        for loss in (None, "focal(gamma=0, class_weights=(2, 2, 2))")
    )
    for name, start in params.items():
        torch.testing.assert_close(double[name] - start, 2 * (plain[name] - start))
    with pytest.raises(
        ua.UnalikeError, match="balanced_softmax brings the loss that fits the model"
    ):
        ua.local_update("balanced_softmax", module, loss="focal", **options)
    with pytest.raises(ua.UnalikeError, match="found 2 class weights; expected 3"):
        ua.local_update("fedavg", module, loss="focal(class_weights=(1, 2))", **options)


@pytest.mark.parametrize("kind", ["plain", "norm", "frozen"])
@pytest.mark.parametrize("spec", SAME)
def test_local_update_and_aggregate_for_three_rounds_equal_engine_run(people, spec, kind):
    """The same batches, carried by hand: the same parameters, buffers and memories as in the engine."""
    norm, module = kind == "norm", network(kind == "norm")
    next(module.parameters()).requires_grad_(kind != "frozen")
    run_config = configure_run(spec, people, model=module, rounds=3, work=WORK, executor="loop")
    sim = LocalStage(run_config, next(steps_of(run_config.plan, run_config.plan_inputs)))
    sim.start()
    site = next(iter(sim.state.groups.values())).executor.client_pool
    params, state, client_states = module.state_dict(), None, [None] * 3
    for number in range(3):
        sent, letters = [], []
        for k in range(3):
            rows = site.schedules([k], number)[0][0]
            batches = [
                (run_config.population.x[r], run_config.population.y[r])
                for r in map(torch.from_numpy, rows)
            ]
            messages = state.messages if state else None
            new, letter, client_states[k] = ua.local_update(
                spec,
                module,
                params,
                batches,
                lr=0.1,
                client_state=client_states[k],
                messages=messages,
            )
            sent.append(new), letters.append(letter)
        params, state = ua.aggregate(
            spec, params, sent, messages=letters, state=state, work=WORK, model=module
        )
        run_round(sim)
    [engine] = sim.state.states.values()
    for name, value in (engine.params | engine.buffers).items():
        # models minus models, not sums of updates: 4e-9 after one round, which a norm over few rows enlarges in the next
        torch.testing.assert_close(
            params[name], value, rtol=1e-3 if norm else 1e-5, atol=1e-4 if norm else 1e-6
        )
    for k in range(3):
        for drawer, memory in next(iter(sim.state.groups.values())).client_state(k).items():
            for name, value in memory.items():
                torch.testing.assert_close(
                    client_states[k][drawer][name], value, rtol=1e-3, atol=1e-4 if norm else 1e-5
                )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_aggregate_of_numpy_arrays_keeps_array_type_and_dtype(dtype):
    start = {
        "w": np.array([1.0, 2], dtype),
        "bn.running_mean": np.array([0.5], dtype),
        "bn.num_batches_tracked": np.array(3),
    }
    sent = [{n: v + i for n, v in start.items()} for i in (1, 3)]
    new, state = ua.aggregate("fedavg", start, sent, num_examples=[3, 1])
    assert {n: (type(v), v.dtype, v.tolist()) for n, v in new.items()} == {
        "w": (np.ndarray, dtype, [2.5, 3.5]),
        "bn.running_mean": (np.ndarray, dtype, [2.0]),
        "bn.num_batches_tracked": (np.ndarray, start["bn.num_batches_tracked"].dtype, 6),
    }
    assert state.round == 1 and state.messages == {}


def test_aggregate_of_float64_tensors_computes_in_float64():
    start = {"w": torch.zeros(1, dtype=torch.float64)}
    sent = [{"w": torch.full((1,), 1 + i * 1e-12, dtype=torch.float64)} for i in range(3)]
    new, _ = ua.aggregate("uniform", start, sent)
    assert abs(new["w"].item() - (1 + 1e-12)) < 1e-15


def test_aggregate_with_named_buffers_averages_them_without_shrinking():
    """A named buffer is averaged, not shrunk: lws draws parameters to zero and leaves it."""
    start = {"w": torch.ones(2), "ema": torch.ones(2)}
    sent = [
        {"w": torch.tensor([1.0, 2]), "ema": torch.full((2,), 3.0)},
        {"w": torch.tensor([2.0, 1]), "ema": torch.ones(2)},
    ]
    new, _ = ua.aggregate("fedlws(beta=1)", start, sent, buffers=["ema"])
    assert new["ema"].tolist() == [2, 2] and (new["w"] < 1.5).all()


@pytest.mark.parametrize(
    "spec, given, named",
    [
        ("scaffold", {}, "messages="),
        ("fednova", {}, "steps="),
        ("feddisco", {}, "label_histogram"),
        ("fedlaw", {}, "proxy"),
        ("centralised", {}, "ua.run"),
        ("fedavg", {"num_examples": [1]}, "expected one for each"),
        ("fedavg", {"num_examples": [0, 0]}, "training samples"),
    ],
)
def test_aggregate_missing_argument_is_named(spec, given, named):
    start, sent = {"w": torch.zeros(2)}, [{"w": torch.ones(2)}, {"w": torch.ones(2)}]
    with pytest.raises(ua.UnalikeError, match=named):
        ua.aggregate(spec, start, sent, **given)


def test_aggregate_and_local_update_argument_that_does_not_fit_is_named():
    start = {"w": torch.zeros(2)}
    for sent, named in (
        ([{"w": torch.ones(1)}], "shape"),
        ([{"v": torch.ones(2)}], "v, w"),
        ([], "at least one"),
        ([{"w": torch.tensor([1.0, float("nan")])}], "not finite"),
    ):
        with pytest.raises(ua.UnalikeError, match=named):
            ua.aggregate("fedavg", start, sent)
    with pytest.raises(ua.UnalikeError, match="batch"):
        ua.local_update("fedavg", network(), network().state_dict(), [], lr=0.1)
    with pytest.raises(ua.UnalikeError, match="do not fit"):
        ua.local_update(
            "fedavg",
            network(),
            start,
            [(torch.ones(2, 5), torch.zeros(2, dtype=torch.long))],
            lr=0.1,
        )


def test_aggregate_with_steps_momentum_and_facts_equals_hand_calculation():
    """FedNova with momentum 0.5 after 1 and 3 steps: ||a|| = 1 and [3 - .5 (1 - .125) / .5] / .5 = 4.25; equal sizes, so
    w+ = (1 + 4.25) / 2 * (1/1 + 8.5/4.25) / 2 = 3.9375."""
    start, sent = {"w": torch.zeros(1)}, [{"w": torch.ones(1)}, {"w": torch.full((1,), 8.5)}]
    new, _ = ua.aggregate("fednova", start, sent, steps=[1, 3], work=ua.Work(momentum=0.5))
    assert new["w"].item() == pytest.approx(3.9375)
    counts = np.array([[5, 5], [10, 0]])
    new, _ = ua.aggregate("feddisco(a=1, b=0)", start, sent, facts={"label_histogram": counts})
    assert new["w"].item() == pytest.approx(
        1.0
    )  # the second client's weight, 1/2 - 1, is cut off at 0


def test_local_update_with_num_examples_sends_that_size_instead_of_batch_total():
    net = network()
    batches = [(torch.ones(3, 5), torch.zeros(3, dtype=torch.long))] * 4
    for given, size in ((None, 12), (3, 3)):
        _, letter, _ = ua.local_update(
            "fedavg", net, net.state_dict(), batches, lr=0.1, num_examples=given
        )
        assert letter.size == size


def test_aggregate_without_learning_rate_is_refused_where_server_needs_it():
    start, sent = {"w": torch.zeros(1)}, [{"w": torch.ones(1)}, {"w": torch.ones(1)}]
    for spec in ("feddc", "fedprox(mu=0.5) + fednova(prox_aware=True)"):
        with pytest.raises(ua.UnalikeError, match=r"needs work=Work\(lr="):
            ua.aggregate(spec, start, sent, steps=[1, 2])
        ua.aggregate(spec, start, sent, steps=[1, 2], work=ua.Work(lr=0.1))
    ua.aggregate("fedprox(mu=0) + fednova(prox_aware=True)", start, sent, steps=[1, 2])


def test_own_loop_example_after_eight_rounds_exceeds_half_accuracy():
    spec = importlib.util.spec_from_file_location("own_loop", EXAMPLES / "own_loop.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(rounds=8) > 0.5


def test_flower_strategy_result_equals_aggregate():
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from flwr.app import ArrayRecord, MetricRecord, RecordDict

    sys.path.insert(0, str(EXAMPLES))
    try:
        from flower_strategy import Unalike
    finally:
        sys.path.remove(str(EXAMPLES))
    start = network().state_dict()
    sent = [{n: v + s for n, v in start.items()} for s in (0.1, 0.3, 0.2)]
    replies = []
    for node, params in enumerate(sent):
        content = RecordDict(
            {"arrays": ArrayRecord(params), "metrics": MetricRecord({"num-examples": 4})}
        )
        replies.append(
            SimpleNamespace(
                has_error=lambda: False, content=content, metadata=SimpleNamespace(src_node_id=node)
            )
        )
    strategy = Unalike("fedpake + lws")
    strategy.current = start
    record, _ = strategy.aggregate_train(1, replies)
    expected, _ = ua.aggregate("fedpake + lws", start, sent)
    for name, value in record.to_torch_state_dict().items():
        torch.testing.assert_close(value, expected[name])
