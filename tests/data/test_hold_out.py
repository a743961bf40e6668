"""Samples for the server: balanced, out of the clients' reach, the same for the same seed."""

import numpy as np
import pytest
import torch

from unalike._utils.errors import UnalikeError
from unalike.data import Dataset, load, partition
from unalike.data.partitioning.hold_out import hold_out


def test_hold_out_takes_balanced_share_of_test_samples():
    data = load("digits")
    rest, (x, y) = hold_out(data, 0.1)
    assert torch.bincount(y).tolist() == [round(0.1 * len(data.test[1]) / 10)] * 10
    assert len(rest.train[1]) == len(data.train[1]) and len(rest.test[1]) + len(y) == len(
        data.test[1]
    )
    kept = {row.tobytes() for row in rest.merged()[0].numpy()}
    shared = [row for row in x.numpy() if row.tobytes() in kept]
    originals = [row.tobytes() for row in data.merged()[0].numpy()]
    assert all(originals.count(row.tobytes()) > 1 for row in shared)  # only twins of other samples
    assert partition(rest, "iid", clients=3).sizes.sum() < len(data.merged()[1])


def test_hold_out_with_imbalance_falls_from_the_first_to_the_last_class():
    """20 * 10 ** (-c / 9) for c = 0..9: 20, 15.5, 12.0, 9.3, 7.2, 5.6, 4.3, 3.3, 2.6, 2."""
    y = np.arange(1000) % 10
    data = Dataset(
        "ten", (np.zeros((10, 1), np.float32), np.arange(10)), (np.zeros((1000, 1), np.float32), y)
    )
    _, (_, held) = hold_out(data, 0.2, imbalance=10)
    assert torch.bincount(held).tolist() == [20, 15, 12, 9, 7, 6, 4, 3, 3, 2]
    assert torch.bincount(hold_out(data, 0.2, imbalance=1000)[1][1]).tolist()[-3:] == [1, 1, 1]


@pytest.mark.parametrize("imbalance", [0.5, 0, float("nan"), "10"])
def test_hold_out_of_imbalance_below_one_raises(imbalance):
    with pytest.raises(UnalikeError, match="imbalance"):
        hold_out(load("digits"), 0.1, imbalance=imbalance)


def test_hold_out_of_regression_with_imbalance_raises():
    data = Dataset("numbers", (torch.zeros(10, 2), torch.arange(10.0)), None)
    with pytest.raises(UnalikeError, match="imbalance=10"):
        hold_out(data, 0.3, imbalance=10)


def test_hold_out_follows_seed_and_keeps_groups():
    y = np.arange(40) % 2
    data = Dataset.divided(
        "rows", np.arange(40, dtype=np.float32)[:, None], y, 20, ["a", "b"], {"ward": np.arange(40)}
    )
    rest, (x, _) = hold_out(data, 0.2, seed=1)
    assert torch.equal(x, hold_out(data, 0.2, seed=1)[1][0]) and not torch.equal(
        x, hold_out(data, 0.2, seed=2)[1][0]
    )
    assert (
        rest.merged()[0][:, 0].tolist() == rest.groups["ward"].tolist()
        and (x >= 20).all()
        and len(x) == 4
    )


def test_hold_out_of_regression_without_test_set_takes_training_samples():
    data = Dataset("numbers", (torch.zeros(10, 2), torch.arange(10.0)), None)
    rest, (_, y) = hold_out(data, 0.3)
    assert len(y) == 3 and sorted([*rest.train[1].tolist(), *y.tolist()]) == list(range(10))


@pytest.mark.parametrize("share, named", [(0, "share"), (1.5, "share"), (0.99, "expected")])
def test_hold_out_of_impossible_share_raises(share, named):
    y = np.array([0] * 9 + [1])
    with pytest.raises(UnalikeError, match=named):
        hold_out(Dataset("few", (np.zeros((10, 1), np.float32), y), None, ["a", "b"]), share)


def test_hold_out_of_share_of_wrong_type_raises(blobs):
    with pytest.raises(UnalikeError, match=r"found share='0\.1', expected a number"):
        hold_out(blobs, "0.1")
