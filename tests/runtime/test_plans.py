"""The plans: each does what it is for, runs and resumes like any method, and lists what crosses the wire."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core.tasks.registry import find_task
from unalike.methods.client_query import QueryInputs
from unalike.methods.part import registry
from unalike.methods.plan import Stage, plan
from unalike.methods.plans.staged_plan import StagedPlan, staged_plan
from unalike.metrics.columns import TIMES
from unalike.runtime.setup.run_config import configure_run
from unalike.runtime.stages.model_group import ModelGroup

PLANS = {
    "centralised": "centralised",
    "cluster_oracle": "cluster_oracle(method='scaffold')",
    "ifca": "ifca(clusters=2, method='fedprox + topk(fraction=0.5, error_feedback=True)')",
    "clustered": "clustered(eps1=10, eps2=0.0001, warmup=2, method='fedavgm(momentum=0.5)')",
    "fedconcat": "fedconcat(clusters=2, encoder_rounds=1, classifier_rounds=1)",
    "ccvr": "ccvr(steps=5, method='scaffold')",
    "data_sharing": "data_sharing(fraction=0.2, method='scaffold')",
    "fedetf": "fedetf(width=5, method='fedprox')",
    "floco": "floco(endpoints=3, method='fedprox')",
    "combat": "combat(kept=(0,), method='scaffold')",
    "diagnosis": "diagnosis(noise=1)",
}
QUERIES = {"fedconcat": 1, "ccvr": 1, "combat": 1, "diagnosis": 5}
FULL = ua.Work(batch_size=None, lr=0.1)


@pytest.fixture(scope="module")
def population(people):
    """Six clients, one of them empty, with the true clusters 0 and 1."""
    return replace(ua.Population.of(people), clusters=[0, 0, 1, 1, 0, 1])


@pytest.fixture(scope="module")
def proxy():
    [public] = skewed([40], [(0, 1, 2, 3)], seed=3)
    return public.train


def same(a, b):
    assert list(a) == list(b)
    assert all(torch.equal(a[n], b[n]) for n in a)


def linear(thetas, points=30, noise=0.1, seed=0):
    """Regression clients y = x . theta + noise, one for each row of `thetas`; the first half train."""
    rng = np.random.default_rng(seed)
    made = []
    for theta in np.asarray(thetas, float):
        x = rng.normal(size=(2 * points, len(theta)))
        y = x @ theta + noise * rng.normal(size=len(x))
        x, y = x.astype(np.float32), y.astype(np.float32)
        made.append(ua.ClientData(train=(x[:points], y[:points]), test=(x[points:], y[points:])))
    return made


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def test_plan_registry_equals_plans_tested_here():
    assert set(PLANS) == {
        name
        for name in registry
        if isinstance(registry[name], type) and issubclass(registry[name], StagedPlan)
    }


def test_staged_plan_of_another_class_is_refused():
    class Halves:
        rounds: int = 2

    with pytest.raises(UnalikeError, match=r"write class Halves\(StagedPlan\)"):
        staged_plan(Halves)


@pytest.mark.parametrize("spec", PLANS.values())
def test_plan_repr_parses_back_to_equal_plan(spec):
    made = plan(spec)
    assert (
        plan(repr(made)) == made
        and repr(plan(repr(made))) == repr(made)
        and hash(made) == hash(plan(spec))
    )


@pytest.mark.parametrize(
    "spec, hint",
    [
        ("ifca(clusters=0)", "clusters=0"),
        ("ifca(method='fedporx')", "fedprox"),
        ("clustered(eps1=-1)", "eps1"),
        ("data_sharing(fraction=2)", "fraction"),
        ("ccvr + fedprox", "plan"),
        ("fedconcat(rounds=3)", "clusters=5"),
    ],
)
def test_plan_invalid_text_error_names_the_mistake(spec, hint):
    with pytest.raises(ua.UnalikeError, match=hint):
        plan(spec)


# --- run, resume, compare ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_plan_resume_after_interrupt_in_any_round_gives_same_model(
    name, participation, population, small, proxy, tmp_path
):
    """Interrupted after rounds 0 to 5 of 6 one after the other, in one folder."""
    options = {
        "rounds": 6,
        "proxy": proxy,
        "participation": participation,
        "protocol": ("clients", "personal", "local"),
    }
    whole = small(PLANS[name], population, **options)
    for moment in range(1, 6):

        def interrupt(row, what="", moment=moment):
            if row["round"] == moment:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            small(PLANS[name], population, out=tmp_path, progress=interrupt, **options)
    resumed = small(PLANS[name], population, out=tmp_path, **options)
    read = small(PLANS[name], population, out=tmp_path, **options)
    for run in (resumed, read):
        a, b = (r.history.rounds.drop(columns=[*TIMES]) for r in (run, whole))
        assert a.equals(b) and run.history.clients.equals(whole.history.clients)
        for k in range(len(population)):
            if name != "centralised":
                same(run.personal(k), whole.personal(k))
        if len(run._runner.state.states) == 1:
            same(run.params, whole.params)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    asked = [
        e["name"] for e in events if e["event"] == "query" and e["name"] != "last-gradients"
    ]  # no round follows these
    assert len(set(asked)) == len(asked) == QUERIES.get(name, 0)  # nobody is asked twice


@pytest.mark.parametrize("name", PLANS)
def test_plan_history_has_one_row_per_round(name, population, small, proxy):
    for rounds in (0, 1, 2, 5):
        run = small(PLANS[name], population, rounds=rounds, proxy=proxy)
        assert run.history.rounds["round"].tolist() == list(range(rounds + 1))
        assert run.history.rounds["accuracy"].notna().all()
        made = run.history.clients.query("round == @rounds")
        assert len(made) == len(population) and made["accuracy"].notna().all()


@pytest.mark.parametrize("name", PLANS)
def test_plan_batched_executor_equals_loop_with_batch_norm(name, population, small, proxy):
    """Batched, with buffers of one's own and with batch norm: the same up to float32."""

    def net():
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    options = {"rounds": 4, "proxy": proxy, "model": net}
    loop, batched = (
        small(PLANS[name], population, executor=e, **options) for e in ("loop", "batched")
    )
    assert np.allclose(loop.history.rounds["loss"], batched.history.rounds["loss"], rtol=1e-3)
    local = small(PLANS[name], population, buffers="local", **options)
    assert local.history.rounds["loss"].notna().all()


@pytest.mark.parametrize("name", ["ifca", "fedconcat", "ccvr"])
def test_plan_with_local_buffers_notes_that_server_has_initial_buffers(name, people, small):
    def told(plan, model, buffers):
        run = small(plan, people, model=model, buffers=buffers, rounds=3)
        return any("buffers are those that the run began with" in note for note in run.notes)

    assert told(PLANS[name], normed, "local")
    assert not told(PLANS[name], normed, "average")
    assert not told(PLANS[name], "mlp", "local")
    assert not told("fedavg", normed, "local")


@pytest.mark.parametrize("options", [{"stop": "round >= 3"}, {"budget": "3 rounds"}])
def test_plan_ended_early_by_rule_notes_the_stage_not_done(small, people, options):
    """CCVR's last round is the calibration; a run that comes to its end, or that a rule ends in its last stage, lacks nothing."""
    run = small("ccvr(steps=5)", people, rounds=6, **options)
    assert run.history.last["round"] == 3
    [note] = [n for n in run.notes if "was not done" in n]
    assert (
        note.startswith(run.ended) and "it ended in stage " in note and " on was not done" in note
    )
    for whole in (
        small("ccvr(steps=5)", people, rounds=6),
        small("fedavg", people, rounds=6, **options),
    ):
        assert not [n for n in whole.notes if "was not done" in n]


@dataclass(frozen=True)
class InTwo(StagedPlan):
    """One method in two stages, the second from where the first ended."""

    method: str

    def stages(self, plan_inputs):
        half = plan_inputs.rounds // 2
        results = yield Stage("first", ua.Method.parse(self.method), half)
        assert results.rounds == half and set(results) == {"all"}
        yield Stage(
            "second", ua.Method.parse(self.method), plan_inputs.rounds - half, start=results
        )


@pytest.mark.parametrize("method", ["fedavg", "fedavgm", "feddyn(alpha=1) + fedadam"])
def test_stage_started_from_results_keeps_server_state_and_resets_clients(people, small, method):
    """Rounds, batches, learning rates and the server's memories go on, so two stages are one; clients begin afresh."""
    one, two = (
        small(m, people, rounds=5, work=ua.Work(batch_size=5, lr=0.1, schedule=0.9))
        for m in (method, InTwo(method))
    )
    if "feddyn" in method:  # whose clients remember
        assert not torch.equal(one.params["head.bias"], two.params["head.bias"])
        assert (
            two._runner.state.stage.start["all"].part_states.keys()
            == one._runner.state.states["all"].part_states.keys()
        )
    else:
        same(one.params, two.params)


@dataclass(frozen=True)
class OddGroups(StagedPlan):
    """A stage of all clients, then one of these groups, from the results of the first or not."""

    groups: dict
    from_first: bool = False

    def stages(self, plan_inputs):
        first = yield Stage("first", ua.Method(), 1)
        start = first if self.from_first else None
        yield Stage("second", ua.Method(), 1, groups=self.groups, start=start)


@pytest.mark.parametrize(
    ("odd", "found"),
    [
        (OddGroups({"g": (0, 1), "h": (1, 2)}), "client 1 in two groups"),
        (OddGroups({"g": (0, 99)}), "client 99 in its groups, expected numbers from 0"),
        (
            OddGroups({"g": (0, 1)}, from_first=True),
            "no state in start for the group 'g', but for all",
        ),
    ],
)
def test_groups_that_do_not_fit_are_refused(people, small, odd, found):
    with pytest.raises(UnalikeError, match=f"the stage 'second' has {found}"):
        small(odd, people, rounds=2)


def test_second_stage_with_scaffold_restarts_control_variates(people, small):
    """SCAFFOLD's c is the mean of the clients' variates, which a second stage opens at 0."""
    group = small(InTwo("scaffold"), people, rounds=5)._runner.state.groups["all"]
    assert group.state.round == 5
    mine = [
        group.client_state(k)["control_variates"]
        for k in range(len(people))
        if len(people[k].train[1])
    ]
    for name, c in group.state.part_states["control_variates"].items():
        torch.testing.assert_close(
            c, torch.stack([m[name] for m in mine]).mean(0), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("moment", [2, 3, 5])
def test_stop_inside_a_stage_ends_the_run_and_resume_completes_it(
    population, small, tmp_path, moment
):
    """Three rounds of encoders, three of the head; a stopped run is read back as it was, and goes on when asked to."""
    spec, options = (
        PLANS["fedconcat"],
        {"rounds": 6, "out": tmp_path, "stop": lambda row: row["round"] == moment},
    )
    runs = [small(spec, population, **options) for _ in range(2)]
    for run in runs:
        assert run.history.rounds["round"].tolist() == list(range(moment + 1))
        assert run._runner.state.stage.name == ("encoders" if moment <= 3 else "classifier")
        same(run.personal(0), runs[0].personal(0))
    whole, went_on = (
        small(spec, population, rounds=6),
        small(spec, population, rounds=6, out=tmp_path),
    )
    assert went_on.history.rounds["round"].tolist() == list(range(7))
    same(went_on.params, whole.params)


def test_compare_with_plans_reports_their_messages(people, tmp_path):
    methods = ["fedavg", *(PLANS[n] for n in ("ifca", "clustered", "fedconcat"))]
    table = ua.compare(
        methods, people, model="mlp(hidden=(8,))", rounds=4, seeds=2, work=FULL, out=tmp_path
    )
    assert set(table.facts.wire[0]) >= {"method", "direction", "what", "bytes"}
    assert {row["method"] for row in table.facts.wire} == set(methods)
    text = (tmp_path / "report.html").read_text()
    assert "answer to label_counts (once)" in text and "choice of the model" in text
    assert all(m["protocols"] for m in table.facts.methods)


def test_plan_with_unmet_needs_is_refused_before_training(people, small, population):
    with pytest.raises(ua.UnalikeError, match="true clusters"):
        small("cluster_oracle", people)
    with pytest.raises(ua.UnalikeError, match="proxy"):
        small("data_sharing(fraction=0.5)", people)
    with pytest.raises(ua.UnalikeError, match="private"):
        small("ccvr(method='local_only')", people)
    with pytest.raises(ua.UnalikeError, match="models of the clients' own"):
        small("ccvr(method='ditto')", people)
    for private in ("fedper", "fedbn", "local_only"):
        with pytest.raises(ua.UnalikeError, match="private"):
            small(f"ifca(method='{private}')", people, model=normed)
    for private in ("fedbn", "local_only"):
        with pytest.raises(ua.UnalikeError, match="shares the body"):
            small(f"fedconcat(method='{private}')", people, model=normed)
    for name in ("ifca", "fedconcat", "ccvr"):
        with pytest.raises(ua.UnalikeError, match=f"{name} found a model with facts of its client"):
            small(f"{name}(method='conditional')", people, model="conditional_mlp")


@pytest.mark.parametrize("method", ["fedper", "fedbabu"])
def test_fedconcat_with_private_heads_still_trains_encoders(people, small, method):
    run = small(f"fedconcat(clusters=1, encoder_rounds=2, method='{method}')", people, model=normed)
    start = normed().state_dict()
    assert not any(
        torch.equal(run.params[f"encoders.0.{n}"], t)
        for n, t in start.items()
        if n.split(".")[0] in "01"
    )


def test_fedconcat_of_float64_model_stays_float64(people, small):
    class Exact(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 4)

        def forward(self, x):
            return self.head(torch.tanh(self.body(x.double())))

    run = small(PLANS["fedconcat"], people, rounds=3, model=Exact().double())
    assert {t.dtype for t in run.params.values()} == {torch.float64}


# --- clusters ---------------------------------------------------------------------------------------------------------


def test_cluster_oracle_equals_one_run_per_cluster(small, crowd):
    """Full batches, as a client's batch order goes by its number, which differs. 1e-5: sums in another order."""
    clusters = [1, 0, 1, 0, 0]
    run = small(
        "cluster_oracle", replace(ua.Population.of(crowd), clusters=clusters), work=FULL, rounds=4
    )
    for c in (0, 1):
        members = [k for k in range(5) if clusters[k] == c]
        alone = small("fedavg", [crowd[k] for k in members], work=FULL, rounds=4)
        for k in members:
            for n, t in alone.params.items():
                torch.testing.assert_close(run.personal(k)[n], t, rtol=1e-5, atol=1e-6)


def test_idle_group_follows_round_and_learning_rate_of_the_run(small, crowd):
    """One client a round: a group that waits does not train with an older learning rate afterwards."""
    seen, plain = [], ModelGroup.broadcast

    def order(self, *cohort):
        made = plain(self, *cohort)
        seen.append((made.round, made.lr))
        return made

    work = ua.Work(batch_size=None, lr=0.4, schedule=0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelGroup, "broadcast", order)
        people = replace(ua.Population.of(crowd), clusters=[0, 0, 0, 1, 2])
        run = small("cluster_oracle", people, work=work, rounds=4, participation=0.2)
    assert seen == [(r, 0.4 * 0.5**r) for r in range(4)]
    assert {state.round for state in run._runner.state.states.values()} == {4}


def test_gaussian_noise_differs_between_groups(small, crowd):
    spec = "cluster_oracle(method='clip(norm=1) + gaussian_noise(std=1.0)')"
    people, work = (
        replace(ua.Population.of(crowd), clusters=[0, 0, 0, 1, 1]),
        ua.Work(batch_size=None, lr=1e-9),
    )
    run = small(spec, people, work=work, rounds=1)
    one, other = (state.params for state in run._runner.state.states.values())
    for name, noisy in one.items():
        assert (noisy - other[name]).abs().max() > 0.01


@dataclass(frozen=True)
class Afresh(StagedPlan):
    """Two stages that begin with the same model, and count their rounds from 0."""

    ended: ClassVar = []

    def stages(self, plan_inputs):
        method = ua.Method.parse("clip(norm=1) + gaussian_noise(std=1.0)")
        self.ended.append((yield Stage("first", method, 1)))
        yield Stage("second", method, 1)


def test_gaussian_noise_differs_between_stages(small, crowd):
    run = small(Afresh(), crowd, work=ua.Work(batch_size=None, lr=1e-9), rounds=2)
    for name, noisy in Afresh.ended[-1]["all"].params.items():
        assert (noisy - run.params[name]).abs().max() > 0.01


def test_cluster_oracle_uses_clusters_of_the_partition():
    data = ua.load("linear_clusters(clusters=2, clients=4, points=20)")
    clients = ua.partition(data, "natural(column='client', cluster='cluster')", clients=8, seed=0)
    work = ua.Work(batch_size=None, lr=0.1)
    oracle, fedavg = (
        ua.run(m, clients, model="linear", rounds=60, work=work)
        for m in ("cluster_oracle", "fedavg")
    )
    assert oracle.history.rounds["rmse"].iloc[-1] < 0.2 < 5 < fedavg.history.rounds["rmse"].iloc[-1]


def test_ifca_on_linear_data_recovers_true_clusters():
    data = ua.load("linear_clusters(clusters=3, clients=5, points=40)")
    clients = ua.partition(data, "natural(column='client', cluster='cluster')", clients=15, seed=0)
    work = ua.Work(batch_size=None, lr=0.1)
    # seed 0 is one of the seven of ten that find all three; from the others two clusters share a model
    run = ua.run(
        "ifca(clusters=3)", clients, model="linear", rounds=40, work=work, evaluate_every=40
    )
    found = {}
    for k, true in enumerate(clients.clusters):
        found.setdefault(true, set()).add(run._runner.state.group_of(k))
    assert (
        all(len(groups) == 1 for groups in found.values()) and len(set.union(*found.values())) == 3
    )
    assert run.history.rounds["rmse"].iloc[-1] < 0.2  # the noise is 0.1


def test_ifca_equals_reference_algorithm():
    """Three rounds by hand in float64: every client takes the model of least loss and makes one full-batch step."""
    thetas = [(2, 0), (2, 0.1), (-1, 3), (-1, 3.2)]
    people = linear(thetas, points=12)
    run = ua.run(
        "ifca(clusters=2)", people, model=lambda: nn.Linear(2, 1, bias=False), rounds=3, work=FULL
    )
    start = run.run_config.outline[0].start
    w = [s.params["weight"].double().numpy()[0] for s in start.values()]
    assert not np.allclose(*w)
    for _ in range(3):
        gathered = [[], []]
        for c in people:
            x, y = (np.asarray(t, float) for t in c.train)
            j = int(np.argmin([np.mean((x @ v - y) ** 2) for v in w]))
            gathered[j].append(w[j] - 0.1 * 2 * x.T @ (x @ w[j] - y) / len(y))
        w = [np.mean(g, 0) if g else v for g, v in zip(gathered, w)]
    for state, v in zip(run._runner.state.states.values(), w):
        np.testing.assert_allclose(state.params["weight"].numpy()[0], v, rtol=1e-5)  # float32


def test_ifca_with_one_cluster_equals_its_method(people, small):
    one, other = small("ifca(clusters=1, method='scaffold')", people), small("scaffold", people)
    same(one.params, other.params)


@pytest.mark.parametrize("method", ["scaffold", "fedprox + feddyn", "feddc", "fedlama"])
def test_ifca_with_states_that_belong_to_one_model_is_refused(people, small, method):
    """A client that changed its choice would leave its share of them with the old model, whose mean gradient is then never 0."""
    with pytest.raises(
        ua.UnalikeError,
        match="belongs to one model, and here clients change theirs; choose a method",
    ):
        small(f"ifca(clusters=2, method='{method}')", people)
    run = small(f"clustered(eps1=10, eps2=0.0001, warmup=1, method='{method}')", people, rounds=3)
    assert len(run._runner.state.members) > 1


def test_clustered_splits_opposed_clients_and_keeps_similar_together():
    """y = x theta and y = -x theta: their mean objective is stationary at 0, where neither group is."""
    opposed = linear([(2, 1)] * 3 + [(-2, -1)] * 3)
    spec, options = (
        "clustered(eps1=0.2, eps2=0.3, warmup=1)",
        {"model": "linear", "rounds": 40, "work": FULL},
    )
    run = ua.run(spec, opposed, **options)
    members = run._runner.state.members
    assert sorted(members.values()) == [(0, 1, 2), (3, 4, 5)] and set(members) == {"all.0", "all.1"}
    assert run.history.rounds["rmse"].iloc[-1] < 0.2
    options["executor"] = (
        "batched(compiled_loops=False)"  # compiled loops add up in another order where only sums are needed
    )
    alike = ua.run(spec, linear([(2, 1)] * 6), **options)
    assert list(alike._runner.state.members) == ["all"]
    same(alike.params, ua.run("fedavg", linear([(2, 1)] * 6), **options).params)


def test_clustered_split_keeps_parent_model_and_server_state():
    """Rounds go on counting, so do the server's memory and the learning rate; the model of both halves is the parent's."""
    opposed = linear([(2, 1)] * 3 + [(-2, -1)] * 3)
    work = replace(FULL, schedule=0.9)
    run = ua.run(
        "clustered(eps1=0.2, eps2=0.3, warmup=1, method='fedavgm')",
        opposed,
        model="linear",
        rounds=8,
        work=work,
    )
    [stages] = [run._runner]
    assert stages.state.stage.name == "split-1" and {
        s.round for s in stages.state.states.values()
    } == {8}
    start = stages.state.stage.start
    same(start["all.0"].params, start["all.1"].params)
    assert all(
        "server_momentum" in s.part_states and "bipartition" not in s.part_states
        for s in start.values()
    )


# --- FedConcat --------------------------------------------------------------------------------------------------------


def skewed(sizes, classes, seed=0):
    """Clients that hold `classes[k]` only."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(9).normal(size=(4, 6)) * 2
    made = []
    for n, mine in zip(sizes, classes):
        y = rng.choice(mine, 2 * n)
        x = (means[y] + rng.normal(size=(2 * n, 6))).astype(np.float32)
        made.append(ua.ClientData(train=(x[:n], y[:n]), test=(x[n:], y[n:])))
    return made


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def test_fedconcat_encoders_equal_cluster_models_and_stay_frozen(small):
    """Its encoders are bitwise the models of a federation in each cluster, norms included, however long the head trains."""
    people = skewed([20, 15, 18, 12], [(0, 1), (2, 3), (0, 1), (2, 3)])
    spec = "fedconcat(clusters=2, encoder_rounds=2, classifier_rounds=4)"
    run = small(spec, people, rounds=6, model=net())
    known = replace(ua.Population.of(people), clusters=[0, 1, 0, 1])
    oracle = small("cluster_oracle", known, rounds=2, model=net())
    module = run.module()
    encoders = {
        frozenset({"0.weight": e[0].weight}["0.weight"].flatten().tolist()): e
        for e in module.encoders
    }
    for k in (0, 1):
        mine = oracle.personal(k)
        encoder = encoders[frozenset(mine["0.weight"].flatten().tolist())]
        for n, t in encoder.state_dict().items():
            assert torch.equal(t, mine[n]), n
    assert module.head.weight.shape == (4, 16)
    assert run.history.rounds["accuracy"].iloc[-1] > 0.7
    later = small(spec, people, rounds=6, model=net(), work=replace(FULL, epochs=3))
    assert not torch.equal(later.module().head.weight, module.head.weight)


def test_concatenated_model_with_other_blocks_zero_equals_cluster_model():
    from unalike.core.model import Model
    from unalike.core.views import ServerState
    from unalike.methods.plans.concatenation import concatenated

    model = Model(net())
    states = [
        ServerState(0, model.params, model.buffers, {}),
        ServerState(0, model.redrawn(1), model.buffers, {}),
    ]
    joint = concatenated(model, states, 0)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    for i, s in enumerate(states):
        weight = torch.zeros(4, 16)
        weight[:, 8 * i : 8 * i + 8] = s.params["3.weight"]
        out = joint(
            joint.params | {"head.weight": weight, "head.bias": s.params["3.bias"]},
            x,
            buffers=joint.buffers,
        )
        torch.testing.assert_close(out.logits, model(s.params, x, buffers=s.buffers).logits)
    # both blocks at once add up the clusters' logits
    weight = torch.cat([s.params["3.weight"] for s in states], 1)
    out = joint(
        joint.params
        | {"head.weight": weight, "head.bias": sum(s.params["3.bias"] for s in states)},
        x,
        buffers=joint.buffers,
    )
    both = sum(model(s.params, x, buffers=s.buffers).logits for s in states)
    torch.testing.assert_close(out.logits, both)
    trained = joint(joint.params, x, buffers=joint.buffers, training=True)
    same(trained.buffers, joint.buffers)  # the encoders' norms keep their statistics in training


@pytest.mark.parametrize(
    "rounds, encoders", [(0, 0), (1, 0), (2, 1), (21, 1), (105, 5), (1050, 50)]
)
def test_fedconcat_split_by_total_rounds_gives_encoder_rounds(rounds, encoders):
    assert plan("fedconcat").split(rounds) == encoders


def test_kmeans_separates_distant_points_and_merges_equal_ones():
    from unalike.methods.plans.concatenation import kmeans

    rng = np.random.default_rng(0)
    points = np.vstack([rng.normal(m, 0.1, (10, 2)) for m in (0, 3, 6)])
    found = kmeans(points, 3, np.random.default_rng(1))
    assert [len(set(found[i : i + 10])) for i in (0, 10, 20)] == [1, 1, 1] and len(set(found)) == 3
    assert (
        len(set(kmeans(np.ones((5, 2)), 3, rng))) == 1 and len(set(kmeans(points[:2], 5, rng))) == 2
    )


# --- CCVR -------------------------------------------------------------------------------------------------------------


def test_pooled_client_statistics_equal_those_of_all_samples(population):
    """Means and covariances of the clients are enough to know those of the union (Luo et al. 2021, eqs. 3, 4)."""
    from unalike.core.model import Model
    from unalike.core.views import StageSettings
    from unalike.methods.plan import QueryStep
    from unalike.methods.plans.calibration import pooled
    from unalike.methods.plans.queries import FeatureStatistics
    from unalike.runtime.stages.query_runner import ask_clients

    model = Model(net())
    settings = StageSettings(model, find_task("classification"), ua.Work())
    answers = ask_clients(QueryStep("features", FeatureStatistics()), settings, population)
    assert answers.clients == (0, 1, 2, 4, 5)
    counts, means, covariances = pooled(answers.tree)
    rows = torch.from_numpy(population.train.values)
    z = model.features(model.params, population.x[rows], buffers=model.buffers).double().numpy()
    y = population.y[rows].numpy()
    for c in range(4):
        assert counts[c] == (y == c).sum()
        np.testing.assert_allclose(means[c], z[y == c].mean(0), atol=1e-6)
        np.testing.assert_allclose(covariances[c], np.cov(z[y == c].T), atol=1e-5)


def test_ccvr_drawn_features_match_given_statistics():
    from unalike.methods.plans.calibration import Ccvr

    root = torch.tensor([[1.0, 0.0], [0.5, 0.2]])
    answers = {
        "counts": torch.tensor([[50.0, 0.0]]),
        "mean": torch.tensor([[[3.0, -1.0], [0.0, 0.0]]]),
        "covariance": torch.stack([root @ root.T, torch.zeros(2, 2)])[None],
    }
    z, y = Ccvr(samples=20000).draw(answers, torch.Generator().manual_seed(0))
    assert y.tolist() == [0] * 20000  # nobody has class 1
    torch.testing.assert_close(
        z.mean(0), torch.tensor([3.0, -1.0]), atol=0.03, rtol=0
    )  # 20000 draws: 0.007 is one sigma
    torch.testing.assert_close(z.T.cov(), root @ root.T, atol=0.04, rtol=0)


def test_ccvr_with_skewed_labels_beats_fedavg_accuracy(small):
    """Four clients of one class each: FedAvg's head prefers whoever is larger; the calibrated one does not."""
    people = skewed([60, 6, 6, 6], [(0,), (1,), (2,), (3,)])
    test = skewed([50] * 4, [(0,), (1,), (2,), (3,)], seed=5)
    test = tuple(np.concatenate([np.asarray(c.train[i]) for c in test]) for i in (0, 1))
    options = {"rounds": 6, "test": test, "protocol": "server", "work": ua.Work(lr=0.1, epochs=3)}
    before, after = (
        small(m, people, **options).history.rounds["accuracy"].iloc[-1] for m in ("fedavg", "ccvr")
    )
    assert after > before + 0.1 and after > 0.8


def test_ccvr_without_steps_equals_fedavg_and_with_steps_keeps_body(small, people):
    none, some = (small(f"ccvr(steps={n})", people, rounds=4) for n in (0, 20))
    fedavg = small("fedavg", people, rounds=3)
    same(none.params, fedavg.params)
    body = [n for n in fedavg.params if not n.startswith("head")]
    assert all(torch.equal(some.params[n], fedavg.params[n]) for n in body)
    assert not torch.equal(some.params["head.weight"], fedavg.params["head.weight"])


# --- data sharing -----------------------------------------------------------------------------------------------------


def test_data_sharing_with_fraction_zero_equals_fedavg(people, small, proxy):
    same(small("data_sharing(fraction=0)", people).params, small("fedavg", people).params)


def test_data_sharing_equals_clients_that_own_the_shared_samples(population, people, small, proxy):
    """The same as clients who own them; the classes of what is shared are balanced."""
    run = small("data_sharing(fraction=0.35)", population, proxy=proxy, work=FULL)
    shared = run.run_config.outline[0].shared
    wanted = round(0.35 * 58)
    counts = np.bincount(shared.y.numpy(), minlength=4)
    assert len(shared.y) == wanted and counts.max() - counts.min() <= 1
    more = [
        ua.ClientData(
            (
                torch.cat([torch.as_tensor(c.train[0]), shared.x]),
                torch.cat([torch.as_tensor(c.train[1]), shared.y]),
            ),
            c.test,
        )
        if len(c.train[1])
        else c
        for c in people
    ]
    other = small("fedavg", more, work=FULL)
    for n, t in other.params.items():
        torch.testing.assert_close(run.params[n], t, rtol=1e-5, atol=1e-6)
    rounds = run.history.rounds
    assert (
        rounds["bytes_down"].iloc[0] == 5 * wanted * (6 * 4 + 8) and rounds["bytes_up"].iloc[0] == 0
    )


# --- the wire ---------------------------------------------------------------------------------------------------------


def wire_of(spec, population, proxy=None):
    run_config = configure_run(spec, population, model="mlp(hidden=(8,))", rounds=4, proxy=proxy)
    return [(i.direction, i.what, i.bytes) for i in run_config.wire]


def test_wire_of_plan_lists_messages_of_every_step(population, proxy):
    """mlp 6-8-4: 92 parameters, 36 of them in the head; two encoders have 112, their head 68."""
    model, head = 4 * 92, 4 * (16 * 4 + 4)
    assert wire_of(PLANS["fedconcat"], population) == [
        ("up", "labels: answer to label_counts (once)", 4 * 8),
        ("down", "encoders: parameters", model),
        ("up", "encoders: update", model),
        ("up", "encoders: counts and loss", 16),
        ("down", "classifier: parameters", head),
        ("up", "classifier: update", head),
        ("up", "classifier: counts and loss", 16),
        ("down", "classifier: parameters that stay fixed (once)", 4 * 112),
    ]
    assert wire_of("ifca(clusters=3)", population)[0] == (
        "down",
        "parameters of 3 models",
        3 * model,
    )
    assert (
        "up",
        "features: answer to feature_statistics (once)",
        4 * (4 + 4 * 8 + 4 * 64),
    ) in wire_of("ccvr", population)
    assert ("down", "features: model (once)", model) in wire_of("ccvr", population)


def test_history_bytes_of_plan_equal_wire_bytes(population, small):
    rounds = small(PLANS["fedconcat"], population, rounds=4).history.rounds
    assert rounds["bytes_up"].tolist() == [5 * 32] + 2 * [5 * (368 + 16)] + 2 * [5 * (272 + 16)]
    assert rounds["bytes_down"].tolist() == [0] + 2 * [5 * 368] + [5 * (448 + 272), 5 * 272]
    rounds = small("ccvr", population, rounds=3).history.rounds
    assert rounds["bytes_up"].tolist() == [0, 5 * 384, 5 * 384, 5 * 4 * (4 + 32 + 256)]


def test_centralised_has_no_wire_and_counts_no_bytes(population, small):
    """Its one trainer holds all data: the history counts no bytes, and the report lists none."""
    assert wire_of("centralised", population) == []
    assert (
        not small("centralised", population, rounds=2)
        .history.rounds[["bytes_up", "bytes_down"]]
        .any(axis=None)
    )


def test_query_answer_without_samples_is_zero_with_same_shape(population):
    from unalike.core.model import Model
    from unalike.core.types import Batch
    from unalike.methods.client_query import registry as questions
    from unalike.methods.plans import diagnosis_plan, harmonization_plan  # noqa: F401  (they register their queries)

    model, ends = Model(net()), torch.arange(2.0)
    buffers = model.buffers | {
        "low": ends[:1].double(),
        "high": ends[1:].double(),
        "edges": torch.zeros(0).double(),
    }
    rows = torch.from_numpy(population.train[0])
    some = (Batch(population.x[rows], population.y[rows]),)
    assert {"class_counts", "histograms", "gradients", "harmonization_sums"} <= {*questions}
    for name in questions:
        fields = questions[name].__pydantic_fields__
        made = questions[name](
            **{f: n for f, n in {"classes": 4, "width": 6}.items() if f in fields}
        )
        empty, full = (
            made.answer(QueryInputs(model, find_task("classification"), model.params, buffers, b))
            for b in ((), some)
        )
        assert {n: (t.shape, t.dtype) for n, t in empty.items()} == {
            n: (t.shape, t.dtype) for n, t in full.items()
        }
        assert all(not t.any() for t in empty.values()) and repr(made).startswith(f"{name}(")


def test_label_plans_on_regression_are_refused(regression, small):
    for spec in ("fedconcat", "ccvr"):
        with pytest.raises(ua.UnalikeError, match="integer labels"):
            small(spec, regression)


@dataclass(frozen=True)
class ByGroups(StagedPlan):
    """One stage with groups that leave clients out."""

    groups: dict[str, tuple[int, ...]]
    method: str = "fedavg"

    def stages(self, plan_inputs):
        yield Stage("some", ua.Method.parse(self.method), plan_inputs.rounds, self.groups)


def apart():
    """Three clients with opposite labels: whoever trains on the first two is wrong about the third."""
    rng = np.random.default_rng(0)
    clients = []
    for sign in (1, 1, -1):
        x = rng.normal(size=(60, 2)) + 0.1
        y = (sign * x[:, 0] > 0).astype(int)
        clients.append(ua.ClientData(train=(x[:40], y[:40]), test=(x[40:], y[40:])))
    return clients


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedavg", {}),
        ("fine_tuned", {}),
        (
            "fedavg",
            {
                "buffers": "local",
                "model": lambda: nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)),
            },
        ),
    ],
)
def test_model_that_some_clients_train_is_scored_on_all(method, options):
    options = {"rounds": 4, "model": "linear", "work": ua.Work(lr=0.5), "progress": False} | options
    run = ua.run(ByGroups({"two": (0, 1)}, method), apart(), **options)
    right = []
    for client in run.history.client_rows[-3:]:
        assert client["n_test"] == 20
        right.append(client["accuracy"])
    assert min(right[:2]) > 0.8 and right[2] < 0.5
    assert run.history.last["accuracy"] == pytest.approx(sum(right) / 3)
    assert not [note for note in run.notes if "leave" in note]


def test_groups_that_leave_clients_out_are_no_ground_for_comparison():
    run = ua.run(
        ByGroups({"a": (0,), "b": (1,)}), apart(), rounds=1, model="linear", progress=False
    )
    [note] = [note for note in run.notes if "leave" in note]
    assert note.startswith("stage 'some' has no group with client-2, so its scores leave them out")
