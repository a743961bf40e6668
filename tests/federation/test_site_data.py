"""Samples from files: labels mean the same class at every site; the coordinator has test and proxy samples."""

from __future__ import annotations

import socket
import time
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from in_memory_transport import InMemoryTransport
from small_federation import MODEL, WORK, make_clients, states

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike._utils.system import local_socket
from unalike.cli.data_flags import spec
from unalike.core.tasks.registry import find_task
from unalike.federation.coordinator.coordinator import run_rounds
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.coordinator.operator_commands import command, listening
from unalike.federation.protocol.bundle import Bundle
from unalike.federation.protocol.federation_file import Schema
from unalike.federation.site.site_data import own_samples, site_data, site_data_apart
from unalike.federation.site.site_policy import NO_RULES, SitePolicy
from unalike.federation.site.site_worker import SiteWorker

KINDS = Schema(shape=(2,), classes=("benign", "malignant", "other"))


def written(path, labels):
    first = [float(label == labels[0]) for label in labels]
    frame = pd.DataFrame({"a": first, "b": np.arange(len(labels), dtype=float), "label": labels})
    frame.to_csv(path, index=False)
    return spec(str(path), {"target": "label"})


def folder_of(root, names, **terms):
    usual = {"name": "own", "method": "fedavg", "model": "linear", "rounds": 2, "data": KINDS}
    return FederationFolder.create(
        root, dict.fromkeys(names, 1000), host="localhost", port=1, **(usual | terms)
    )


def test_site_lacking_class_keeps_indices_of_others(tmp_path):
    federation = folder_of(tmp_path / "fed", ["north"]).federation
    path = written(tmp_path / "north.csv", ["other", "benign"] * 10)
    found = site_data(federation, path, None, "north")
    for x, y in (found.train, found.test):  # the first column says which rows are "other"
        assert len(y) and torch.equal(y, torch.where(x[:, 0] > 0, 2, 0))
    _, y = own_samples(KINDS, path)
    assert len(y) == 20 and set(y.tolist()) == {0, 2}
    with pytest.raises(
        UnalikeError,
        match="found the classes 'benin'; expected those of the federation, 'benign', 'malignant', 'other'",
    ):
        site_data(
            federation, written(tmp_path / "typo.csv", ["benin", "other"] * 10), None, "north"
        )


def test_table_is_read_by_a_process_of_its_own(tmp_path):
    """The samples, the warnings and the errors are those of `site_data`."""
    federation = folder_of(tmp_path / "fed", ["north"], val=0.2).federation
    path = written(tmp_path / "north.csv", ["other", "benign"] * 10)
    with pytest.warns(UserWarning, match="no encoding of tables"):
        expected = site_data(federation, path, None, "north")
    with pytest.warns(UserWarning, match="no encoding of tables"):
        found = site_data_apart(federation, path, None, "north")
    assert (found.name, [*found.splits()]) == ("north", ["train", "test", "val"])
    for one, other in zip(found.splits().values(), expected.splits().values()):
        assert all(map(torch.equal, one, other))
    with pytest.raises(UnalikeError, match="found the classes 'benin'"):
        site_data_apart(
            federation, written(tmp_path / "typo.csv", ["benin", "other"] * 10), None, "north"
        )


def test_labels_without_names_are_class_indices(tmp_path):
    x, y = np.ones((12, 2), np.float32), np.array([0, 1, 2] * 4)
    np.savez(tmp_path / "plain.npz", x=x, y=y)
    assert own_samples(KINDS, str(tmp_path / "plain.npz"))[1].tolist() == y.tolist()
    np.savez(tmp_path / "more.npz", x=x, y=y + 1)
    with pytest.raises(UnalikeError, match="those of the federation"):
        own_samples(KINDS, str(tmp_path / "more.npz"))
    few = Schema(shape=(2,), classes=5)  # by number: a table whose labels are 3 and 1
    assert own_samples(few, written(tmp_path / "few.csv", [3, 1] * 6))[1].tolist() == [3, 1] * 6


NUMBERS, TRUTHS = Schema(shape=(2,), task="regression"), Schema(shape=(2,), task="binary")
SPELT = Schema(shape=(2,), classes=("False", "True"))
COUNTED, HEALTH = (
    Schema(shape=(2,), classes=("1", "2", "3")),
    Schema(shape=(2,), classes=("ill", "well")),
)


@pytest.mark.parametrize(
    ("schema", "labels", "expected"),
    [
        (NUMBERS, [12, 9, 10, 11], [12.0, 9.0, 10.0, 11.0]),
        (NUMBERS, [9.5, 10.0, 11.0, 12.0], [9.5, 10.0, 11.0, 12.0]),
        (TRUTHS, [1, 1, 1, 1], [True, True, True, True]),
        (TRUTHS, [1.0, 0.0, 0.0, 1.0], [True, False, False, True]),
        (TRUTHS, [True, False, True, True], [True, False, True, True]),
        (COUNTED, [2.0, 1.0, 3.0, 1.0], [1, 0, 2, 0]),
        (COUNTED, [3, 2, 2, 3], [2, 1, 1, 2]),
        (NUMBERS, [2.0, 1.0, 3.0, 1.0], [2.0, 1.0, 3.0, 1.0]),
        (SPELT, [1, 0, 0, 1], [1, 0, 0, 1]),
        (SPELT, [True, False, True, True], [1, 0, 1, 1]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*no encoding of tables")
def test_table_labels_match_by_name_or_value(schema, labels, expected, tmp_path):
    path = written(tmp_path / "mine.csv", labels * 5)
    federation = folder_of(tmp_path / "fed", ["north"], data=schema).federation
    mine = site_data(federation, path, None, "north")
    both = [torch.cat(parts) for parts in zip(mine.train, mine.test)]
    for x, y in (own_samples(schema, path), both):
        in_order = y[x[:, 1].argsort()].tolist()  # the second column counts the rows of the file
        assert in_order == expected * 5 and {type(v) for v in in_order} == {type(expected[0])}


@pytest.mark.parametrize(
    ("schema", "labels", "message"),
    [
        (NUMBERS, ["yes", "no"], "the target 'label' holds texts; expected numbers for regression"),
        (
            NUMBERS,
            [True, False],
            "the target 'label' holds true/false; expected numbers for regression",
        ),
        (TRUTHS, [1, 2], r"the labels are classes \(1, 2\); the federation has true/false"),
        (TRUTHS, [-1, 1], r"the labels are classes \(-1, 1\); the federation has true/false"),
        (
            TRUTHS,
            ["yes", "no"],
            r"the labels are classes \(no, yes\); the federation has true/false",
        ),
        (
            TRUTHS,
            [0.5, 1.0],
            "the target 'label' holds fractions; expected whole numbers for classes",
        ),
        (
            HEALTH,
            [0.0, 1.0],
            "found the classes '0', '1'; expected those of the federation, 'ill', 'well'",
        ),
        (
            COUNTED,
            [1.0, 1.5],
            "the target 'label' holds fractions; expected whole numbers for classes",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*no encoding of tables")
def test_unknown_labels_are_refused(schema, labels, message, tmp_path):
    path = written(tmp_path / "mine.csv", labels * 5)
    with pytest.raises(UnalikeError, match=message):
        own_samples(schema, path)
    with pytest.raises(UnalikeError, match=message):
        site_data(
            folder_of(tmp_path / "fed", ["north"], data=schema).federation, path, None, "north"
        )


@pytest.mark.parametrize(
    ("schema", "y", "expected"),
    [
        (HEALTH, np.array([0.0, 1.0, 1.0, 0.0]), [0, 1, 1, 0]),
        (COUNTED, np.array([2.0, 0.0, 2.0, 0.0]), [2, 0, 2, 0]),
        (NUMBERS, np.array([4, 2, 4, 2]), [4.0, 2.0, 4.0, 2.0]),
        (TRUTHS, np.array([1, 1, 1, 1]), [True, True, True, True]),
    ],
)
def test_arrays_without_class_names_keep_labels(schema, y, expected, tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.ones((4, 2), np.float32), y=y)
    assert own_samples(schema, str(tmp_path / "mine.npz"))[1].tolist() == expected


def federation_of(clients, folder, policy=NO_RULES, **terms):
    """A coordinator's folder, and the workers of its sites."""
    given = {
        "method": "fedavg",
        "model": MODEL,
        "work": WORK,
        "data": Schema(shape=(6,), classes=4),
    } | terms
    made, workers = folder_of(folder / "fed", [c.name for c in clients], **given), {}
    for client in clients:
        bundle = Bundle.read(made.bundles[client.name])
        own = bundle.federation, client.name, bundle.key, client, folder / client.name
        workers[client.name] = SiteWorker(*own, policy=policy)
    return made, workers


@pytest.mark.parametrize("method", ["feddf", "data_sharing"])
def test_coordinator_uses_own_test_and_proxy(method, tmp_path):
    clients, extra = make_clients(), make_clients(((8, 8),))[0]
    own = {"test": extra.test, "proxy": extra.train}
    kept = {name: tuple(map(torch.as_tensor, pair)) for name, pair in own.items()}
    folder, workers = federation_of(
        clients, tmp_path, method=method, protocol=("server", "clients"), own=kept, repeat=0.05
    )
    ours = run_rounds(folder, InMemoryTransport(workers), lambda line: None)
    theirs = ua.run(
        method,
        clients,
        model=MODEL,
        rounds=2,
        work=WORK,
        executor="loop",
        protocol=("server", "clients"),
        **own,
    )
    for group, tensors in states(theirs).items():
        for name, t in tensors.items():
            assert torch.equal(states(ours)[group][name], t), name
    assert ours.history.rounds["accuracy"].tolist() == theirs.history.rounds["accuracy"].tolist()


def test_federation_without_test_samples_says_so_and_ends_well(tmp_path):
    """No site has as many test samples as its site.toml demands: it trains all rounds; the page says why there are no scores."""
    clients, said = make_clients(), []
    assert all(0 < len(client.test[1]) < SitePolicy().least_test for client in clients)
    folder, workers = federation_of(clients, tmp_path, SitePolicy(least_training=0), rounds=2)
    run = run_rounds(folder, InMemoryTransport(workers), said.append)
    assert run.history.last["round"] == 2 and any("no scores of" in line for line in said)
    [queued] = folder.queue
    page = queued.page.read_text()
    assert queued.is_over and "There are no scores" in page
    assert "<style>" in page and all(client.name in page for client in clients)
    task = find_task("classification")
    [few] = SitePolicy(least_class=0).unused(clients[0], task)
    assert "test samples are not used: they are fewer than least_test in site.toml (20)" in few
    assert not SitePolicy(least_test=0, least_class=0).unused(clients[0], task)


def test_rows_that_are_too_few_to_test_or_to_validate_train(tmp_path):
    """Of 60 rows 12 would test: fewer than 20, so all train, and a warning says so; a set that the table names stays apart."""
    federation = folder_of(tmp_path / "fed", ["north"], val=0.2).federation
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    y = np.arange(60) % 2
    data = str(tmp_path / "north.npz")
    np.savez(data, x=x, y=y)
    sizes = {}
    for least in (0, 10, 20):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            own = site_data(federation, data, None, "north", least)
        train, test, val = (len(y) for _, y in own.splits().values())
        said = [
            str(warning.message) for warning in caught if "train instead" in str(warning.message)
        ]
        sizes[least] = (train, test, val, len(said))
    assert sizes == {0: (39, 12, 9, 0), 10: (48, 12, 0, 1), 20: (60, 0, 0, 2)}
    assert "12 test samples would be fewer than least_test in site.toml (20)" in said[0]

    named = str(tmp_path / "named.npz")
    np.savez(named, x_train=x[:50], y_train=y[:50], x_test=x[50:], y_test=y[50:])
    assert len(site_data(federation, named, None, "north", least_test=20).test[1]) == 10


def test_report_names_the_sites_that_do_not_evaluate(tmp_path):
    clients = make_clients()
    few, *enough = sorted(len(client.test[1]) for client in clients)
    assert few < min(enough)
    folder, workers = federation_of(
        clients, tmp_path, SitePolicy(least_training=0, least_test=few + 1, least_class=0), rounds=2
    )
    run_rounds(folder, InMemoryTransport(workers), lambda line: None)
    [site] = [client.name for client in clients if len(client.test[1]) == few]
    assert f"no scores of {site}: no test samples there" in folder.queue[0].page.read_text()


def test_resumed_coordinator_reports_done_rounds(tmp_path):
    said = []
    folder, workers = federation_of(make_clients(), tmp_path, rounds=4)

    def tell(line):
        if line.startswith("round 2"):
            command(folder.socket, "stop")

    def stop():
        while not folder.socket.exists():
            pass
        said.append(command(folder.socket, "status")["round"])
        command(folder.socket, "stop")

    assert run_rounds(folder, InMemoryTransport(workers), tell) is None
    assert run_rounds(folder, InMemoryTransport(workers), said.append, check=stop) is None
    assert said[0] == 2 and said[-1].startswith("stopped after round 2;")


def test_local_socket_visible_path_is_answered(tmp_path, monkeypatch):
    """The socket appears at its path only when it listens, also on a slow machine, and only its owner may open it."""

    class Slow(socket.socket):
        def listen(self, *most):
            time.sleep(0.2)
            super().listen(*most)

    monkeypatch.setattr(local_socket.socket, "socket", Slow)
    path = tmp_path / "control"
    with listening(path, {"status": dict}, dict):
        while not path.exists():
            pass
        assert command(path, "status") == {} and path.stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.iterdir())


def test_table_in_other_units_is_refused_at_the_site_unless_accepted(tmp_path):
    """The look at the data stays at the site: it is lines for its terminal, also of `join --show`."""
    from unalike.federation.operations.run_site import wire_lines
    from unalike.federation.site.site_data import looked_at

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"area": rng.normal(600, 100, 60), "label": rng.choice(["no", "yes"], 60)})
    frame.to_csv(tmp_path / "agreed.csv", index=False)
    frame.assign(area=frame.area * 3).to_csv(tmp_path / "mine.csv", index=False)
    agreed = ua.load(str(tmp_path / "agreed.csv"), target="label")
    schema = Schema(shape=(1,), classes=("no", "yes"), encoding=agreed.encoding)
    federation = folder_of(tmp_path / "fed", ["north"], data=schema).federation
    same, other = (
        site_data(federation, spec(str(tmp_path / name), {"target": "label"}), None, "north")
        for name in ("agreed.csv", "mine.csv")
    )
    [counts] = looked_at(federation, same, accept=False)
    assert counts.startswith("training samples by class: no: ")
    with pytest.raises(
        UnalikeError, match=r"'area': its mean is .* other units?.*join with --accept"
    ):
        looked_at(federation, other, accept=False)
    assert any(
        "look at the column 'area'" in line for line in looked_at(federation, other, accept=True)
    )
    shown = wire_lines(
        federation, spec(str(tmp_path / "mine.csv"), {"target": "label"}), None, "north"
    )
    assert any("look at the column 'area'" in line for line in shown) and any(
        "update" in line for line in shown
    )


def another_writing(column, agreed_values, own, root):
    """A federation that agreed on the values of a column, and the description of a table of a site with its own."""

    def table(values):
        area = np.random.default_rng(0).normal(600, 100, 60)
        return pd.DataFrame({"area": area, column: values * 30, "label": ["no", "yes", "no"] * 20})

    table(agreed_values).to_csv(root / "agreed.csv", index=False)
    table(own).to_csv(root / "mine.csv", index=False)
    encoding = ua.load(str(root / "agreed.csv"), target="label").encoding
    schema = Schema(shape=(encoding.width,), classes=("no", "yes"), encoding=encoding)
    federation = folder_of(root / "fed", ["north"], data=schema).federation
    return federation, spec(str(root / "mine.csv"), {"target": "label"})


@pytest.mark.parametrize(
    ("column", "agreed_values", "own", "said"),
    [
        ("smoker", ["no", "yes"], ["No", "yes"], "agreed: no, yes; here: No, yes"),
        ("smoker", ["m", "f"], ["male", "female"], "agreed: f, m; here: female, male"),
        ("sex", [0, 1], [1, 2], "'sex' may be written in another way: agreed: 0, 1; here: 1, 2"),
        ("sex", [1, 2], [-1, 1], "agreed: 1, 2; here: -1, 1"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_column_in_another_writing_is_refused_at_the_site(
    column, agreed_values, own, said, tmp_path
):
    federation, mine = another_writing(column, agreed_values, own, tmp_path)
    with pytest.raises(UnalikeError, match=f"{said} .* or join with --accept"):
        site_data_apart(federation, mine, None, "north")


@pytest.mark.filterwarnings("ignore")
def test_column_in_another_writing_is_read_where_it_is_accepted(tmp_path):
    federation, mine = another_writing("sex", [0, 1], [1, 2], tmp_path)
    assert len(site_data_apart(federation, mine, None, "north", accept=True).train[1]) == 48
