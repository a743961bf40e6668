"""`record=`: what the server saw and chose, how clients' updates differ, and clients' parameters."""

import pandas as pd
import pytest
import torch

import unalike as ua
from unalike import UnalikeError
from unalike._utils.profiler_regions import profiled_function, timed
from unalike.core.tree import layers
from unalike.runtime.records.client_values import matched, moments
from unalike.runtime.records.recording import COLUMNS


@pytest.fixture(scope="module")
def clients():
    return ua.partition(ua.load("digits"), "dirichlet(alpha=0.5)", clients=4)


def recorded(spec, clients, record, rounds=3, **options):
    options = {
        "model": "mlp(hidden=8)",
        "work": ua.Work(batch_size=32, lr=0.05),
        "progress": False,
    } | options
    return ua.run(spec, clients, rounds=rounds, record=record, **options)


def of(run, quantity, **where):
    table = run.records[run.records["quantity"] == quantity]
    for column, value in where.items():
        table = table[table[column] == value]
    return table


def test_opened_run_has_its_records(clients, tmp_path):
    run = recorded("fedavg", clients, "updates + clients(layers='head')", out=tmp_path)
    opened = ua.open_run(tmp_path)
    pd.testing.assert_frame_equal(opened.records, run.records)
    assert opened.client_parameters.keys() == run.client_parameters.keys() != set()


def test_recording_changes_no_result(clients):
    plain = recorded("fedavg + lws", clients, None)
    for record in ("server", "time", "server + updates + time + clients(layers='head')"):
        run = recorded("fedavg + lws", clients, record)
        assert all(torch.equal(run.params[name], value) for name, value in plain.params.items())


def test_run_without_record_has_no_records(clients):
    with pytest.raises(UnalikeError, match="record="):
        _ = recorded("fedavg", clients, None).records


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize(
    "spec", ["fedavg", "fedavg + lws"]
)  # sums are added up as updates arrive; updates are kept
def test_time_is_that_of_aggregation_by_round(clients, spec, executor):
    run = recorded(spec, clients, "time", executor=executor)
    assert run.records["quantity"].unique().tolist() == ["aggregation_seconds"]
    assert run.records["round"].tolist() == [1, 2, 3]
    seconds = run.history.rounds["seconds"].to_numpy()[1:]
    assert ((run.records["value"] > 0) & (run.records["value"] < seconds)).all()


def test_timed_counts_a_function_within_another_once(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr("unalike._utils.profiler_regions._now", lambda: float(next(clock)))

    @profiled_function("aggregation")
    def inner():
        next(clock)

    @profiled_function("aggregation")
    def outer():
        inner()

    seconds = {}
    with timed(seconds):
        outer()
    assert seconds == {"aggregation": 2.0}  # read at 0 and 2, with one tick inside
    outer()
    assert seconds == {"aggregation": 2.0}


def test_lws_notes_are_the_gamma_of_its_equation(clients):
    """gamma_l = ||w_l|| / (beta tau_l ||u_l|| + ||w_l||), from the recorded norms of a round without shrinking."""
    run = recorded("fedavg + lws(beta=0.1, mode='only_opt')", clients, "server", rounds=1)
    before = recorded("fedavg", clients, "server", rounds=1)
    start = recorded("fedavg", clients, None, rounds=0).params
    for names in layers(start):
        tau, gamma = (float(of(run, q, layer=names[0])["value"].iloc[0]) for q in ("tau", "gamma"))
        w = float(torch.cat([start[n].flatten() for n in names]).norm())
        u = float(of(before, "step_norm", layer=names[0])["value"].iloc[0])
        assert gamma == pytest.approx(w / (0.1 * tau * u + w), rel=1e-5)


@pytest.mark.parametrize("spec", ["fedavg", "fedavg + lws"])
def test_weights_are_recorded_for_every_client(clients, spec):
    weights = of(recorded(spec, clients, "server"), "weight")
    assert list(weights["client"]) == [0, 1, 2, 3] * 3
    assert list(weights["value"][:4]) == pytest.approx(list(clients.sizes / clients.sizes.sum()))


def test_update_norms_and_cosines_are_those_of_the_updates(clients):
    seen = []

    def hook(number, cohorts, before, after):
        seen.append(torch.cat([u.flatten(1) for u in cohorts["all"].update.values()], 1))
        return [{"quantity": "mine", "value": float(number)}]

    run = recorded("fedavg", clients, "updates")
    mine = recorded("fedavg", clients, hook)
    assert list(mine.records["value"]) == [1.0, 2.0, 3.0] and set(mine.records) == set(COLUMNS)
    norms = of(run, "update_norm", round=2, layer="")["value"]
    assert list(norms) == pytest.approx(seen[1].norm(dim=1).tolist(), rel=1e-5)
    cosine = float(of(run, "cosine", round=2, client=1, other=3)["value"].iloc[0])
    assert cosine == pytest.approx(
        float(torch.cosine_similarity(seen[1][1], seen[1][3], dim=0)), abs=1e-5
    )


def test_moments_over_clients_equal_hand_numbers():
    """Three clients of one layer with the parameters w = (0, 0, 2), b = 1, and the values (0, 0, 3), (1, 1, 1), (0, 3, 3) of w
    and 1, 1, 1 of b. w_1 and w_2 have means 1, variances 2 and 0, w_3 mean 2 and variance 2, b variance 0.

    w_1: deviations -1, -1, 2: m3 = (-1 - 1 + 8) / 3 = 2, skewness 2 / 2^1.5 = 0.7071. w_3: -2, 1, 1: the same. cv: 2^0.5 / 1,
    0, 2^0.5 / 2, 0, of which the lower median is 0. Mean variance (2 + 0 + 2 + 0) / 4 = 1, range 2 - 0.
    """
    update = {
        "weight": torch.tensor([[0.0, 1, -2], [0, 1, 1], [3, 1, 1]]),
        "bias": torch.tensor([[1.0], [1], [1]]),
    }
    start = {"weight": torch.tensor([0.0, 0, 2]), "bias": torch.tensor([0.0])}
    found = {(e.get("layer", ""), e["quantity"]): e["value"] for e in moments(update, start)}
    for layer in ("weight", ""):
        assert found[layer, "skewness"] == pytest.approx(2**-0.5)
        assert found[layer, "squared_deviation"] == pytest.approx(1)
        assert found[layer, "squared_deviation_range"] == pytest.approx(2)
        assert found[layer, "cv"] == 0


def test_moments_and_entries_are_those_of_the_clients_parameters(clients):
    run = recorded(
        "fedavg", clients, "moments + entries(layers='head.weight', first=2) + clients", rounds=2
    )
    kept = run.client_parameters[2]
    for client, own in kept.items():
        values = of(run, "parameter", client=client, round=2)
        assert list(values["layer"]) == ["head.weight[0]", "head.weight[1]"]
        assert list(values["value"]) == pytest.approx(
            own["head.weight"].flatten()[:2].tolist(), abs=1e-6
        )
    at_server = of(run, "parameter", client=-1, round=2)
    assert list(at_server["value"]) == pytest.approx(
        run.params["head.weight"].flatten()[:2].tolist(), abs=1e-6
    )
    rows = torch.stack([own["head.weight"].flatten() for own in kept.values()]).double()
    biases = torch.stack([own["head.bias"].flatten() for own in kept.values()]).double()
    both = torch.cat([rows, biases], 1)
    expected = float((both - both.mean(0)).square().mean())
    assert of(run, "squared_deviation", layer="head.weight", round=2)[
        "value"
    ].item() == pytest.approx(expected, rel=1e-4)


def test_matched_renumbers_the_neurons_of_a_permuted_client():
    """A client whose neurons were renumbered, and that else did not train, is found again: its update is 0."""
    g = torch.Generator().manual_seed(0)
    start = {
        "body.weight": torch.randn(4, 3, generator=g),
        "body.bias": torch.randn(4, generator=g),
    }
    start |= {
        "head.weight": torch.randn(2, 4, generator=g),
        "head.bias": torch.randn(2, generator=g),
    }
    order = torch.tensor([2, 1, 3, 0])
    own = start | {name: start[name][order] for name in ("body.weight", "body.bias")}
    own |= {"head.weight": start["head.weight"][:, order]}
    update = {name: torch.stack([own[name] - w, torch.zeros_like(w)]) for name, w in start.items()}
    renumbered, moved = matched(update, start)
    assert moved.tolist() == [0.75, 0.0]
    assert all(u.abs().max() < 1e-6 for u in renumbered.values())


def test_matched_finds_the_neurons_of_two_hidden_layers():
    g = torch.Generator().manual_seed(1)
    shapes = {
        "a.weight": (6, 5),
        "a.bias": (6,),
        "b.weight": (7, 6),
        "b.bias": (7,),
        "c.weight": (3, 7),
        "c.bias": (3,),
    }
    start = {name: torch.randn(shape, generator=g) for name, shape in shapes.items()}
    first, second = torch.randperm(6, generator=g), torch.randperm(7, generator=g)
    own = start | {"a.weight": start["a.weight"][first], "a.bias": start["a.bias"][first]}
    own |= {"b.weight": start["b.weight"][second][:, first], "b.bias": start["b.bias"][second]}
    own |= {"c.weight": start["c.weight"][:, second]}
    renumbered, _ = matched({name: (own[name] - w)[None] for name, w in start.items()}, start)
    assert all(u.abs().max() < 1e-6 for u in renumbered.values())


def test_matched_moments_are_recorded_of_dense_networks_alone(clients):
    run = recorded("fedavg", clients, "matched_moments", rounds=1)
    assert of(run, "moved")["value"].between(0, 1).all() and len(of(run, "moved")) == 4
    assert len(of(run, "matched_skewness")) == 3
    conv = recorded(
        "fedavg", clients, "matched_moments", rounds=1, model="cnn(channels=2, hidden=4)"
    )
    assert not len(conv.records)


def test_client_parameters_are_kept_every_few_rounds(clients, tmp_path):
    record = "clients(layers='head', every=2)"
    run = recorded("fedavg", clients, record, rounds=4)
    kept = run.client_parameters
    assert (
        sorted(kept) == [2, 4]
        and sorted(kept[2]) == [0, 1, 2, 3]
        and sorted(kept[2][0]) == ["head.bias", "head.weight"]
    )
    mean = sum(
        n * kept[4][k]["head.bias"]
        for k, n in enumerate((clients.sizes / clients.sizes.sum()).tolist())
    )
    torch.testing.assert_close(mean, run.params["head.bias"])
    in_folder = recorded("fedavg", clients, record, rounds=4, out=tmp_path).client_parameters
    assert torch.equal(in_folder[4][3]["head.weight"], kept[4][3]["head.weight"])


@pytest.mark.parametrize("in_folder", [False, True])
def test_groups_keep_their_own_notes_and_the_parameters_of_all_clients(tmp_path, in_folder):
    data = ua.load("linear_clusters(clusters=2, clients=3, seed=0)")
    clients = ua.partition(data, "natural(cluster='cluster')")
    run = recorded(
        "cluster_oracle(method='fedavg + lws')",
        clients,
        "server + clients(layers='head')",
        rounds=2,
        model="linear",
        out=tmp_path if in_folder else None,
    )
    assert sorted(run.client_parameters[2]) == [0, 1, 2, 3, 4, 5]
    weights = of(run, "weight", round=2)
    by_group = {group: list(own["client"]) for group, own in weights.groupby("group")}
    assert by_group == {"cluster-0": [0, 1, 2], "cluster-1": [3, 4, 5]}
    assert list(of(run, "gamma", round=2)["group"]) == ["cluster-0", "cluster-1"]


def test_skew_rules_note_high_parameters_and_macro_classes(clients):
    run = recorded("fedpake", clients, "server", rounds=2)
    high = of(run, "high")
    assert high["value"].between(0, 1).all() and len(high) == 2 * (
        4 + 1
    )  # four tensors and the whole model
    classes = of(run, "macro_class")
    assert set(classes["value"]) <= {-1.0, 0.0, 1.0, 2.0, 3.0} and set(classes["client"]) == {
        0,
        1,
        2,
        3,
    }
    assert of(run, "micro_class")["value"].between(0, 4).all()
    alpha = of(run, "alpha").groupby(["round", "layer"])["value"].sum()
    assert list(alpha) == pytest.approx([1.0] * len(alpha))


def test_records_of_a_resumed_run_equal_those_of_an_uninterrupted_one(clients, tmp_path):
    record = "server + updates"
    whole = recorded("fedavg + lws", clients, record, rounds=4).records
    recorded("fedavg + lws", clients, record, rounds=2, out=tmp_path)
    resumed = recorded("fedavg + lws", clients, record, rounds=4, out=tmp_path).records
    pd.testing.assert_frame_equal(resumed, whole)
    stored = pd.read_parquet(tmp_path / "records.parquet")
    assert len(stored) == len(whole)


def test_comparison_without_a_folder_refuses_to_record(clients):
    with pytest.raises(UnalikeError, match="out=FOLDER"):
        ua.compare(["fedavg", "fedprox"], clients, model="linear", rounds=1, record="updates")


def test_comparison_takes_record_and_keeps_it_in_its_cells(clients, tmp_path):
    ua.compare(
        ["fedavg", "fedprox"],
        clients,
        model="linear",
        rounds=2,
        seeds=1,
        record="updates",
        out=tmp_path,
        progress=False,
    )
    assert len(list(tmp_path.glob("cells/*/records.parquet"))) == 2


@pytest.mark.parametrize(
    ("record", "hint"),
    [
        ("sever", "server"),
        ("server(every=3)", "no options"),
        ("clients(every=0)", "every"),
        ("entries(every=3)", "first"),
        (3, "expected text"),
    ],
)
def test_record_that_cannot_be_read_is_refused(clients, record, hint):
    with pytest.raises(UnalikeError, match=hint):
        recorded("fedavg", clients, record, rounds=1)
