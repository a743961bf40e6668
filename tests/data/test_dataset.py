import numpy as np
import pytest
import torch

from unalike._utils.errors import UnalikeError
from unalike.data import Dataset


def rows(n: int = 6, d: int = 2) -> np.ndarray:
    return np.arange(n * d, dtype=np.float64).reshape(n, d)


def test_dataset_arrays_are_converted_to_library_dtypes():
    data = Dataset("d", (rows(), np.array([0, 1, 2, 0, 1, 2], np.uint8)))
    assert data.train[0].dtype == torch.float32 and data.train[1].dtype == torch.int64
    assert (
        data.classes == ["0", "1", "2"]
        and data.task.name == "classification"
        and data.input_shape == (2,)
    )


@pytest.mark.parametrize(
    ("y", "task", "classes"),
    [
        (np.array([True, False] * 3), "binary", ["False", "True"]),
        (np.linspace(0, 1, 6), "regression", None),
        (np.linspace(0, 1, 6)[:, None], "regression", None),
    ],
)
def test_dataset_task_follows_label_dtype(y, task, classes):
    data = Dataset("d", (rows(), y))
    assert (data.task.name, data.classes, data.train[1].shape) == (task, classes, (6,))


def test_merged_puts_training_samples_first_without_copy(blobs):
    x, y = blobs.merged()
    assert torch.equal(x, torch.cat([blobs.train[0], blobs.test[0]])) and torch.equal(
        y[:600], blobs.train[1]
    )
    assert blobs.train[0].data_ptr() == x.data_ptr() == blobs.merged()[0].data_ptr()


def test_fingerprint_hashes_values_shapes_and_dtypes_but_not_the_name():
    def made(x, y, name="d"):
        return Dataset(name, (x, y)).fingerprint

    y = np.zeros(6, np.int64)
    assert made(rows(), y) == made(rows(), y, "other")
    assert (
        len(
            {
                made(rows(), y),
                made(rows() + 1, y),
                made(rows()[:, None], y),
                made(rows().astype(int), y),
            }
        )
        == 4
    )


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (rows(), np.zeros(5, int), "6 inputs and 5 labels"),
        (rows(0), np.zeros(0, int), "no training samples"),
        (rows(), np.array([0, 1, -1, 0, 0, 0]), r"-1\.\.1, expected 0\.\.1"),
        (np.arange(6.0), np.zeros(6, int), r"x\[:, None\]"),
        (rows().astype(np.uint8), np.zeros(6, int), "pixels or tokens"),
        (rows().astype(int) - 3, np.zeros(6, int), "token -3"),
        (rows().astype(str), np.zeros(6, int), "expected numbers"),
        (rows(), np.eye(6), "one-hot"),
    ],
)
def test_dataset_with_unusable_arrays_raises_with_what_was_found(x, y, message):
    with pytest.raises(UnalikeError, match=message):
        Dataset("d", (x, y))


def test_dataset_with_nonfinite_numbers_counts_and_locates_them():
    x = rows()
    x[3, 1], x[4, 0], x[5, 0] = np.nan, np.inf, np.nan
    with pytest.raises(
        UnalikeError, match=r"2 NaN and 1 infinite values, the first in sample 3 at \[1\]"
    ):
        Dataset("d", (x, np.zeros(6, int)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            np.ma.masked_greater(rows(), 9),
            "holds 2 masked values; fill them or leave those samples out",
        ),
        (
            torch.rand(6, 2).to_sparse(),
            r"is torch.sparse_coo, see to_dense\(\); expected a tensor with all its numbers",
        ),
        (torch.rand(6, 2, device="meta"), "has no values"),
    ],
)
def test_dataset_with_missing_values_raises(wrong, message):
    with pytest.raises(UnalikeError, match=f"x {message}"):
        Dataset("d", (wrong, np.zeros(6, int)))
    with pytest.raises(UnalikeError, match=f"y {message}"):
        Dataset("d", (rows(), wrong))


def test_masked_array_without_masked_values_is_read_unchanged():
    data = Dataset("d", (np.ma.masked_array(rows()), np.zeros(6, int)))
    assert torch.equal(data.train[0], torch.from_numpy(rows()).float())


def test_dataset_with_label_outside_named_classes_raises():
    with pytest.raises(UnalikeError, match=r"0\.\.2, expected 0\.\.1 for 2 classes"):
        Dataset("d", (rows(), np.array([0, 1, 2, 0, 1, 2])), classes=["a", "b"])


def test_dataset_with_different_test_set_raises():
    with pytest.raises(UnalikeError, match=r"test inputs have shape \[3\].*expected.*\[2\]"):
        Dataset("d", (rows(), np.zeros(6, int)), (rows(6, 3), np.zeros(6, int)))


def test_groups_keep_merged_order_and_enter_the_fingerprint():
    train, test = (rows(), np.zeros(6, int)), (rows(2), np.zeros(2, int))
    bare = Dataset("d", train, test)
    data = Dataset(
        "d", train, test, groups={"site": np.array(list("aabbccab"), object), "age": list(range(8))}
    )
    assert data.groups["site"].tolist() == list("aabbccab") and data.groups["age"].dtype == np.int64
    assert not bare.groups and bare.fingerprint != data.fingerprint
    assert (
        Dataset("d", train, test, groups=dict(reversed(data.groups.items()))).fingerprint
        == data.fingerprint
    )
    with pytest.raises(ValueError, match="read-only"):
        data.groups["age"][0] = 1


@pytest.mark.parametrize("values", [[1] * 5, [1.0] * 6, ["a", None, "b", "a", "b", "a"]])
def test_groups_without_one_value_per_sample_raise(values):
    with pytest.raises(
        UnalikeError,
        match=r"group 'site': found .*expected one integer or text for each of 6 samples",
    ):
        Dataset("d", (rows(), np.zeros(6, int)), groups={"site": values})


def test_divided_shares_memory_with_its_arrays():
    x, y = rows().astype(np.float32), np.array([0, 1, 0, 1, 0, 1])
    data = Dataset.divided("d", x, y, train=4)
    assert len(data.train[1]) == 4 and data.test[1].tolist() == [0, 1]
    again = Dataset("again", data.train, data.test)
    assert torch.equal(again.merged()[0], torch.from_numpy(x))
    assert again.merged()[0].data_ptr() == data.merged()[0].data_ptr() == x.ctypes.data
    swapped = Dataset("swapped", data.test, data.train)
    assert (
        swapped.merged()[1].tolist() == [0, 1, 0, 1, 0, 1]
        and swapped.merged()[0][0].tolist() == x[4].tolist()
    )
    assert Dataset.divided("d", x, y, train=6).test is None


@pytest.mark.parametrize(
    "x", [torch.rand(6, 10)[:, :5], torch.rand(5, 6).T], ids=["sliced", "transposed"]
)
def test_dataset_tensors_become_contiguous(x):
    """Compiled loops read the samples as one row after the other."""
    held = Dataset("d", (x, torch.arange(6) % 3)).merged()[0]
    assert held.is_contiguous() and torch.equal(held, x)


def test_dataset_goes_to_another_process():
    """Processes that tune methods are given the data set."""
    import pickle

    x, y = [[0.1], [0.2], [0.3]], ["a", "b", "a"]
    data = Dataset("mine", (x[:2], [0, 1]), (x[2:], [0]), ["a", "b"], {"site": y})
    again = pickle.loads(pickle.dumps(data))
    assert (
        again.fingerprint == data.fingerprint
        and again.classes == ["a", "b"]
        and len(again.train[1]) == 2
    )
