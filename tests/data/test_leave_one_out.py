"""`leave_one_out`: one owner never trains and alone is tested; seeds take them in turn."""

import numpy as np
import pytest

import unalike as ua


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3)).astype(np.float32)
    return ua.Dataset(
        "d", (x, (x[:, 0] > 0).astype(int)), groups={"hospital": np.repeat(["a", "b", "c"], [40, 30, 20])}
    )


def test_each_seed_leaves_out_the_next_owner(data):
    for seed, sizes in ((0, [0, 30, 20]), (1, [40, 0, 20]), (2, [40, 30, 0]), (3, [0, 30, 20])):
        with pytest.warns(UserWarning, match="one of the 3 clients"):
            clients = ua.partition(data, "leave_one_out(column='hospital')", seed=seed)
        assert list(clients.names) == ["a", "b", "c"] and clients.sizes.tolist() == sizes
        assert clients.test.sizes.tolist() == [
            n if not kept else 0 for n, kept in zip([40, 30, 20], sizes, strict=True)
        ]


def test_an_owner_can_be_named_and_others_validate(data):
    with pytest.warns(UserWarning, match="b is left out of training"):
        clients = ua.partition(data, "leave_one_out(column='hospital', client='b')", seed=5, val=0.1)
    assert clients.test.sizes.tolist() == [0, 30, 0] and clients.val.sizes.tolist() == [4, 0, 2]
    for spec, why in (("client='x'", "found client='x'; expected one of two or more: a, b, c"),):
        with pytest.raises(ua.UnalikeError, match=why):
            ua.partition(data, f"leave_one_out(column='hospital', {spec})")
    with pytest.raises(ua.UnalikeError, match="split"):
        ua.partition(data, "leave_one_out(column='hospital')", split=0.5)


@pytest.mark.filterwarnings("ignore:one of the 3 clients")
def test_a_comparison_scores_each_owner_under_the_seed_that_left_it_out(data):
    found = ua.compare(
        ["fedavg", "fedprox"],
        data=data,
        partition="leave_one_out(column='hospital')",
        seeds=3,
        model="linear",
        rounds=3,
    )
    scores = found.client_scores.set_index(["method", "client"]).loc["fedavg"]
    last = found.rounds[(found.rounds["method"] == "fedavg") & (found.rounds["round"] == 3)].set_index("seed")[
        "accuracy"
    ]
    assert scores.loc[["a", "b", "c"], "score"].tolist() == pytest.approx(last.tolist())
    assert scores["seeds"].tolist() == [1, 1, 1, 3, 3] and scores.loc["mean of the clients", "score"] == pytest.approx(
        last.mean()
    )
