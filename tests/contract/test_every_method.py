"""The invariants that every method of the catalogue keeps, by its name."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from every_method import METHODS, SIZES, clone, federation, played, reference, rounding
from simulation import advance, distance, same

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.methods.method import Method
from unalike.methods.part import overrides, parameters
from unalike.methods.roles import (
    Aggregator,
    BaseWeights,
    Objective,
    ServerStep,
    TaskObjective,
    Weighting,
)
from unalike.training.client.client_task import BUFFERS
from unalike.training.client.client_update import SOLVER
from unalike.training.server.server_update import initial_server_state, make_broadcast
from unalike.training.server.update_checks import find_faults
from unalike.training.server.updates import decode_updates
from unalike.training.wire import NUMBERS_BYTES, round_wire

every = pytest.mark.parametrize("name", METHODS)
with_batch_norm = pytest.mark.parametrize(
    "name", [n for n, m in METHODS.items() if m.local_gradient is None]
)
ADAPTED = ("perfedavg", "adapted_loss")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


# --- 1: parts are values ----------------------------------------------------------------------------------------------


@every
def test_parts_are_immutable_and_equal_parts_hash_equal(name):
    method = METHODS[name]
    for part in method.parts:
        for field in parameters(part) or {"anything": None}:
            with pytest.raises((FrozenInstanceError, AttributeError)):
                setattr(part, field, None)
        assert part == type(part)(**parameters(part)) and hash(part) == hash(
            type(part)(**parameters(part))
        )
        assert part.name and type(part).__doc__
    before = repr(method)
    reference(name)
    assert repr(method) == before


@every
def test_method_repr_parses_to_equal_method(name):
    method = METHODS[name]
    assert Method.parse(repr(method)) == method
    assert repr(Method.parse(repr(method))) == repr(method)
    assert method + method == method and Method() + method == method


@every
def test_method_shared_by_two_threads_gives_same_parameters(name):
    sims = [federation(METHODS[name]) for _ in range(2)]

    def play(sim):
        torch.set_num_threads(1)
        sim.round(), sim.round()
        return sim.state

    with ThreadPoolExecutor(2) as pool:
        a, b = pool.map(play, sims)
    assert same(a.params, b.params) and same(a.params, reference(name)[0].state.params)


@every
def test_loss_of_the_work_is_minimized_or_refused(name):
    """The loss of the task by another name changes the last bits alone, and another loss changes the result."""
    method = METHODS[name]
    if not all(p.takes_loss for p in method.role(TaskObjective)):
        with pytest.raises(
            UnalikeError,
            match=r"loss='focal\(gamma=3\)' would not be minimized; leave one of them out",
        ):
            federation(method, loss="focal(gamma=3)")
        return
    sim, same_loss, other = (
        played(method, loss=text)[0] for text in (None, "focal(gamma=0)", "focal(gamma=3)")
    )
    start = sim.settings.model.params
    assert distance(same_loss.params, sim.params, start) <= 1e-3
    assert distance(other.params, sim.params, start) > 1e-2 or same(sim.params, start)


# --- 2 to 4: who sees what --------------------------------------------------------------------------------------------


@every
def test_client_update_holds_only_shared_parameters_messages_and_shares(name):
    sim, cohorts = reference(name)
    method, model = sim.method, sim.settings.model
    shared = {n for n in model.params if method.shares(n, model)}
    for cohort in cohorts:
        report = cohort.stacked
        assert {
            n.split(":")[0] for n in report.update
        } == shared  # `w:<what>` belongs to parameter w
        assert set(report.shared) == {entry for p in method.parts for entry in p.shares}
        assert set(report.messages) <= {p.name for p in method.parts if overrides(p, "finish")}
        assert all(len(t) == len(SIZES) for _, t in _leaves(report))
        assert report.size.tolist() == list(SIZES)
        work = sim.settings.work
        heard = [
            p for p in method.phases if not shared or any(model.within(p.moves, n) for n in shared)
        ]
        assert report.steps.tolist() == [
            sum(p.work(work).steps_for(n) for p in heard) for n in SIZES
        ]
        torch.testing.assert_close(report.weight, work.solver.weight(report.steps))
        assert not find_faults(cohort.ids, cohort.stacked)


@every
def test_wire_bytes_in_first_round_equal_bytes_of_broadcast_and_client_update(name):
    """What `wire` says is what the order and the report of a client take."""
    sim = federation(METHODS[name], norm=True)
    method, model = sim.method, sim.settings.model
    order, cohort = (
        make_broadcast(method, sim.settings, sim.state, len(SIZES), [0]).to(0),
        sim.run(),
    )
    report = cohort.stacked
    down = [
        {n: t for n, t in part.items() if method.shares(n, model)}
        for part in (order.params, order.buffers)
    ]
    up = [report.update, report.buffers, *report.messages.values(), *report.shared.values()]
    bytes_up = sum(tree.nbytes(tree.row(t, 0)) for t in up)
    items = round_wire(method, sim.settings, sim.executor.client_pool.context(0), len(SIZES))
    listed = {way: sum(i.bytes for i in items if i.direction == way) for way in ("down", "up")}
    assert listed["down"] == tree.nbytes(*down, *order.messages.values())
    assert listed["up"] == (bytes_up + NUMBERS_BYTES if items else 0)


@every
def test_state_entries_belong_to_named_parts_only(name):
    sim, _ = reference(name)
    names = {p.name for p in sim.method.parts}
    assert set(sim.state.part_states) <= names
    keepers = {f"{p.name}.{BUFFERS}" for p in sim.method.parts_with_client_model}
    assert set(sim.memory(0)) <= names | keepers | {BUFFERS, SOLVER}
    assert set(make_broadcast(sim.method, sim.settings, sim.state, 4).messages) <= names
    assert list(sim.state.params) == list(sim.settings.model.params)


@every
def test_wire_bytes_in_later_round_equal_bytes_of_broadcast_and_client_update(name):
    """Per client and round, in bytes; the order is the shared parameters, the buffers and the letters down."""
    sim, cohorts = played(METHODS[name], norm=True)
    model = sim.settings.model
    report, context = cohorts[-1].stacked, sim.executor.client_pool.context(0)
    items = round_wire(sim.method, sim.settings, context, len(SIZES))
    sent = tree.nbytes(
        report.update, report.buffers, *report.messages.values(), *report.shared.values()
    ) // len(SIZES)
    assert sum(i.bytes for i in items if i.direction == "up") == (
        sent + NUMBERS_BYTES if items else 0
    )
    order = make_broadcast(sim.method, sim.settings, sim.state, 4, [0]).to(0)
    shared = {
        n: t for n, t in (order.params | order.buffers).items() if sim.method.shares(n, model)
    }
    assert sum(i.bytes for i in items if i.direction == "down") == tree.nbytes(
        shared, *order.messages.values()
    )


@dataclass(frozen=True)
class Spy(Objective, ServerStep):
    """Adds nothing, looks at everything."""

    name: ClassVar[str] = "spy"
    rank: ClassVar[int] = 99
    needs: ClassVar[str] = "updates"
    seen: ClassVar[list] = []

    def server_init(self, params):
        return {"secret.server": torch.ones(2)}

    def client_init(self, params):
        return {"secret.client": torch.zeros(2)}

    def broadcast(self, server):
        assert set(server.state) == {"secret.server"}
        return {"secret.mail": server.state["secret.server"]}

    def loss(self, local, batch):
        assert set(local.state) == {"secret.client"} and set(local.message) == {"secret.mail"}
        return torch.zeros(())

    def finish(self, local):
        assert set(local.state) == {"secret.client"}
        return {"secret.client": local.state["secret.client"] + 1}, {
            "secret.letter": local.state["secret.client"]
        }

    def fold(self, update, letter, importance):
        assert set(letter) == {"secret.letter"}
        return letter

    def absorb(self, server, folded):
        assert folded["secret.letter"].shape == (2,)
        return server.state

    def step(self, server, update, cohort):
        assert set(cohort.message) == {"secret.letter"} and set(server.state) == {"secret.server"}
        self.seen.append((server.params, update))
        return update, server.state


@every
def test_part_sees_only_its_message_and_state_and_update_is_added_once(name):
    if any(p.stands_alone for p in METHODS[name].parts):
        pytest.skip("is a method by itself, without other parts")
    sim = federation(METHODS[name] + Spy())
    for number in range(2):
        before = sim.params
        sim.round()
        params, update = Spy.seen.pop()
        assert set(params) == set(update)
        assert same(sim.params, before | {n: before[n] + u for n, u in update.items()})
        assert sim.memory(1)["spy"]["secret.client"].tolist() == [number + 1] * 2
    assert same(sim.params, reference(name)[0].params)  # the spy is neutral


@every
def test_private_head_is_absent_from_client_update(name):
    """With a private head, nothing that leaves a client holds an entry of the head."""
    try:
        sim = federation(METHODS[name] + "private(select='head')")
    except UnalikeError:
        pytest.skip("does not combine with private parameters")
    sim.round()
    kept = sim.memory(0).get(
        "private", sim.params
    )  # states hold no fixed head: it stays as it started
    head = {n: kept[n] for n in ("head.weight", "head.bias")}
    report = sim.run().stacked
    assert {n.split(":")[0] for n in report.update} == {"body.weight", "body.bias"}
    for path, tensor in _leaves(report):
        assert not path.rpartition("/")[2].startswith("head") and not any(
            tensor[0].shape == h.shape and torch.equal(tensor[0], h) for h in head.values()
        )


@every
def test_round_leaves_broadcast_states_and_samples_unchanged(name):
    sim = federation(METHODS[name])
    sim.round()
    order = make_broadcast(sim.method, sim.settings, sim.state, 4)
    given = order, sim.state, sim.memory(0), sim.clients.x
    copies = clone(given)
    cohort = sim.run()
    body = clone(cohort.stacked)
    advance(sim.method, sim.settings, sim.state, cohort)
    assert all(same(a, b) for a, b in zip(given[2:], copies[2:]))
    assert all(
        same(getattr(order, f), getattr(copies[0], f)) for f in ("params", "buffers", "messages")
    )
    assert all(
        same(getattr(sim.state, f), getattr(copies[1], f))
        for f in ("params", "buffers", "part_states")
    )
    assert same(cohort.stacked, body)


def _leaves(nest, path=""):
    if isinstance(nest, torch.Tensor):
        yield path, nest
    elif isinstance(nest, dict):
        for key, value in nest.items():
            yield from _leaves(value, f"{path}/{key}")
    else:
        for key in nest._fields:
            yield from _leaves(getattr(nest, key), f"{path}/{key}")


# --- 6, 9: executors and padding --------------------------------------------------------------------------------------


def agree(a, b, tolerance):
    """Reports and states of two simulations, each within `tolerance` of the update it belongs to."""
    (sim, cohorts), (other, others) = a, b
    start = sim.settings.model.params
    for mine, theirs in zip(cohorts, others):
        for k in range(len(mine.ids)):
            u, v = tree.row(mine.update, k), tree.row(theirs.update, k)
            assert not u or distance(u, v, tree.zeros(v)) < tolerance
        assert same(mine.sizes, theirs.sizes) and same(mine.steps, theirs.steps)
    assert distance(sim.params, other.params, start) < tolerance
    for k in range(len(SIZES)):
        mine, theirs = sim.memory(k), other.memory(k)
        assert list(mine) == list(theirs)
        for drawer in mine:
            # as for updates, rounding is relative to the largest entries: those of fits without a finite end are large
            largest = max(
                (float(t.abs().max()) for t in theirs[drawer].values() if t.numel()), default=0
            )
            torch.testing.assert_close(
                mine[drawer], theirs[drawer], rtol=10 * tolerance, atol=tolerance * max(1, largest)
            )


@every
def test_batched_executor_equals_loop_executor(name):
    """Clients are ragged, one has a single sample; three of the four are trained at once, then the last."""
    agree(played(METHODS[name], "batched", chunk=3), reference(name), rounding(METHODS[name]))


@every
def test_batched_executor_with_batch_norm_equals_loop_executor(name):
    """1e-4: the norm divides by the spread of few rows. Two rounds, a client of one sample (normalized to 0) among
    them."""
    a, b = played(METHODS[name], "batched", norm=True), played(METHODS[name], norm=True)
    agree(a, b, 1e-4)
    for n, t in b[0].state.buffers.items():
        torch.testing.assert_close(a[0].state.buffers[n], t, rtol=1e-4, atol=1e-5)


@every
def test_padding_rows_do_not_change_client_updates_or_server_state(name):
    """Row 0 of the common tensors is nobody's and stands in the padding: whatever it holds, nothing changes."""
    results = []
    for value, label in ((0.0, 0), (1e6, 2)):
        sim = federation(METHODS[name], "batched", norm=True)
        sim.clients.x[0], sim.clients.y[0] = value, label
        results.append(
            (sim.round().stacked, sim.round().stacked, sim.state.params, sim.state.buffers)
        )
    for a, b in zip(*results):
        assert same(a, b)


@every
def test_client_with_one_sample_changes_its_parameters(name):
    sim, cohorts = reference(name)
    one = SIZES.index(1)
    sent = initial_server_state(sim.method, sim.settings)
    update = tree.row(decode_updates(sim.method, cohorts[0].update, sent), one)
    moved = update | tree.sub(sim.memory(one).get("private", {}), sim.settings.model.params)
    moved |= tree.row(cohorts[0].stacked.messages.get("hypernetwork", {}), one)
    nothing_to_learn = (
        cohorts[0].stacked.loss[one] == 0
    )  # a loss that knows the client's classes, of which there is one
    assert (float(tree.norm(moved)) > 0 or nothing_to_learn) and cohorts[0].steps[one] > 0


# --- 7: randomness ----------------------------------------------------------------------------------------------------


@every
def test_rounds_do_not_read_or_change_global_random_generators(name):
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)  # noqa: NPY002
        before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
        results.append(
            [
                played(METHODS[name], executor, dropout=0.5)[0].params
                for executor in ("loop", "batched")
            ]
        )
        assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[2]
        assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert same(*results)


# --- versions of memory -----------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_repeated_broadcast_gives_same_update_and_refused_round_keeps_client_state(name, executor):
    sim = federation(METHODS[name], executor)
    sim.round()
    before = clone(sim.memory(0)), clone(sim.memory(2))
    first = sim.run()  # answered, but not accepted: late, or refused
    assert same((sim.memory(0), sim.memory(2)), before)
    again = sim.run()
    assert same(first.stacked, again.stacked)
    # the round is lost for clients 0 and 2: the server goes on with 1 and 3, then all are asked again
    keep = torch.tensor([1, 3])
    sim.accepted |= {1: 1, 3: 1}
    sim.state = advance(sim.method, sim.settings, sim.state, first.rows(keep))
    assert same((sim.memory(0), sim.memory(2)), before)
    sim.round()
    assert sim.accepted == dict.fromkeys(range(4), 2)
    assert all(t.isfinite().all() for t in sim.params.values())


@every
def test_clients_absent_from_round_keep_their_client_state(name):
    sim = federation(METHODS[name])
    sim.round()
    before = clone([sim.memory(k) for k in (0, 2)])
    sim.round([1, 3])
    assert same([sim.memory(k) for k in (0, 2)], before)


# --- fine-tuning ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if method.finetuning_phase is not None]
)
def test_fine_tuning_leaves_states_and_next_round_unchanged(name):
    """States and memories stay as they were, and so does the next round; executors agree within 1e-5 of the way."""
    # a step that others adapt is found through the adaptation: in float32 the rounding of that depends on the processor
    dtype = torch.float64 if name in ADAPTED else torch.float32
    about = {"momentum": 0.5, "dtype": dtype}
    loop, batched, plain = (
        federation(METHODS[name], e, **about) for e in ("loop", "batched", "loop")
    )
    for sim in (loop, batched, plain):
        sim.round()
    before = clone((loop.state.params, loop.state.buffers, loop.state.part_states, loop.memory(0)))
    tuned, again, other = loop.tuned(), loop.tuned(), batched.tuned()
    assert same(
        (loop.state.params, loop.state.buffers, loop.state.part_states, loop.memory(0)), before
    )
    assert same(tuned, again) and list(tuned) == list(range(len(SIZES)))
    for k in range(len(SIZES)):
        assert (
            set(tuned[k]) == set(loop.params) and distance(tuned[k], loop.params, loop.params) > 0
        )
        assert distance(other[k], tuned[k], loop.params) < (1e-6 if name in ADAPTED else 1e-5)
    loop.round(), plain.round()
    assert same(loop.params, plain.params)


# --- 11: buffers ------------------------------------------------------------------------------------------------------


@with_batch_norm
def test_shared_buffers_are_averaged_and_batch_counts_take_the_maximum(name):
    sim = federation(METHODS[name], norm=True)
    if not sim.method.shares("norm.running_mean", sim.settings.model):
        sim.round()
        assert same(sim.state.buffers, sim.settings.model.buffers)
        return
    cohort = sim.round()
    buffers = cohort.stacked.buffers
    assert list(sim.state.buffers) == list(sim.settings.model.buffers)
    count = sim.state.buffers["norm.num_batches_tracked"]
    assert count.dtype == torch.int64 and count == sim.executor.client_pool.steps(max(SIZES))
    [base] = sim.method.role(BaseWeights)
    rule = type(sim.method.aggregator)
    plain = (
        rule.combine_buffers is Aggregator.combine_buffers
        and rule.final_weights is Aggregator.final_weights
    )
    plain = plain and not sim.method.role(Weighting)
    for n in ("norm.running_mean", "norm.running_var"):
        assert sim.state.buffers[n].dtype == torch.float32
        low, high = buffers[n].amin(0), buffers[n].amax(0)
        assert ((sim.state.buffers[n] >= low - 1e-6) & (sim.state.buffers[n] <= high + 1e-6)).all()
        if plain:
            weights = base.weights(cohort) / base.weights(cohort).sum()
            expected = sum(w * b for w, b in zip(weights, buffers[n]))
            torch.testing.assert_close(
                sim.state.buffers[n], expected, rtol=1e-5, atol=1e-6
            )  # float32


@with_batch_norm
def test_local_buffers_stay_in_client_state_across_rounds(name):
    sim, cohorts = played(METHODS[name], buffers="local", norm=True)
    assert all(not c.stacked.buffers for c in cohorts) and same(
        sim.state.buffers, sim.settings.model.buffers
    )
    for k in range(len(SIZES)):
        batches = [
            rows
            for r in (0, 1)
            for phase in sim.executor.client_pool.schedules([k], r)
            for rows in phase[0]
        ]
        # a batch of one row has no variance and leaves the norm alone
        assert sim.memory(k)[BUFFERS]["norm.num_batches_tracked"] == sum(
            len(rows) > 1 for rows in batches
        )


@every
def test_first_buffers_equal_buffers_of_first_client(name):
    sim, cohorts = played(METHODS[name], buffers="first", norm=True)
    first = tree.row(cohorts[-1].stacked.buffers, 0)
    assert same(tree.only(sim.state.buffers, first), first)


# --- solvers ----------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize(
    "solver",
    [{"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, {"optimizer": "adamw", "lr": 0.01}],
)
def test_batched_executor_with_other_solvers_equals_loop_executor(name, solver):
    """The solver's state is kept or not; AdamW in float64, as it divides by small gradients and its first steps are all of nearly
    one size: float32's rounding would decide which of them are the largest, as `topk` asks."""
    about = solver | {"dtype": torch.float64 if "optimizer" in solver else torch.float32}
    try:
        a, b = (
            played(METHODS[name], e, keep_optimizer_state=True, clip=1.0, **about)
            for e in ("loop", "batched")
        )
    except UnalikeError as error:
        pytest.skip(str(error))
    agree(a, b, 1e-7 if "optimizer" in solver else 1e-4)
    assert all(t.isfinite().all() for t in a[0].params.values())
