"""The pieces under the methods: spec text, work, solvers, norms, trees, memories, checkpoints."""

import numpy as np
import pytest
import torch
from every_method import SIZES
from hypothesis import given
from hypothesis import strategies as st
from simulation import Clients, Simulation, mlp, same
from torch import Tensor, nn

import unalike as ua
from unalike._utils.errors import InvalidValue, UnalikeError
from unalike._utils.option_types import check_kinds
from unalike._utils.registry import Registry
from unalike._utils.spec import Call, parse, parse_one
from unalike._utils.tensor_files import read_tensors, write_tensors
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.norm_layers import WeightedBatchNorm
from unalike.core.solvers import SGD, Adam, AdamW
from unalike.core.work import Work
from unalike.methods.method import Method
from unalike.methods.plan import plan
from unalike.training.client_states import ClientStates
from unalike.training.validation import refusals

# --- spec text --------------------------------------------------------------------------------------------------------


def test_parse_names_with_literals_gives_calls():
    assert parse(" a + b(x=1, y=-2.5, z=(1, 'two', None), w=inf) ") == [
        Call("a"),
        Call("b", {"x": 1, "y": -2.5, "z": (1, "two", None), "w": float("inf")}),
    ]
    assert parse_one("a(x=True)") == Call("a", {"x": True})


@pytest.mark.parametrize(
    "text, hint",
    [
        ("", "cannot read"),
        ("fedprox(", "cannot read"),
        ("fedprox(0.1)", "parameter=value"),
        ("fedprox(**x)", r"\*\*"),
        ("a - b", "is not a name"),
        ("a.b", "is not a name"),
        ("a(x=b)", "not a literal"),
        ("a(x=open('f'))", "not a literal"),
        ("a(x=1)(y=2)", "is not a name"),
        ("3", "is not a name"),
        ("a(x=-'b')", "literal"),
        ("a(x=1, x=2)", "x"),
        ("__import__('os')", "parameter=value"),
        ("a\0", "cannot read"),
    ],
)
def test_parse_text_that_is_no_spec_is_refused_with_hint(text, hint):
    with pytest.raises(UnalikeError, match=hint):
        parse(text)


def test_registry_builder_defined_again_replaces_itself_and_other_builder_is_refused():
    """A notebook's cell runs again; what another function stands for stays refused."""
    names = Registry("thing", home="unalike.core")

    def define(size):
        @names.register("box")
        def box():
            return size

    define(1)
    define(2)
    assert names.build(Call("box")) == 2
    with pytest.raises(UnalikeError, match=r"the thing name 'box' is taken by .*choose another"):
        names.register("box")(lambda: 3)


def test_parse_one_two_names_are_refused():
    with pytest.raises(UnalikeError, match="2 names"):
        parse_one("a + b")


def test_check_kinds_value_unlike_annotation_is_refused():
    def build(
        x: Tensor, *, n: int = 1, pair: tuple[float, int] | None = None, more: tuple[str, ...] = (), **rest: object
    ):
        """Built of plain values."""

    check_kinds(build, {"n": np.int64(2), "pair": [1, 2], "more": ("a", "b"), "x": 3, "other": 4})
    for wrong, expected in (
        ({"n": True}, "found n=True, expected a whole number"),
        ({"n": 2.0}, "found n=2.0, expected a whole number"),
        ({"pair": (1, 2, 3)}, r"expected \(a number, a whole number\) or None"),
        ({"pair": (1, 2.5)}, r"expected \(a number, a whole number\) or None"),
        ({"more": "ab"}, r"expected \(a text, \.\.\.\)"),
    ):
        with pytest.raises(InvalidValue, match=expected):
            check_kinds(build, wrong)


def test_check_kinds_unresolvable_annotation_is_not_checked():
    def build(n: "Nowhere" = 1):  # noqa: F821
        """Built of what this module does not import."""

    check_kinds(build, {"n": "text"})


@pytest.mark.parametrize(
    "text, hint",
    [
        ("fedporx", "fedprox"),
        ("fedprox(nu=1)", "mu=0.001"),
        ("fedprox(mu=-1)", "mu=-1"),
        ("fedprox(mu='much')", "mu"),
        ("scaffold(option=3)", "option=3"),
        ("apfl(mixing='both')", "mixing"),
        ("apfl(alpha=1.5)", "alpha"),
        ("feddyn(alpha=0)", "alpha"),
        ("moon(tau=0)", "tau"),
        ("fedsa(micro=0)", "micro"),
        ("fedavgm(momentum=1)", "momentum"),
        ("clip(norm=0)", "norm"),
        ("fedlws(scope='all')", "scope"),
        ("fedlws(clamp=(0.2,))", "clamp"),
        ("proximal(mu=nan)", "mu"),
        ("private(select='tail')", "select"),
        ("fedprox(mu=0.1) + fedprox(mu=0.2)", "different settings"),
        ("fedsa + fednova", "room for one"),
        ("ditto + apfl", "room for one"),
        ("ditto + private", "evaluated"),
        ("centralised + fedprox", "pooled data"),
    ],
)
def test_plan_wrong_method_text_is_refused_with_hint(text, hint):
    with pytest.raises(UnalikeError, match=hint):
        plan(text)


def test_method_swap_replaces_part_of_same_role():
    m = Method.parse("fedprox + scaffold")
    assert m.swap("proximal(mu=1)") == Method.parse("scaffold + fedprox(mu=1)")
    assert Method.parse("fednova + lws").swap("normalized_skew") == Method.parse("normalized_skew + lws")


def test_method_swap_to_default_part_equals_method_with_that_setting():
    assert Method.parse("scaffold").swap("by_size") == Method.parse("scaffold(weighted=True)")


def test_method_repr_with_infinity_in_tuple_parses_to_equal_method():
    [lws] = [p for p in Method.parse("fedlws(clamp=(0.01, 0.2))").parts if p.name == "lws"]
    method = Method(type(lws)(clamp=(0.01, float("inf"))))
    assert Method.parse(repr(method)) == method


# --- work -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"steps": 0},
        {"batch_size": 0},
        {"lr": 0},
        {"lr": -1},
        {"momentum": 1},
        {"momentum": -0.1},
        {"nesterov": True},
        {"optimizer": "adam", "momentum": 0.9},
        {"optimizer": "lion"},
        {"weight_decay": -1},
        {"schedule": 0},
        {"clip": 0},
        {"lr": float("nan")},
        {"rounds": 3},
    ],
)
def test_work_wrong_setting_is_refused(wrong):
    with pytest.raises((ValueError, TypeError)):
        Work(**wrong)


@given(
    st.integers(1, 40),
    st.one_of(st.none(), st.integers(1, 12)),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 30)),
)
def test_work_batches_use_every_sample_once_per_epoch(n, size, epochs, steps):
    work = Work(epochs=epochs, batch_size=size, steps=steps)
    batches = work.batches(n, np.random.default_rng(0))
    assert len(batches) == work.steps_for(n) == (steps or epochs * -(-n // (size or n)))
    assert all(1 <= len(b) <= (size or n) and len(set(b.tolist())) == len(b) for b in batches)
    assert [b.tolist() for b in batches[1:]] == [b.tolist() for b in batches][1:] and batches[-1].tolist()
    per_epoch = -(-n // (size or n))
    for first in range(0, len(batches) - per_epoch + 1, per_epoch):
        assert sorted(np.concatenate(batches[first : first + per_epoch]).tolist()) == list(range(n))


def test_work_without_samples_has_no_steps_and_no_batches():
    assert (
        Work().steps_for(0) == 0
        and Work(steps=5).steps_for(0) == 0
        and not Work(batch_size=None).batches(0, np.random.default_rng(0))
    )


def test_batches_depend_only_on_seed_round_and_client():
    sim, other = (Simulation("fedavg", mlp(), Clients.random(SIZES), seed=s, batch_size=2) for s in (3, 4))

    def order(s, client, round):
        return [b.tolist() for b in s.batches(client, round)]

    assert order(sim, 0, 1) == order(sim, 0, 1) != order(sim, 0, 2)
    assert order(sim, 0, 1) != order(other, 0, 1)
    more = Simulation("fedprox", mlp(), Clients.random((*SIZES, 9)), seed=3, batch_size=2)
    assert order(sim, 0, 1) == order(more, 0, 1)


# --- solvers ----------------------------------------------------------------------------------------------------------

SOLVERS = {
    "sgd": (SGD(), torch.optim.SGD, {}),
    "momentum": (SGD(0.9, weight_decay=0.1), torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "nesterov": (SGD(0.9, True, 0.1), torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "adam": (Adam(0.1), torch.optim.Adam, {"weight_decay": 0.1}),
    "adamw": (AdamW(0.1), torch.optim.AdamW, {"weight_decay": 0.1}),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_solver_steps_equal_torch_optimizer(name):
    """float32, 30 steps: 1e-5 of the way."""
    solver, kind, options = SOLVERS[name]
    gen = torch.Generator().manual_seed(0)
    start = torch.randn(6, generator=gen)
    weight, params, state = start.clone().requires_grad_(), {"w": start}, solver.init({"w": start})
    theirs = kind([weight], lr=0.05, **options)
    for step in range(30):
        g = torch.randn(6, generator=gen) * 10 ** (-step % 4)
        weight.grad = g
        theirs.step()
        params, state = solver.step(params, {"w": g}, state, 0.05)
        assert (params["w"] - weight).norm() < 1e-5 * (weight - start).norm()


@pytest.mark.parametrize(
    "momentum, nesterov", [(0, False), (0.5, False), (0.9, False), (0.999, False), (0.5, True), (0.9, True)]
)
def test_sgd_weight_equals_distance_under_unit_gradients(momentum, nesterov):
    """2e-7: the result is a float32."""
    solver = SGD(momentum, nesterov)
    params, state = {"w": torch.zeros(1, dtype=torch.float64)}, solver.init({"w": torch.zeros(1, dtype=torch.float64)})
    for tau in range(1, 60):
        params, state = solver.step(params, {"w": torch.ones(1, dtype=torch.float64)}, state, 1.0)
        assert solver.weight(torch.tensor(float(tau))).item() == pytest.approx(-params["w"].item(), rel=2e-7)


def test_adam_weight_equals_number_of_steps():
    assert Adam().weight(torch.tensor(7.0)) == 7 == AdamW().weight(torch.tensor(7.0))


# --- batch norm -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "norm, shape",
    [(nn.BatchNorm1d, (6, 4)), (nn.BatchNorm1d, (6, 4, 5)), (nn.BatchNorm2d, (6, 4, 3, 2)), (nn.SyncBatchNorm, (6, 4))],
)
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"momentum": 0.3, "eps": 0.1}],
)
def test_weighted_batch_norm_with_padding_equals_torch_norm_on_real_rows(norm, shape, options):
    """float64, 1e-10, twice in a row; 3 rows of padding with huge values; gradients too."""
    theirs = norm(shape[1], **options).double()
    module = nn.Sequential(norm(shape[1], **options).double())
    gen = torch.Generator().manual_seed(0)
    if theirs.affine:
        with torch.no_grad():
            theirs.weight.copy_(torch.rand(shape[1], generator=gen))
        module[0].load_state_dict(theirs.state_dict())
    model = Model(module)
    buffers, padded_buffers = dict(model.buffers), dict(model.buffers)
    for _ in range(2):
        x = torch.randn(shape, generator=gen, dtype=torch.float64).requires_grad_()
        padded = torch.cat([x.detach(), torch.full((3, *shape[1:]), 1e4, dtype=torch.float64)]).requires_grad_()
        weight = torch.tensor([1.0] * 6 + [0.0] * 3)
        expected = theirs(x)
        plain = model(model.params, x, buffers=buffers, training=True)
        found = model(model.params, padded, buffers=padded_buffers, training=True, weight=weight)
        torch.testing.assert_close(plain.logits, expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.logits[:6], expected, rtol=1e-10, atol=1e-10)
        a, b = (torch.autograd.grad(out.sin().sum(), at)[0] for out, at in ((expected, x), (found.logits[:6], padded)))
        torch.testing.assert_close(b[:6], a, rtol=1e-9, atol=1e-10)
        assert not b[6:].any()
        buffers, padded_buffers = plain.buffers, found.buffers
        for name, value in theirs.named_buffers():
            for mine in (buffers, padded_buffers):
                torch.testing.assert_close(mine["0." + name], value, rtol=1e-10, atol=1e-10)
                assert mine["0." + name].dtype == value.dtype
    x = x.detach()
    torch.testing.assert_close(model(model.params, x, buffers=buffers).logits, theirs.eval()(x), rtol=1e-10, atol=1e-10)


def test_weighted_batch_norm_of_one_row_gives_bias_and_adds_zero_variance():
    """Variance 0: normalized to 0, the bias comes out; the running variance gets 0 (there is no unbiased one)."""
    model = Model(nn.Sequential(nn.BatchNorm1d(3)))
    out = model(model.params, torch.tensor([[1.0, 2, 3]]), buffers=model.buffers, training=True)
    assert out.logits.tolist() == [[0, 0, 0]]
    torch.testing.assert_close(out.buffers["0.running_mean"], torch.tensor([0.1, 0.2, 0.3]))
    torch.testing.assert_close(out.buffers["0.running_var"], torch.full((3,), 0.9))
    assert isinstance(model._training.module[0], WeightedBatchNorm) and isinstance(
        model.module(model.params, model.buffers)[0], nn.BatchNorm1d
    )


class Activated(nn.BatchNorm1d):
    """A norm and more."""

    def forward(self, x):
        return super().forward(x).relu()


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_subclass_with_own_forward_is_left_as_it_is(training):
    module = nn.Sequential(nn.Linear(4, 5), Activated(5), nn.Linear(5, 3))
    model, x = Model(module), torch.randn(6, 4)
    found = model(model.params, x, buffers=model.buffers, training=training)
    torch.testing.assert_close(found.logits, module.train(training)(x))
    torch.testing.assert_close(found.buffers, dict(module.named_buffers()))


class Frozen(nn.Module):
    """Its norms stay in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.norm(self.body(x)).relu())

    def train(self, mode=True):
        super().train(mode)
        for m in self.modules():
            if isinstance(m, nn.BatchNorm1d):
                m.eval()


def test_batch_norm_in_evaluation_mode_keeps_its_buffers_in_training():
    module = Frozen()
    module.norm.running_mean += 1
    loop, batched = (
        Simulation("fedavg", module, Clients.random(SIZES), executor=executor, batch_size=4)
        for executor in ("loop", "batched")
    )
    for sim in (loop, batched):
        sim.round(), sim.round()
        assert same(sim.state.buffers, dict(module.named_buffers()))
    torch.testing.assert_close(batched.params, loop.params, rtol=1e-5, atol=1e-6)
    assert not same(loop.params, loop.settings.model.params)


def test_module_given_to_simulation_is_unchanged_after_round():
    module = mlp(norm=True)
    before = {n: t.clone() for n, t in module.state_dict().items()}
    sim = Simulation("fedavg", module, Clients.random(SIZES), batch_size=4)
    sim.round()
    assert same(dict(module.state_dict()), before) and isinstance(module.norm, nn.BatchNorm1d)
    assert list(sim.settings.model.state_dict(sim.params | sim.state.buffers)) == list(module.state_dict())
    made = sim.settings.model.module(sim.params, sim.state.buffers)
    assert same(dict(made.state_dict()), {n: (sim.params | sim.state.buffers)[n] for n in made.state_dict()})


def test_model_head_of_features_equals_logits():
    model, x = Model(mlp()), torch.randn(7, 4)
    out = model(model.params, x, buffers={})
    torch.testing.assert_close(model.head(model.params, out.features), out.logits)
    assert out.features.shape == (7, 5) and model.in_head("head.bias") and not model.in_head("body.bias")


# --- trees ------------------------------------------------------------------------------------------------------------


def trees(seed=0, names=("a.weight", "a.bias", "b.weight")):
    gen = torch.Generator().manual_seed(seed)
    return {n: torch.randn(*s, generator=gen) for n, s in zip(names, ((2, 3), (2,), (4,)))}


def test_tree_arithmetic_equals_arithmetic_of_flat_tensors():
    a, b = trees(0), trees(1)
    flat_a, flat_b = tree.flatten(a), tree.flatten(b)
    torch.testing.assert_close(tree.flatten(tree.add(a, b)), flat_a + flat_b)
    torch.testing.assert_close(tree.flatten(tree.sub(a, b)), flat_a - flat_b)
    torch.testing.assert_close(tree.flatten(tree.scale(a, -2)), -2 * flat_a)
    torch.testing.assert_close(tree.dot(a, b), flat_a @ flat_b)
    torch.testing.assert_close(tree.norm(a), flat_a.norm())
    assert tree.dot({}, {}) == 0 and tree.norm({}) == 0 and tree.weighted_sum({}, torch.ones(2)) == {}
    assert same(tree.unflatten(flat_a, a), a)
    assert same(tree.where(torch.tensor(True), a, b), a) and same(tree.where(torch.tensor(False), a, b), b)
    assert list(tree.add(tree.only(a, ["b.weight"]), b)) == ["b.weight"]
    assert tree.nbytes(a) == 4 * 12 and tree.nbytes(a, b) == 8 * 12


def test_tree_stack_rows_and_weighted_sum_equal_single_trees():
    a, b = trees(0), trees(1)
    both = tree.stack([a, b])
    assert same(tree.row(both, 1), b)
    assert tree.flatten(both, rows=2).shape == (2, 12) and torch.equal(tree.flatten(both, rows=2)[1], tree.flatten(b))
    mean = tree.weighted_sum(both, torch.tensor([0.25, 0.75]))
    torch.testing.assert_close(tree.flatten(mean), 0.25 * tree.flatten(a) + 0.75 * tree.flatten(b))


def test_tree_layers_group_parameters_by_module():
    def layers(*names):
        return tree.layers({n: torch.zeros(1) for n in names})

    assert layers("a.weight", "a.bias", "b.weight", "b.bias") == [["a.weight", "a.bias"], ["b.weight", "b.bias"]]
    assert layers("conv.weight", "bn.weight", "bn.bias", "head.weight") == [
        ["conv.weight", "bn.weight", "bn.bias"],
        ["head.weight"],
    ]
    assert layers("bias") == [["bias"]] and layers() == []


def test_tree_unpack_of_packed_tree_equals_original():
    drawers = {"part": trees(0), "other.buffers": {"x/y": torch.zeros(1)}}
    assert same(tree.unpack(tree.pack(drawers)), drawers)


# --- memories and checkpoints -----------------------------------------------------------------------------------------


def memory_of(value, size=1000):
    return {"part": {"w": torch.full((size,), float(value)), "n": torch.tensor(value)}}


def stacked_memories(*values):
    return {"part": tree.stack([memory_of(value)["part"] for value in values])}


def test_client_states_beyond_budget_are_stored_in_files_and_read_back_equal(tmp_path):
    """Ten clients of 4 kB with room for three rows, of which one is the initial memory: every value is what it was."""
    client_states = ClientStates(memory_of(-1), tmp_path, budget=12500)
    for k in range(10):
        client_states.put(k, 0, memory_of(k), None)
    blocks = client_states._table._blocks
    assert blocks[1].first == 3 and client_states._table.rows > 10
    for k in (9, 0, 5, 5, 2, 0):
        assert same(client_states.get(k, 0), memory_of(k))
    assert same(client_states.get(3, None), memory_of(-1))
    assert same(client_states.stacked([9, 0, 3, 11], {9: 0, 0: 0}), stacked_memories(9, 0, -1, -1))


def test_client_states_stacked_equal_single_ones(tmp_path):
    """Whoever put them, and in whatever order they are asked for; those that only a file holds are read from there."""
    client_states = ClientStates(memory_of(-1), tmp_path)
    client_states.put_stacked([5, 0, 70], 3, stacked_memories(5, 0, 70), {})
    client_states.put(2, 3, memory_of(2), None)
    accepted = {5: 3, 0: 3, 70: 3, 2: 3}
    client_states.save(accepted)
    later = ClientStates(memory_of(-1), tmp_path)
    later.adopt(accepted)
    later.put(5, 4, memory_of(50), accepted=3)
    for held, now in ((client_states, accepted), (later, accepted), (later, accepted | {5: 4})):
        ids = [70, 1, 5, 2, 0]
        singles = [held.get(k, now.get(k)) for k in ids]
        values = [70, -1, 50 if now[5] == 4 else 5, 2, 0]
        assert all(same(m, memory_of(v)) for m, v in zip(singles, values, strict=True))
        assert same(held.stacked(ids, now), stacked_memories(*values))
    assert ClientStates({}).stacked([1, 2], {1: 0}) == {} == ClientStates({}).get(1, 0)


def test_client_states_keep_their_types(tmp_path):
    initial = {
        "a": {"flag": torch.tensor([True, False]), "none": torch.zeros(0, 3), "n": torch.tensor(7)},
        "b": {
            "w": torch.randn(3, 2, 2, dtype=torch.float64),
            "h": torch.randn(5).bfloat16(),
            "c": torch.randn(2, 3).t(),
        },
    }
    for budget in (10**9, 1):
        client_states = ClientStates(initial, tmp_path, budget)
        client_states.put(4, 0, initial, None)
        client_states.put_stacked(
            [1], 0, {name: tree.map(lambda t: t.expand(1, *t.shape), d) for name, d in initial.items()}, {}
        )
        for found in (client_states.get(4, 0), client_states.get(1, 0)):
            assert same(found, initial) and all(t.is_contiguous() for d in found.values() for t in d.values())


@pytest.mark.parametrize(
    ("initial", "made", "what"),
    [
        ({}, {"part": {"w": torch.zeros(2)}}, r"part gives clients nothing as w .* and float32 \[2\] after it"),
        (
            memory_of(0),
            {"part": {"w": torch.zeros(1000)}},
            r"int64 \[\] as n before their first round and nothing after",
        ),
        (memory_of(0), memory_of(0, size=999), r"float32 \[1000\] as w .* and float32 \[999\] after it.*client_init"),
        (memory_of(0), {"part": memory_of(0)["part"] | {"n": torch.tensor(0.5)}}, r"int64 \[\] as n .* float32 \[\]"),
    ],
    ids=["never begun", "lost", "other shape", "other type"],
)
def test_client_states_unlike_initial_one_are_refused(initial, made, what):
    """Dropped without a word, a part would be trained as if its clients remembered nothing."""
    with pytest.raises(UnalikeError, match=what):
        ClientStates(initial).put(0, 0, made, None)


def test_client_states_read_are_copies(tmp_path):
    """Neither what was put nor what was handed out is tied to what is kept."""
    for budget in (10**9, 1):
        client_states = ClientStates(memory_of(-1), tmp_path, budget)
        given = memory_of(1)
        client_states.put(0, 0, given, None)
        given["part"]["w"].zero_()
        single, several = client_states.get(0, 0), client_states.stacked([0, 1], {0: 0})
        for round in (1, 2, 3):  # over the row of round 0
            client_states.put(0, round, memory_of(10 + round), accepted=round - 1)
        assert same(single, memory_of(1)) and same(several, stacked_memories(1, -1))
        client_states.get(0, 3)["part"]["w"].zero_()
        assert same(client_states.get(0, 3), memory_of(13)) and same(client_states.get(9, None), memory_of(-1))


def test_client_states_grow_by_blocks_and_reuse_free_rows(tmp_path, monkeypatch):
    """No block is ever moved or grows, and a second version of everybody is all the room that rounds without end need."""
    monkeypatch.setattr("unalike.training.state_table.BLOCK", 10 * 4008)
    client_states, clients = ClientStates(memory_of(-1), tmp_path, budget=60 * 4008), list(range(100))
    blocks, accepted = [], {}
    for round in range(6):
        client_states.put_stacked(clients, round, stacked_memories(*(100 * round + k for k in clients)), accepted)
        found = [block.columns["part/w"] for block in client_states._table._blocks]
        assert [t.data_ptr() for t in found[: len(blocks)]] == [t.data_ptr() for t in blocks]
        blocks, accepted = found, dict.fromkeys(clients, round)
        assert same(
            client_states.stacked(clients[::-1], accepted), stacked_memories(*(100 * round + k for k in clients[::-1]))
        )
    assert 201 <= client_states._table.rows < 260 and client_states._index._used == 201


def test_client_states_random_sequence_follows_version_rule(tmp_path):
    """Against a dict per client: what is accepted, pinned or new stays; rounds are refused, repeated, pinned and asked for."""
    rng = np.random.default_rng(0)
    for budget in (10**9, 5 * 4008):
        client_states, kept, accepted, pinned = ClientStates(memory_of(-1), tmp_path, budget), {}, {}, {}
        for round in range(40):
            ids = rng.choice(12, 5, replace=False).tolist()
            for attempt in range(rng.integers(1, 3)):
                values = rng.integers(0, 1000, len(ids)).tolist()
                if attempt:
                    for k, v in zip(ids, values, strict=True):
                        client_states.put(k, round, memory_of(v), accepted.get(k))
                else:
                    client_states.put_stacked(ids, round, stacked_memories(*values), accepted)
                for k, v in zip(ids, values, strict=True):
                    stands = {accepted.get(k), pinned.get(k)}
                    kept[k] = {r: old for r, old in kept.get(k, {}).items() if r in stands} | {round: v}
            accepted |= dict.fromkeys([k for k in ids if rng.random() < 0.7], round)
            if rng.random() < 0.2:
                pinned = dict(accepted)
                client_states.pin(pinned)
            for stands in (accepted, pinned):
                ids = [k for k in range(12) if stands.get(k) is None or stands[k] in kept[k]]
                values = [kept[k][stands[k]] if k in stands else -1 for k in ids]
                assert same(client_states.stacked(ids, stands), stacked_memories(*values))
                assert ids == list(range(12)) or stands is not accepted
        assert client_states._index._used <= 1 + 3 * 12


def test_client_states_put_after_refused_round_keep_accepted_version(tmp_path):
    for budget in (10**9, 1):
        client_states = ClientStates(memory_of(-1), tmp_path / str(budget), budget)
        client_states.put(0, 0, memory_of(10), None)
        client_states.put(0, 1, memory_of(11), accepted=0)
        assert same(client_states.get(0, 0), memory_of(10)) and same(client_states.get(0, 1), memory_of(11))
        client_states.put(0, 2, memory_of(12), accepted=0)  # round 1 was refused
        assert same(client_states.get(0, 0), memory_of(10)) and same(client_states.get(0, 2), memory_of(12))


def test_client_states_put_twice_in_one_round_hold_second_value(tmp_path):
    client_states = ClientStates(memory_of(-1), tmp_path, budget=1)
    client_states.put(0, 1, memory_of(1), None)
    client_states.put(1, 1, memory_of(5), None)
    client_states.put(0, 1, memory_of(2), None)
    client_states.put(1, 1, memory_of(5), None)
    assert same(client_states.get(0, 1), memory_of(2))


def test_client_states_saved_and_adopted_equal_accepted_versions(tmp_path):
    client_states = ClientStates(memory_of(-1), tmp_path)
    for k in range(3):
        client_states.put(k, 4, memory_of(k), None)
    client_states.save({0: 4, 1: 4})
    client_states.put(0, 5, memory_of(50), accepted=4)
    client_states.save({0: 5, 1: 4})
    client_states.prune({0: 5, 1: 4})
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 2
    later = ClientStates(memory_of(-1), tmp_path)
    later.adopt({0: 5, 1: 4})
    assert same(later.get(0, 5), memory_of(50)) and same(later.get(1, 4), memory_of(1))
    with pytest.raises(UnalikeError, match="cannot read"):
        later.get(2, 4)


def test_simulation_with_client_states_on_disk_equals_simulation_in_memory(tmp_path):
    sims = [Simulation("moon + apfl", mlp(norm=True), Clients.random(SIZES), batch_size=4) for _ in range(2)]
    sims[1].executor.client_pool.client_states._table.budget = 1
    for sim in sims:
        for present in ([0, 1, 2, 3], [1, 2], [0, 1, 3]):
            sim.round(present)
    assert same(sims[0].params, sims[1].params) and all(same(sims[0].memory(k), sims[1].memory(k)) for k in range(4))


def test_client_state_of_batched_executor_holds_its_own_storage():
    sim = Simulation("ditto", mlp(), Clients.random(SIZES), executor="batched", batch_size=4)
    sim.round()
    w = sim.memory(0)["proximal_model"]["body.weight"]
    assert w.untyped_storage().nbytes() == w.numel() * 4


def test_checkpoint_written_and_read_back_is_equal(tmp_path):
    path = tmp_path / "deep" / "state.safetensors"
    tensors = {
        "a": torch.randn(3, 4).t(),
        "n": torch.tensor(7),
        "b": torch.tensor([True]),
        "d": torch.randn(2, dtype=torch.float64),
    }
    write_tensors(path, tensors, {"round": 3, "name": "é"})
    found, facts = read_tensors(path)
    assert same(found, {n: found[n] for n in found}) and facts == {"round": 3, "name": "é"}
    assert all(torch.equal(found[n], t) and found[n].dtype == t.dtype for n, t in tensors.items()) and len(found) == 4
    assert [p.name for p in path.parent.iterdir()] == ["state.safetensors"]


def test_checkpoint_damaged_or_foreign_file_is_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    write_tensors(path, trees())
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], whole[:-1], whole[:4], b"", b"hello world, this is text"):
        path.write_bytes(broken)
        with pytest.raises(UnalikeError, match="cannot read"):
            read_tensors(path)
    with pytest.raises(UnalikeError, match="cannot read"):
        read_tensors(tmp_path / "none")
    from safetensors.torch import save

    path.write_bytes(save(trees()))  # somebody else's
    with pytest.raises(UnalikeError, match="cannot read"):
        read_tensors(path)


def test_checkpoint_in_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnalikeError, match="cannot write"):
        write_tensors(tmp_path / "file" / "state", trees())


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_client_updates_with_values_not_finite_are_refused_by_name():
    sim = Simulation("scaffold", mlp(norm=True), Clients.random(SIZES), batch_size=4)
    cohort = sim.run()
    assert refusals(cohort) == {}
    cohort.stacked.update["head.bias"][1, 0] = float("nan")
    cohort.stacked.messages["control_variates"]["body.weight"][3] = float("inf")
    found = refusals(cohort)
    assert list(found) == [1, 3] and "update of head.bias" in found[1] and "control_variates/body.weight" in found[3]
    kept = cohort.rows(torch.tensor([0, 2]))
    assert kept.ids == (0, 2) and refusals(kept) == {} and kept.sizes.tolist() == [7, 1]


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_client_updates_of_chosen_clients_come_in_order_of_ids(executor):
    sim = Simulation("ditto", mlp(), Clients.random(SIZES), executor=executor, chunk=2, batch_size=4)
    everyone, some = sim.run(), sim.run([3, 0, 2])
    assert some.ids == (3, 0, 2) and some.sizes.tolist() == [5, 7, 1]
    for i, k in enumerate(some.ids):
        for n, u in some.update.items():
            torch.testing.assert_close(u[i], everyone.update[n][k])


def test_rounds_with_dropout_in_two_threads_equal_round_in_one():
    from concurrent.futures import ThreadPoolExecutor

    sims = [Simulation("fedavg", mlp(dropout=0.5), Clients.random((200, 200)), batch_size=2) for _ in range(3)]
    sims[0].round()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda sim: sim.round(), sims[1:]))
    assert same(sims[1].params, sims[0].params) and same(sims[2].params, sims[0].params)


def test_wire_of_scaffold_lists_every_item_down_and_up():
    """SCAFFOLD: the model and c down, the update and the change of c_i up, and four numbers."""
    items = ua.wire(Method.parse("scaffold"), mlp())
    size = sum(4 * p.numel() for p in mlp().parameters())
    assert [(i.direction, i.bytes) for i in items] == [
        ("down", size),
        ("down", size),
        ("up", size),
        ("up", size),
        ("up", 16),
    ]
    assert ua.wire(Method.parse("local_only"), mlp()) == []
