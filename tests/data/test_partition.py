import io
import json

import numpy as np
import pytest
from rich.console import Console

from unalike._utils.errors import UnalikeError
from unalike.data import Dataset, PartitionPlan, apply_plan, load, partition
from unalike.data.partitioning.partition import canonical, usual_partition
from unalike.data.partitioning.partition_files import write_partition


def test_partition_default_split_trains_on_three_quarters(blobs):
    everyone = partition(blobs, "dirichlet(alpha=0.5)", clients=8)
    totals = everyone.sizes + everyone.test.sizes
    assert totals.sum() == 800 and everyone.sizes.tolist() == [int(0.75 * n) for n in totals]
    used = np.concatenate([everyone.train.values, everyone.test.values])
    assert np.array_equal(np.sort(used), np.arange(800))


def test_partition_split_shuffles_within_each_client(blobs):
    everyone = partition(blobs, "pathological(classes=1)", clients=10, split=0.5)
    held = everyone.train[0]
    assert (np.diff(held) < 0).any() and len(everyone[0].train[1].unique()) == 1


def test_partition_client_with_one_sample_trains_on_it(blobs):
    few = Dataset("few", (blobs.train[0][:3], blobs.train[1][:3]))
    everyone = partition(few, "iid", clients=3)
    assert everyone.sizes.tolist() == [1, 1, 1] and everyone.test.sizes.tolist() == [0, 0, 0]


def test_partition_without_smallest_size_may_leave_client_empty(blobs):
    everyone = partition(blobs, "dirichlet(alpha=1e-3, balance=False)", clients=30)
    assert len(everyone.empty) and (everyone.sizes[everyone.empty] == 0).all()


def test_partition_with_bad_input_raises(blobs):
    with pytest.raises(
        UnalikeError, match="801 clients and 800 samples, expected a sample for each; lower clients"
    ):
        partition(blobs, "iid", clients=801)
    gap = Dataset(
        "gap", (np.ones((6, 2)), np.array([0, 1, 3, 0, 1, 3])), classes=["a", "b", "c", "d"]
    )
    with pytest.raises(
        UnalikeError, match=r"dirichlet divides by classes, and 1 of 4 have no sample \('c'\)"
    ):
        partition(gap, "dirichlet(alpha=1, min_size=1)", clients=2)
    assert len(partition(gap, "iid", clients=2)) == 2
    with pytest.raises(
        UnalikeError, match=r"natural: the data has no column 'client' \(columns: none\)"
    ):
        partition(blobs, "natural")
    assert len(partition(blobs, "iid")) == 10


def test_partition_without_spec_divides_by_the_first_group():
    x, y, ward = (
        np.arange(8, dtype=np.float32)[:, None],
        np.array([0, 1] * 4),
        np.array(["b", "a", "a", "b"] * 2),
    )
    grouped = Dataset("grouped", (x, y), groups={"ward": ward, "bed": np.arange(8)})
    clients = partition(grouped)
    assert list(clients.names) == ["a", "b"] and clients.plan.spec.startswith(
        "natural(column='ward'"
    )
    assert set(clients.x[clients.train[0]].flatten().tolist()) <= {1, 2, 5, 6}
    assert usual_partition(Dataset("plain", (x, y))) == "dirichlet(alpha=0.1)"
    assert (
        usual_partition(Dataset("amounts", (x, x[:, 0]))) == "iid"
        and len(partition((x, x[:, 0]), clients=2)) == 2
    )


def test_partition_of_something_else_than_data_set_raises():
    assert len(partition("digits", "iid", clients=3)) == 3
    with pytest.raises(UnalikeError, match=r"found int, expected \(x, y\)"):
        partition(7, "iid", clients=3)


def test_partition_min_test_moves_samples_or_names_client(blobs):
    everyone = partition(blobs, "iid", clients=100, split=0.9, min_test=3)
    assert set(everyone.test.sizes) == {3} and set(everyone.sizes) == {5}
    with pytest.raises(UnalikeError, match="client 0 has 8 samples, expected 9 for min_test=8"):
        partition(blobs, "iid", clients=100, min_test=8)


def test_partition_without_merge_leaves_test_set_out(blobs):
    everyone = partition(blobs, "iid", clients=4, merge=False, split=1.0)
    assert len(everyone.x) == everyone.sizes.sum() == 600 and everyone.test.sizes.sum() == 0


def test_partition_with_split_outside_zero_to_one_raises(blobs):
    with pytest.raises(UnalikeError, match="split=0"):
        partition(blobs, "iid", 2, split=0)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("spec", 3, "a text or None"),
        ("split", "a", "the training share of each client, above 0 and at most 1, or .later."),
        ("val", "a", "a number"),
        ("min_test", 1.5, "a whole number"),
        ("merge", "no", "True or False"),
    ],
)
def test_partition_with_option_of_wrong_type_raises(blobs, option, value, expected):
    with pytest.raises(UnalikeError, match=f"found {option}={value!r}, expected {expected}$"):
        partition(blobs, **{"spec": "iid", "clients": 2, option: value})


def test_partition_with_other_split_keeps_scheme_draw(blobs):
    half, most = (partition(blobs, "dirichlet(alpha=0.5)", 5, split=split) for split in (0.5, 0.9))
    for k in range(5):
        owned = [set(p.train[k]) | set(p.test[k]) for p in (half, most)]
        assert owned[0] == owned[1] and set(half.train[k]) < set(most.train[k])


def test_plan_depends_on_arguments_and_seed(blobs):
    first, again, other = (partition(blobs, "iid", 5, seed=seed).plan for seed in (0, 0, 1))
    assert first.hash == again.hash != other.hash


def test_canonical_spec_holds_every_parameter():
    assert canonical("iid") == "iid()"
    assert canonical("zipf(size=10)") == "zipf(a=2, size=10, order='random')"


def test_plan_saved_and_loaded_gives_same_population(blobs, tmp_path):
    everyone = partition(blobs, "dirichlet(alpha=0.3)", clients=6, seed=2)
    file = everyone.plan.save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"] == [file.name]
    plan = PartitionPlan.load(tmp_path)
    assert (
        plan.hash == everyone.plan.hash
        and plan.spec == "dirichlet(alpha=0.3, balance=True, min_size=None)"
    )
    assert apply_plan(plan, blobs).fingerprint == everyone.fingerprint


def test_apply_plan_to_another_data_set_raises(blobs):
    plan = partition(blobs, "iid", clients=3).plan
    other = Dataset("others", (blobs.train[0] + 1, blobs.train[1]), blobs.test)
    with pytest.raises(
        UnalikeError, match=f"{blobs.fingerprint}, found 'others' with {other.fingerprint}"
    ):
        apply_plan(plan, other)


def test_plan_file_missing_or_changed_raises(blobs, tmp_path):
    with pytest.raises(UnalikeError, match="found no plan"):
        PartitionPlan.load(tmp_path)
    file = partition(blobs, "iid", clients=3).plan.save(tmp_path / "mine.json")
    table = json.loads(file.read_text())
    table["train"][0].pop()
    file.write_text(json.dumps(table))
    with pytest.raises(UnalikeError, match="was changed"):
        PartitionPlan.load(file)
    for text in ("{}", "[]", "no json"):
        file.write_text(text)
        with pytest.raises(UnalikeError, match="not a partition plan"):
            PartitionPlan.load(file)


def test_plan_of_regression_labels_round_trips_and_shows(tmp_path):
    data = Dataset("line", (np.ones((40, 1)), np.linspace(0, 1, 40)))
    plan = PartitionPlan.load(partition(data, "quantity", clients=3, seed=1).plan.save(tmp_path))
    assert plan.counts.shape == (3, 0) and apply_plan(plan, data).task.name == "regression"
    assert "Gini" in printed(plan) and "JS" not in printed(plan)


def test_plan_show_lists_clients_and_divergences(blobs):
    text = printed(partition(blobs, "pathological(classes=1)", clients=30).plan)
    assert "client-19" in text and "client-20" not in text and "and 10 more" in text
    assert "top-class share 1" in text and "effective classes 1" in text


def printed(plan: PartitionPlan) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(plan.show())
    return console.file.getvalue()


def test_partition_val_takes_samples_from_training(blobs, tmp_path):
    """The test samples stay; training and validation samples together are the training samples without `val`."""
    plain = partition(blobs, "dirichlet(alpha=0.3)", clients=8, seed=2)
    people = partition(blobs, "dirichlet(alpha=0.3)", clients=8, seed=2, val=0.2)
    for k in range(8):
        assert np.array_equal(plain.test[k], people.test[k])
        assert len(people.val[k]) == int(0.2 * len(plain.train[k]) + 1e-9)
        assert np.array_equal(
            np.sort(np.r_[people.train[k], people.val[k]]), np.sort(plain.train[k])
        )
    assert people.plan.hash != plain.plan.hash
    file = people.plan.save(tmp_path)
    again = apply_plan(type(people.plan).load(file), blobs)
    assert again.fingerprint == people.fingerprint and again[3].val is not None
    folder = write_partition(people.plan, tmp_path / "files")
    files = partition(
        blobs, f"index_files(path={str(folder)!r})", val=0.5
    )  # the files say which validate
    assert all(np.array_equal(a, b) for a, b in zip(files.val, people.val))
    assert all(np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(files.train, people.train))


def test_partition_val_leaves_the_only_training_sample():
    few = Dataset("few", (np.eye(6, dtype=np.float32), np.arange(6) % 2))
    parts = partition(few, "iid", clients=6, val=0.9)
    assert parts.sizes.tolist() == [1] * 6 and not len(parts.val.values)


@pytest.mark.parametrize("val", [-0.1, 1, 1.5])
def test_partition_with_val_outside_zero_to_one_raises(blobs, val):
    with pytest.raises(UnalikeError, match="val="):
        partition(blobs, "iid", clients=2, val=val)


def test_partition_feature_change_keeps_splits(blobs):
    """Feature changes copy the samples of each client; its validation samples are changed and kept apart as well."""
    people = partition(blobs, "iid + noise(level=0.1)", clients=4, val=0.25)
    parts = [people.train, people.test, people.val]
    assert (
        len(np.unique(np.concatenate([p.values for p in parts])))
        == len(people.x)
        == sum(len(p.values) for p in parts)
    )
    plain = partition(blobs, "iid", clients=4, val=0.25)
    assert all(
        (a.sizes == b.sizes).all() for a, b in zip(parts, (plain.train, plain.test, plain.val))
    )
    assert people.y[people.val[2]].tolist() == plain.y[plain.val[2]].tolist()


def test_partition_keyword_of_another_library_is_suggested():
    with pytest.raises(UnalikeError, match="takes no keyword 'n_clients'; did you mean 'clients'"):
        partition(load("digits"), n_clients=3)


def test_partition_name_is_read_in_any_case():
    assert partition(
        load("digits"), "Dirichlet(alpha=0.1) + NOISE(level=0.1)", clients=3
    ).plan.spec == (
        partition(load("digits"), "dirichlet(alpha=0.1) + noise(level=0.1)", clients=3).plan.spec
    )
