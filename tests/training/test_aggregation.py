"""Adding updates up as they arrive gives the same state as stacking them; wrong results of parts are refused."""

from dataclasses import dataclass

import pytest
import torch
from every_method import METHODS, SIZES, federation, reference
from simulation import Clients, Simulation, advance, distance, mlp

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.nests import map_tensors, select_rows
from unalike.methods.method import Method
from unalike.methods.roles import (
    Aggregator,
    BaseWeights,
    Correction,
    Personalizer,
    ServerStep,
    Weighting,
)
from unalike.training.server import server_update
from unalike.training.server.server_round import ServerRound, SumWeights
from unalike.training.server.server_update import make_broadcast
from unalike.training.server.summed_updates import OtherWeights, StreamingSum

LINEAR = [name for name, method in METHODS.items() if method.needs_sums_only]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def folded(sim, cohort, pieces, keep=None):
    """The state after the round of `cohort`, its updates added in `pieces` (tuples of places); None if it has other weights."""
    asked = tuple(range(len(SIZES)))
    expected = sim.executor.client_pool.expected(asked, sim.members)
    server = ServerRound(sim.method, sim.settings, sim.state, len(SIZES))
    given = server.sum_weights(expected)
    parts = [StreamingSum(sim.method, sim.state, given, sim.settings.buffers) for _ in range(2)]
    for number, piece in enumerate(pieces):
        parts[number % 2].add(
            [cohort.ids[i] for i in piece], select_rows(cohort.stacked, torch.tensor(piece))
        )
    parts[0].merge(parts[1].updates)
    sums = parts[0].updates
    try:
        state = server_update.advance(sim.method, sim.settings, sim.state, sums, sim.members)
    except OtherWeights:
        state = None
    return state, sums


def close(a, b, start):
    """Within 1e-6 of the update: float32 sums in another order."""
    assert a.round == b.round and list(a.params) == list(b.params)
    assert distance(a.params, b.params, start) < 1e-6 or not a.params
    for n in b.buffers:
        torch.testing.assert_close(a.buffers[n], b.buffers[n], rtol=1e-5, atol=1e-6)
    assert list(a.part_states) == list(b.part_states)
    for name in b.part_states:
        torch.testing.assert_close(a.part_states[name], b.part_states[name], rtol=1e-5, atol=1e-6)


def test_method_linear_catalogue():
    assert {"fedavg", "fedmix", "scaffold", "feddyn", "moon", "ditto", "topk", "feddisco"} <= set(
        LINEAR
    )
    assert not {"fedlws", "krum", "fedpake", "fedgen", "ldawa"} & set(LINEAR)


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("buffers", ["average", "first"])
def test_streaming_sum_equals_advance_for_every_linear_method(name, buffers):
    sim = federation(METHODS[name], norm=True, buffers=buffers)
    sim.round()
    cohort = sim.run()
    expected = sim.executor.client_pool.expected(cohort.ids, sim.members).stacked
    for field in ("size", "steps", "weight"):
        torch.testing.assert_close(getattr(expected, field), getattr(cohort.stacked, field))
    stacked = advance(sim.method, sim.settings, sim.state, cohort)
    for pieces in ([(0,), (1,), (2,), (3,)], [(3, 1), (2,), (0,)]):
        state, sums = folded(sim, cohort, pieces)
        assert sums.ids == cohort.ids and not sums.refused
        close(state, stacked, sim.state.params)


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize(
    "solver", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}], ids=str
)
def test_expected_numbers_equal_reported_numbers_bitwise(solver, executor):
    """If they differed in the last bit, so would a run that keeps single updates and one that adds them up."""
    clients = Clients.random(range(1, 21))
    sim = Simulation("fednova", mlp(), clients, executor=executor, batch_size=1, lr=0.01, **solver)
    found, known = (
        sim.run().stacked,
        sim.executor.client_pool.expected(sim.everyone(), sim.members).stacked,
    )
    assert all(
        torch.equal(getattr(found, name), getattr(known, name))
        for name in ("size", "steps", "weight")
    )


@pytest.mark.parametrize("name", ["fedavg", "fednova", "scaffold", "uniform"])
def test_streaming_sum_refused_update_changes_the_other_weights(name):
    sim = federation(METHODS[name])
    sim.round()
    cohort = sim.run()
    bad = map_tensors(torch.clone, cohort.stacked)
    bad.update["head.bias"][1, 0] = torch.nan
    kept = cohort.rows(torch.tensor([0, 2, 3]))
    state, sums = folded(sim, type(cohort)(cohort.ids, bad, cohort.population), [(0, 1), (2, 3)])
    assert list(sums.refused) == [1] and "not finite" in sums.refused[1] and sums.ids == (0, 2, 3)
    close(state, advance(sim.method, sim.settings, sim.state, kept), sim.state.params)


def test_streaming_sum_without_common_factor_gives_none():
    """FedDisco: without one client the weights of the others change by different factors."""
    sim = federation(METHODS["feddisco(discrepancy='cosine', target='global')"])
    cohort = sim.run()
    bad = map_tensors(torch.clone, cohort.stacked)
    bad.update["head.bias"][0, 0] = torch.inf
    found, sums = folded(
        sim, type(cohort)(cohort.ids, bad, cohort.population), [(0,), (1,), (2,), (3,)]
    )
    assert found is None and list(sums.refused) == [0]


def test_linear_method_part_using_updates_without_needs_is_refused():
    class Nosy(ServerStep):
        name = "nosy"

        def step(self, server, update, cohort):
            return tree.row(cohort.update, 0), {}

    sim = federation(Method(*METHODS["fedavg"].parts, Nosy()))
    assert sim.method.needs_sums_only
    with pytest.raises(
        UnalikeError, match=r'nosy looks at what single clients sent.*needs = "updates"'
    ):
        folded(sim, sim.run(), [(0, 1, 2, 3)])


@pytest.mark.parametrize("needed", ["sums", "updates"])
@pytest.mark.parametrize(
    "wrong", [torch.sum, lambda u: u[None]], ids=["a number", "a row too many"]
)
def test_server_step_update_of_wrong_shape_is_refused(needed, wrong):
    """A number would be added to a whole layer; an extra row would change the model's shape."""

    class Wrong(ServerStep):
        name, needs = "wrong", needed

        def step(self, server, update, cohort):
            return tree.map(wrong, update), {}

    data = [ua.ClientData(train=(torch.randn(n, 4), torch.arange(n) % 3)) for n in SIZES]
    method = Method(*METHODS["fedavg"].parts, dataclass(frozen=True)(Wrong)())
    with pytest.raises(
        UnalikeError,
        match=r"update of body.*weight has the shape \[.*expected \[\d+, 4\].*wrong\(\)",
    ):
        ua.run(method, data, model=mlp(), rounds=1, executor="loop")


@pytest.mark.parametrize("needed", ["sums", "updates"])
def test_weighting_by_losses_without_needs_is_refused(needed):
    """Losses are known only after training, the weights of a linear method before it."""

    class ByLoss(Weighting):
        name, needs = "by_loss", needed

        def weigh(self, cohort, weights):
            return weights * cohort.stacked.loss.exp()

    data = [ua.ClientData(train=(torch.randn(n, 4), torch.arange(n) % 3)) for n in SIZES]
    method = Method(*METHODS["fedavg"].parts, dataclass(frozen=True)(ByLoss)())
    if needed == "updates":
        assert len(ua.run(method, data, model=mlp(), rounds=1, executor="loop").history.rounds) == 2
        return
    with pytest.raises(UnalikeError, match=r'known only after training.*needs = "updates"'):
        ua.run(method, data, model=mlp(), rounds=1, executor="loop")


def test_streaming_sum_takes_memory_of_one_model():
    sim = federation(METHODS["fedavg"])
    reports = sim.run().stacked
    each_the_same = torch.full((1000,), 0.001)
    fold = StreamingSum(
        sim.method,
        sim.state,
        SumWeights(tuple(range(1000)), each_the_same, each_the_same, each_the_same),
    )
    for k in range(1000):
        fold.add([k], select_rows(reports, torch.tensor([k % 4])))
    assert tree.nbytes(fold.updates.update) == tree.nbytes(sim.state.params)
    mean = tree.map(lambda t: t.mean(0), reports.update)
    assert (
        distance(fold.updates.update, mean, tree.zeros(mean)) < 1e-5
    )  # a thousand float32 additions


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_training_leaves_broadcast_unchanged(name):
    sim, _ = reference(name)
    order = make_broadcast(sim.method, sim.settings, sim.state, len(SIZES))
    before = map_tensors(torch.clone, order.params)
    sim.run()
    assert all(torch.equal(before[n], order.params[n]) for n in before)


@pytest.mark.parametrize(
    "role, verb, wrong, what",
    [
        (
            Correction,
            "correct",
            lambda grads: {},
            "was given .*weight.* differs in body.*expected a tensor for each",
        ),
        (
            Correction,
            "correct",
            lambda grads: tree.map(lambda g: g.sum().reshape(1), grads),
            r"float32 \[1\]; expected",
        ),
        (
            Correction,
            "correct",
            lambda grads: tree.map(torch.Tensor.double, grads),
            r"float64 .*; expected float32",
        ),
        (
            Correction,
            "correct",
            lambda grads: (grads, {}),
            "gives tuple; expected a tensor for each",
        ),
        (
            Aggregator,
            "combine",
            lambda cohort: dict([*tree.row(cohort.update, 0).items()][1:]),
            "differs in body",
        ),
        (
            Aggregator,
            "combine",
            lambda cohort: tree.map(lambda t: 0.0, cohort.update),
            "gives float for .*a tensor",
        ),
        (
            ServerStep,
            "step",
            lambda update: update,
            r"gives dict; expected two trees, as in \(tree, {}\)",
        ),
        (ServerStep, "step", lambda update: (dict([*update.items()][1:]), {}), "differs in body"),
        (
            BaseWeights,
            "weights",
            lambda cohort: torch.ones(1),
            r"shape \[1\]; expected a tensor of shape \[4\]",
        ),
        (BaseWeights, "weights", lambda cohort: [1.0] * 4, "gives list; expected a tensor"),
        (
            Weighting,
            "weigh",
            lambda cohort: torch.tensor([1, 1, 1, -0.5]),
            "a weight of -0.5; expected 0 or more",
        ),
        (
            Weighting,
            "weigh",
            lambda cohort: torch.tensor([1, torch.nan, 1, -0.5]),
            "a weight of -0.5; expected 0 or more",
        ),
    ],
)
@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_part_returning_wrong_tree_is_refused(role, verb, wrong, what, executor):
    """Without the check a missing gradient stays uncorrected, a smaller one is read beyond its end, a parameter is not updated."""
    place = int(verb in ("correct", "combine", "step"))
    own = type("Own", (role,), {"name": "own", verb: lambda self, *given: wrong(given[place])})
    data = [ua.ClientData(train=(torch.randn(n, 4), torch.arange(n) % 3)) for n in SIZES]
    method = METHODS["fedavg"] + dataclass(frozen=True)(own)()
    with pytest.raises(UnalikeError, match=rf"own\.{verb} .*{what}"):
        ua.run(method, data, model=mlp(), rounds=1, executor=executor)


@pytest.mark.parametrize(
    "value",
    [torch.sum, torch.ones(2), [1, 2], (1, torch.sum)],
    ids=["function", "tensor", "list", "tuple"],
)
def test_part_field_without_spec_text_is_refused(value):
    """A folder identifies a run by its text: it would resume a run of another function with the same text."""

    @dataclass(frozen=True)
    class Held(ServerStep):
        name = "held"
        what: object = None

        def step(self, server, direction):
            return direction, {}

    assert "what=(1, 'a', None)" in repr(Method(Held((1, "a", None))))
    with pytest.raises(UnalikeError, match=r"held: what=.* expected a number, text"):
        Method(Held(value))


def overwritten(values):
    next(iter(values.values())).add_(0.1)


class Spoils:
    """Parts that overwrite what they are given, each in another hook."""

    @dataclass(frozen=True)
    class Begins(Personalizer):
        name = "own"

        def begin(self, local):
            overwritten(local.params)
            return local.params, local.state

    @dataclass(frozen=True)
    class Steps(ServerStep):
        name = "own"

        def step(self, server, update, cohort):
            overwritten(server.params)
            return update, {}

    @dataclass(frozen=True)
    class Evaluates(Personalizer):
        name = "own"

        def personal(self, model, params, memory):
            overwritten(params)
            return params


@pytest.mark.parametrize("kind", ["Begins", "Steps", "Evaluates"])
def test_part_overwriting_its_inputs_is_refused(kind):
    """It would change the model for all clients, also in evaluation, and only in the loop."""
    data = [
        ua.ClientData(
            train=(torch.randn(n, 4), torch.arange(n) % 3),
            test=(torch.randn(3, 4), torch.arange(3)),
        )
        for n in SIZES
    ]
    with pytest.raises(
        UnalikeError, match=r"own.* writes over .*weight.*expected (a )?new tensors?"
    ):
        ua.run(
            METHODS["fedavg"] + getattr(Spoils, kind)(),
            data,
            model=mlp(),
            rounds=2,
            executor="loop",
        )
