"""`leave_one_out`: one owner never trains and alone is tested; seeds take them in turn."""

import numpy as np
import pytest

import unalike as ua


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3)).astype(np.float32)
    return ua.Dataset(
        "d",
        (x, (x[:, 0] > 0).astype(int)),
        groups={"hospital": np.repeat(["a", "b", "c"], [40, 30, 20])},
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
        clients = ua.partition(
            data, "leave_one_out(column='hospital', client='b')", seed=5, val=0.1
        )
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
    last = found.rounds[
        (found.rounds["method"] == "fedavg") & (found.rounds["round"] == 3)
    ].set_index("seed")["accuracy"]
    assert scores.loc[["a", "b", "c"], "score"].tolist() == pytest.approx(last.tolist())
    assert scores["seeds"].tolist() == [1, 1, 1, 3, 3] and scores.loc[
        "mean of the clients", "score"
    ] == pytest.approx(last.mean())
    assert scores.loc[["a", "b", "c"], "n_test"].tolist() == [40, 30, 20]
    assert scores.loc["all test samples pooled", "n_test"] == pytest.approx(30)
    assert found.content().about == (
        "The intervals hold for other hospitals like these 3 and other training runs; 3 seeds, each tests hospitals that it "
        "leaves out of training."
    )


LEFT_OUT = {
    "partition": "leave_one_out(column='hospital', client='b')",
    "rounds": 3,
    "work": ua.Work(lr=0.5),
}


@pytest.mark.parametrize(
    "method", ["ditto", "apfl", "pfedme", "fedavg + fine_tuned", "perfedavg", "fedbn"]
)
@pytest.mark.parametrize("executor", ["auto", "distributed(workers=2)"])
@pytest.mark.filterwarnings("ignore:b is left out")
def test_an_owner_that_never_trained_has_the_shared_model(data, method, executor, tmp_path):
    """fedbn is FedAvg for this model, which has no normalization; the others would score untrained models of their own."""
    if executor != "auto" and method != "ditto":
        pytest.skip("one method in several processes is enough")
    run = ua.run(method, data=data, model="linear", executor=executor, out=tmp_path, **LEFT_OUT)
    last = run.history.last
    assert (
        last["personal_accuracy"] == last["accuracy"] and last["personal_loss"] == last["loss"] != 0
    )
    x = run.run_config.population[1].test[0]
    for found in (run, ua.open_run(tmp_path)):
        with pytest.warns(UserWarning, match="b never trained and has no model of its own"):
            assert (found.predictor("b")(x) == found.predictor()(x)).all()
    own, shared = run.personal("b"), run.params
    assert all((own[name] == shared[name]).all() for name in shared)
    trained = run.personal("a")
    if method in ("ditto", "apfl", "pfedme"):
        assert any((trained[name] != shared[name]).any() for name in shared)


@pytest.mark.parametrize(
    ("method", "model", "why"),
    [
        ("local_only", "linear", "has no shared model"),
        ("fedper", "mlp(hidden=(4,))", "has no shared model: its clients keep parameters"),
        ("ifca(clusters=2)", "linear", "has 2 models, one for each group"),
        ("clustered(warmup=1)", "linear", "makes groups of clients by what they train"),
        (
            "conditional",
            "conditional_mlp(hidden=(4,))",
            "feeds its model facts of each client's own samples",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:b is left out")
def test_methods_without_a_model_for_it_are_refused_before_training(data, method, model, why):
    with pytest.raises(
        ua.UnalikeError, match=f"never train are tested, and .* {why}.*leave it out"
    ):
        ua.compare([method], data=data, model=model, seeds=1, **LEFT_OUT)
