"""Nothing silent: every method works as it is named or says that it cannot, clients with absurd updates are named, and so is data
from which nothing can be learned."""

import json

import numpy as np
import pytest
import torch
from every_method import PLANS

import unalike as ua
from unalike.data import sanity
from unalike.data.population import Population
from unalike.methods.method import DEFAULTS, Method
from unalike.methods.part import registry
from unalike.metrics.failures import trend
from unalike.training.server.update_checks import find_oversized, update_norms

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
WORK = ua.Work(lr=0.1, batch_size=16)
SIZES = (30, 44, 20, 61, 37, 25)


def clients(count, classes=3, one=False, sizes=SIZES, scale=None):
    """Six numbers a sample, of which three tell the class; `one` class a client, `scale` of the inputs by client."""
    rng, made = np.random.default_rng(0), []
    for k in range(count):
        n = sizes[k % len(sizes)]
        y = np.full(n, k % classes) if one else rng.integers(0, classes, n)
        x = (rng.normal(size=(n, 6)) + y[:, None] * [1, -1, 0.5, 0, 0, 0]).astype(np.float32)
        x *= np.float32((scale or {}).get(k, 1))
        made.append(ua.ClientData((x[8:], y[8:]), (x[:8], y[:8]), name=f"owner {k}"))
    return made


CASES = {
    "no norm layer": {"clients": clients(6)},
    "one layer": {"clients": clients(6), "model": "linear"},
    "one client": {"clients": clients(1)},
    "two clients": {"clients": clients(2)},
    "one class a client": {"clients": clients(6, one=True)},
    "one step": {"clients": clients(6), "work": ua.Work(lr=0.1, batch_size=None)},
    "two classes": {"clients": clients(6, classes=2), "proxy": clients(1, classes=2)[0].train},
    "equal sizes": {"clients": clients(6, sizes=(40,))},
}
RARER_CASES = ["two clients", "one step", "two classes", "equal sizes"]
AS_NAMED = {p.name for p in DEFAULTS.values()} | {
    "fedavg",
    "uniform",
    "local_only",
    "private",
    "diagnosis",
    "centralised",
}
AS_NAMED |= {"fedsgd", "full_batch_step", "clip", "centered_clipping", "powersgd", "fedexp"}
AS_NAMED |= {"matched"}
"""FedAvg and references by another name; one step is what FedSGD makes, and no update of the test is long enough to be clipped.
A linear model of three classes has updates of two components, as many as PowerSGD sends. FedExP's step is longer only where
updates differ more than some of these. Matched units stay at their places while clients begin each round with one model."""


def trained(name, options):
    """The shared parameters, those of all clients, and what the run says of the method; or the words of a refusal."""
    usual = {
        "model": "mlp(hidden=(8,))",
        "rounds": 2,
        "work": WORK,
        "evaluate_every": 2,
        "proxy": clients(1)[0].train,
    }
    try:
        run = ua.run(name, **usual | options, executor="loop", progress=False)
    except ua.UnalikeError as error:
        return None, None, [str(error)]
    try:
        shared = torch.cat([t.flatten().double() for t in run.params.values()])
    except ua.UnalikeError:  # a model for each group
        shared = None
    own = [
        t.flatten().double()
        for k in range(len(options["clients"]))
        for t in run.personal(k).values()
    ]
    return (
        shared,
        torch.cat(own),
        [note for note in run.warnings if note not in run.run_config.data_notes],
    )


@pytest.mark.parametrize(
    "case",
    ["one layer", "one client", "one class a client", "no norm layer"]
    + [pytest.param(case, marks=pytest.mark.slow) for case in RARER_CASES],
)
def test_every_method_works_as_named_or_says_that_it_cannot(case):
    """A method whose models are those of FedAvg, of its plain mean or of local training, is not what it is called."""
    plain = {name: trained(name, CASES[case]) for name in ("fedavg", "uniform", "local_only")}
    silent = []
    ours = {
        name for name in PLANS if registry[name].__module__.startswith("unalike.")
    }  # tests register parts, too
    for name in sorted(ours - AS_NAMED):
        *models, notes = trained(name, CASES[case])
        if (
            any(all(same(a, b) for a, b in zip(models, plain[other])) for other in plain)
            and not notes
        ):
            silent.append(name)
    assert not silent


def same(a, b):
    return (
        a is not None
        and b is not None
        and a.shape == b.shape
        and torch.allclose(a, b, rtol=1e-6, atol=1e-7)
    )


@pytest.mark.parametrize(
    ("spec", "case", "why"),
    [
        ("fedbn", "no norm layer", "the model has no normalization layer"),
        ("conditional", "no norm layer", "the model takes no facts of its client"),
        ("clustered", "no norm layer", "no group splits before round 21"),
        ("fedper", "one layer", "no parameter trains beside the model's head"),
        ("moon", "one layer", "the model has no body below a head"),
        ("fedlws", "one layer", "the model has one layer"),
        (
            "median",
            "one client",
            "one client takes part in a round: no models are averaged, and median cannot compare",
        ),
        (
            "krum",
            "two clients",
            "5 clients or more in a round are needed for its guarantee (2 byzantine + 3) and 2",
        ),
        ("trimmed_mean", "two clients", "it trims less than one of 2 clients"),
        ("fedetf", "one class a client", "6 of 6 clients have one class alone"),
        ("fedprox", "one step", "clients make one local step"),
        ("scaffold", "one step", "the variates cancel in the mean"),
        ("fedntd", "two classes", "of two classes one is not true"),
        ("fednova", "equal sizes", "all clients make 2 local steps, so it is the plain mean"),
        ("local_only + median", "two classes", "clients send no update here, so that median"),
        ("pfedhn + sign_flip", "two classes", "it forges updates, and clients send none"),
    ],
)
def test_a_run_says_what_its_method_cannot_do(spec, case, why):
    assert sum(why in note for note in trained(spec, CASES[case])[2]) == 1


@pytest.mark.parametrize(
    ("byzantine", "participation", "noted"),
    [(1, 1.0, False), (2, 1.0, True), (1, 0.5, True), (0, 0.5, False)],  # six clients, or three
)
def test_krum_needs_two_byzantine_and_three_clients_in_a_round(byzantine, participation, noted):
    options = {"participation": participation, "clients": clients(6)}
    for rule in ("krum", "multikrum"):
        notes = trained(f"{rule}(byzantine={byzantine})", options)[2]
        assert any("guarantee" in note for note in notes) == noted


def test_a_rule_within_its_bounds_says_nothing():
    for spec in (
        "median",
        "trimmed_mean",
        "geometric_median",
        "multikrum(keep=3)",
        "fedprox",
        "fednova",
    ):
        assert trained(spec, {"clients": clients(6)})[2] == []
    assert any("keeps all 6" in n for n in trained("multikrum(keep=6)", {"clients": clients(6)})[2])


def test_memory_that_no_client_comes_back_to_is_said():
    notes = trained("scaffold", {"clients": clients(6), "rounds": 3, "participation": 0.5})[2]
    assert any("1.5 rounds on average" in note and "control_variates" in note for note in notes)
    assert trained("scaffold", {"clients": clients(6), "rounds": 4, "participation": 0.5})[2] == []
    assert any(
        "server_momentum" in note
        for note in trained("fedavgm", {"clients": clients(6), "rounds": 1})[2]
    )


def test_work_that_a_method_replaces_is_said():
    asked = {"clients": clients(6), "work": ua.Work(epochs=3, lr=0.1)}
    assert any("epochs=3 has no effect" in note for note in trained("fedsgd", asked)[2])
    assert trained("fedsgd", {"clients": clients(6), "work": ua.Work(lr=0.2)})[2] == []


def test_a_part_that_nobody_trains_is_said_where_it_is_tested():
    x, y = clients(1)[0].train
    new = ua.ClientData((x[:0], y[:0]), (x, y), name="new")
    for method, said in (("fedper", True), ("local_only", True), ("ditto", False)):
        run = ua.run(
            method,
            [*clients(2), new],
            model="mlp(hidden=(8,))",
            rounds=1,
            work=WORK,
            progress=False,
        )
        assert (
            any(
                "the scores count new with a part of the model that nobody trains" in n
                for n in run.notes
            )
            == said
        )


def test_plans_name_stages_without_rounds_and_one_group():
    assert any(
        "'train' has no round" in note
        for note in trained("ccvr", {"clients": clients(6), "rounds": 1})[2]
    )
    one = trained("ifca(clusters=1)", {"clients": clients(6)})[2]
    assert (
        "all clients are in one group: one model was trained, as by the method without groups"
        in one
    )


# --- updates ----------------------------------------------------------------------------------------------------------


def test_update_norms_equal_numpy_also_beyond_the_squares_of_float32():
    rng = np.random.default_rng(1)
    update = {"w": rng.normal(size=(3, 2, 4)), "b": rng.normal(size=(3, 5))}
    rows = np.concatenate([update["w"].reshape(3, -1), update["b"]], 1)
    for scale in (1.0, 1e25):
        found = update_norms(
            [7, 2, 4], {n: torch.tensor(scale * t, dtype=torch.float32) for n, t in update.items()}
        )
        expected = scale * np.linalg.norm(rows, axis=1)
        np.testing.assert_allclose([found[k] for k in (7, 2, 4)], expected, rtol=1e-6)


def test_an_update_a_hundred_times_the_median_of_the_others_is_oversized():
    assert find_oversized({0: 1.0, 1: 2.0, 2: 3.0, 3: 199.0}) == {}
    [(client, why)] = find_oversized(
        {0: 1.0, 1: 2.0, 2: 3.0, 3: 201.0}
    ).items()  # the others' median is 2
    assert client == 3 and "a norm of 201, 100 times the median" in why
    assert [*find_oversized({0: 1.0, 1: 1e20, 2: 1.0, 3: 1e19, 4: 1.0})] == [1, 3]
    assert find_oversized({0: 5.0}) == find_oversized({0: 0.0, 1: 5.0}) == {}


@pytest.mark.parametrize("spec", ["fedavg", "median", "fedavg + topk", "ditto"])
@pytest.mark.parametrize("executor", ["loop", "batched", "batched(compiled_loops=False)"])
@pytest.mark.parametrize(
    ("scale", "why"), [(1e4, "times the median of the others"), (1e20, "refused: ")]
)
def test_a_client_with_absurd_inputs_is_named(spec, executor, scale, why):
    usual = {
        "model": "mlp(hidden=(8,))",
        "rounds": 2,
        "work": WORK,
        "progress": False,
        "executor": executor,
    }
    run = ua.run(spec, clients(3, scale={1: scale}), **usual)
    [note] = [note for note in run.notes if note.startswith("round ")]
    assert note.startswith("round 1: owner 1: ") and why in note
    status = run.history.clients.query("client == 1 and round == 1")["status"].item()
    assert why in status
    assert not [
        note for note in ua.run(spec, clients(3), **usual).notes if note.startswith("round ")
    ]


def test_named_clients_survive_resumption_and_opening(tmp_path):
    usual = {"model": "mlp(hidden=(8,))", "work": WORK, "progress": False, "out": tmp_path}
    first = ua.run("median", clients(3, scale={1: 1e20}), rounds=1, **usual)
    later = ua.run("median", clients(3, scale={1: 1e20}), rounds=3, **usual)
    [note] = [note for note in later.notes if note.startswith("round ")]
    assert note in first.notes and ua.open_run(tmp_path).notes == later.notes


def test_notes_name_ten_clients_at_most():
    run = ua.run(
        "median",
        clients(30, scale=dict.fromkeys(range(12), 1e20)),
        rounds=2,
        model="mlp(hidden=(8,))",
        progress=False,
    )
    named = [note for note in run.notes if note.startswith("round ")]
    assert len(named) == 10 and any("more clients" in note for note in run.notes)


# --- data -------------------------------------------------------------------------------------------------------------


def pair(y, x=None):
    y = np.asarray(y)
    return (np.arange(2.0 * len(y)).reshape(len(y), 2).astype(np.float32) if x is None else x), y


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            [ua.ClientData(pair([1, 1, 1]), pair([1]))] * 1,
            "every training sample is of the class '1'",
        ),
        (
            [ua.ClientData(pair(np.float32([2.5, 2.5])), pair(np.float32([2.5])))],
            "has the target 2.5",
        ),
        ([ua.ClientData(pair([0, 1]), pair([1, 1]))], "every test sample is of the class '1'"),
        ([ua.ClientData(pair([0, 1]), pair([0, 2]))], "no client trains on the class 2"),
        ([ua.ClientData(pair([1, 2]), pair([2, 1]))], "labels count from 0, write y - 1"),
        (
            [ua.ClientData(pair([0, 1], np.ones((2, 2), np.float32)), pair([0, 1]))],
            "the same inputs",
        ),
        (
            [
                ua.ClientData(pair([0, 1]), pair([0, 1])),
                ua.ClientData(pair([]), None, name="empty"),
            ],
            "in no round: empty",
        ),
        (
            [ua.ClientData(pair([k, k]), pair([k])) for k in range(3)],
            "3 of 3 clients train and are tested on one class",
        ),
        (
            [
                ua.ClientData(pair([0, 1]), pair([0, 1])),
                ua.ClientData(pair([0, 1]), pair([1, 1]), name="b"),
            ],
            "areas under curves are undefined: b",
        ),
        (
            [ua.ClientData(pair(y), pair(y)) for y in ([0, 1], [1, 2], [0, 1])],
            "in several ways: client-0, client-2: 0, 1; client-1: 1, 2 (one set of numbers is the other one, shifted)",
        ),
    ],
)
def test_data_from_which_nothing_can_be_learned_or_told_is_said(made, why):
    found = sanity.warnings_of(Population.of(made))
    assert sum(why in text for text in found) == 1


def test_classes_that_a_scheme_gives_out_are_no_second_writing():
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    data = ua.Dataset("d", (x, np.arange(60) % 3), groups={"ward": np.arange(60) % 3})
    drawn = ua.partition(data, "pathological(classes=2)", clients=3)
    owned = ua.partition(data, "natural(column='ward')")
    assert sanity.warnings_of(drawn) == [] and not any(
        "in several ways" in text for text in sanity.warnings_of(owned)
    )


def with_times(time, event):
    y = np.column_stack([time, event]).astype(np.float32)
    return [ua.ClientData(train=(np.arange(4.0)[:, None], y))]


def with_masks(*labels):
    y = np.array(labels)[np.arange(32).reshape(2, 4, 4) % len(labels)]
    return [ua.ClientData(train=(np.random.default_rng(0).normal(size=(2, 1, 4, 4)), y))]


TIMES = np.array([1.0, 40, 70, 200])
DISCRETE = "discrete_survival(edges=(30, 90))"


@pytest.mark.parametrize(
    ("made", "task", "why"),
    [
        (with_times(TIMES, [0, 0, 0, 0]), "survival", "no sample has the event"),
        (with_times(TIMES, [0, 0, 0, 0]), DISCRETE, "no sample has the event"),
        (
            with_times(TIMES / 10, [1, 1, 1, 0]),
            DISCRETE,
            "events lie between 0.1 and 7, within one",
        ),
        (with_times(TIMES, [0, 0, 0, 1]), DISCRETE, "events lie between 200 and 200, within one"),
        (with_masks(0, 255), "segmentation", "write task='segmentation(ignored=255)'"),
        (with_times(TIMES, [1, 1, 0, 0]), "survival", ""),
        (with_times(TIMES, [1, 1, 0, 0]), DISCRETE, ""),
        (with_masks(0, 1, 255), "segmentation(ignored=255)", ""),
        (with_masks(0, 1, 3), "segmentation", ""),
    ],
)
def test_labels_that_are_probably_not_meant_are_said(made, task, why):
    found = " ".join(sanity.warnings_of(Population.of(made, task=task)))
    assert why in found if why else not found


def test_usual_data_gives_no_warning_and_a_run_keeps_those_that_there_are(tmp_path):
    assert sanity.warnings_of(Population.of(clients(6))) == []
    one = [ua.ClientData(pair([1, 1, 1]), pair([1]))] * 1
    run = ua.run("fedavg", one, rounds=1, out=tmp_path, progress=False)
    assert any("every training sample" in note for note in run.notes)
    assert not any("nothing was learned" in note for note in run.notes)
    assert any("an accuracy of" in note for note in {*run.notes} - {*run.warnings})
    texts = [
        json.loads(line).get("text", "")
        for line in (tmp_path / "events.jsonl").read_text().splitlines()
    ]
    assert any("every training sample" in text for text in texts)


def test_the_score_of_a_constant_prediction_equals_numpy():
    made = clients(4, classes=2)
    y, tested = (np.concatenate([getattr(c, part)[1] for c in made]) for part in ("train", "test"))
    most = np.bincount(y).argmax()
    text = sanity.constant_prediction(Population.of(made))
    positives = [int(c.test[1].sum()) for c in made]
    assert f"always predicting '{most}' has an accuracy of {np.mean(tested == most):.4f}" in text
    assert (
        f"test samples of a client that are '1': {min(positives)} to {max(positives)}, fewer than 10 in owner 0"
        in text
    )
    alike = Population.of([ua.ClientData(pair([0, 1]), pair([0, 1]))] * 2)
    assert "; test samples of a client that are '1': 1, fewer" in sanity.constant_prediction(alike)
    wide = [ua.ClientData(pair(np.float32([1, 2, 6])), pair(np.float32([0, 4])))]
    assert f"RMSE of {np.sqrt((9 + 1) / 2):.4g}" in sanity.constant_prediction(Population.of(wide))


def test_a_curve_that_rises_is_said_and_one_that_stands_still_is_not():
    usual = {"clients": clients(6), "model": "mlp(hidden=(8,))", "progress": False}
    short, still = (ua.run("fedavg", rounds=9, work=ua.Work(lr=lr), **usual) for lr in (0.3, 1e-6))
    assert any(
        "still got better by 1.9 points in the last 3 rounds" in note for note in short.notes
    )
    y = [row["accuracy"] for row in short.history.rows[-4:]]
    assert trend(range(6, 10), y) == pytest.approx(
        3 * np.cov(range(4), y)[0, 1] / np.var(range(4), ddof=1)
    )
    assert np.isnan(trend([1, 2], [0.1, 0.2])) and np.isnan(trend([1, 2, 3], [0.1, np.nan, 0.3]))
    assert not any("still got better" in note for note in still.notes)


def test_parts_name_their_groups_of_parameters():
    assert [p.special_group for p in Method.parse("fedper").parts if p.special_group] == ["head"]
    assert [p.special_group for p in Method.parse("fedbn").parts if p.special_group] == ["norm"]
