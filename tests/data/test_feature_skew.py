import numpy as np
import pytest
import torch

from unalike._utils.errors import UnalikeError
from unalike.data import Dataset, PartitionPlan, apply_plan, partition
from unalike.data.partitioning.feature_skew import Noise, Rotation
from unalike.data.partitioning.partition import canonical

ARROWS = np.zeros((80, 1, 6, 6), np.float32)
ARROWS[:, 0, 0, 2:4] = 1


@pytest.fixture(scope="module")
def arrows() -> Dataset:
    """Images with a bright upper edge."""
    return Dataset("arrows", (ARROWS[:60], np.arange(60) % 2), (ARROWS[60:], np.arange(20) % 2))


def test_noise_variance_per_client_matches_paper():
    rows = Dataset("zeros", (np.zeros((4000, 50)), np.zeros(4000, int)))
    everyone = partition(rows, "noise(level=0.5)", clients=4)
    found = [float(everyone[k].train[0].var()) for k in range(4)]
    assert found == pytest.approx([0.125, 0.25, 0.375, 0.5], rel=0.03)
    assert everyone.clusters is None and not rows.train[0].any()


def test_noise_deviation_per_client_matches_authors_code():
    rows = Dataset("zeros", (np.zeros((4000, 50)), np.zeros(4000, int)))
    everyone = partition(rows, "noise(level=0.3, deviation=True)", clients=4)
    assert [float(everyone[k].train[0].std()) for k in range(4)] == pytest.approx(
        [0, 0.1, 0.2, 0.3], rel=0.03
    )
    assert not Noise(0.3, deviation=True)(torch.zeros(2, 3), 0, 1, np.random.default_rng()).any()


def test_rotation_rotates_groups_of_clients(arrows):
    everyone = partition(arrows, "rotation(degrees=90)", clients=8)
    assert list(everyone.clusters) == [0, 0, 1, 1, 2, 2, 3, 3]
    for k, edge in enumerate(np.repeat([(0, 2), (2, 0), (5, 2), (2, 5)], 2, axis=0)):
        for x in (everyone[k].train[0], everyone[k].test[0]):
            assert (x[:, 0, edge[0], edge[1]] == 1).all() and (x.sum((1, 2, 3)) == 2).all()


def test_rotation_by_other_angles_has_same_direction_as_right_angles():
    x = torch.rand(2, 1, 8, 8)
    near, exact = Rotation((89.999,))(x, 0, 1, None), Rotation((90,))(x, 0, 1, None)
    assert torch.allclose(near, exact, atol=1e-3)
    wide = torch.rand(1, 1, 4, 8)
    assert torch.allclose(
        Rotation((179.999,))(wide, 0, 1, None), Rotation((180,))(wide, 0, 1, None), atol=1e-3
    )


def test_changes_combine_with_scheme_and_each_other(arrows):
    spec = "dirichlet(alpha=0.5, min_size=3) + rotation(degrees=(0, 180)) + noise"
    everyone = partition(arrows, spec, clients=4, seed=1)
    plain = partition(arrows, "dirichlet(alpha=0.5, min_size=3)", clients=4, seed=1)
    assert np.array_equal(everyone.label_counts(), plain.label_counts()) and list(
        everyone.clusters
    ) == [0, 0, 1, 1]
    assert canonical("noise") == "iid() + noise(level=0.1, deviation=False)"


def test_changes_keep_labels_and_change_shared_samples_per_client(blobs):
    everyone, plain = (
        partition(blobs, f"zipf(size=100){change}", 3) for change in (" + noise(level=1e-9)", "")
    )
    for k in range(3):
        for (x, y), (x0, y0) in zip(everyone[k].splits().values(), plain[k].splits().values()):
            assert (
                torch.equal(y, y0) and torch.allclose(x, x0, atol=1e-3) and not torch.equal(x, x0)
            )


def test_saved_plan_reproduces_changed_samples(arrows, tmp_path):
    everyone = partition(arrows, "rotation(degrees=45) + noise", clients=5, seed=3)
    again = apply_plan(PartitionPlan.load(everyone.plan.save(tmp_path)), arrows)
    assert again.fingerprint == everyone.fingerprint and torch.equal(again.x, everyone.x)
    other = partition(arrows, "rotation(degrees=45) + noise", clients=5, seed=4)
    assert other.fingerprint != everyone.fingerprint


def test_change_of_sample_does_not_depend_on_its_split(arrows):
    plain, apart = (
        partition(arrows, "noise(level=1)", clients=5, val=share) for share in (0.0, 0.2)
    )
    for one, other in zip(plain, apart):
        assert torch.equal(one.test[0], other.test[0])
        kept = torch.cat([other.train[0], other.val[0]]).flatten(1)
        assert torch.equal(one.train[0].flatten(1).sort(0).values, kept.sort(0).values)


def test_change_of_unsuitable_samples_raises(arrows):
    with pytest.raises(UnalikeError, match="expected images"):
        partition(Dataset("rows", (np.ones((9, 2)), np.zeros(9, int))), "rotation", clients=2)
    with pytest.raises(UnalikeError, match="found tokens"):
        partition(Dataset("texts", (np.ones((9, 2), int), np.zeros(9, int))), "noise", clients=2)
    with pytest.raises(UnalikeError, match="level=0"):
        Noise(0)
    with pytest.raises(UnalikeError, match=r"degrees=\(\)"):
        Rotation(())
    with pytest.raises(UnalikeError, match="degrees=400, which turns nothing"):
        partition(arrows, "rotation(degrees=400)", clients=2)
    with pytest.raises(UnalikeError, match="did you mean 'rotation'"):
        partition(arrows, "iid + rotations", clients=2)
