"""`combat`: the federation's ComBat equals the simulation's on the same clients, for the method in it."""

import numpy as np
import pytest
import torch

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.data.harmonization import harmonized, site_sums
from unalike.methods.plans.harmonization_plan import HarmonizationSums
from unalike.runtime.setup.run_config import configure_run

WORK = ua.Work(batch_size=8, lr=0.1)
MODEL = "mlp(hidden=(8,))"


@pytest.fixture
def clients():
    """Four hospitals of a column, age, that has an effect on four others, which devices shift and scale."""
    rng = np.random.default_rng(0)
    made = []
    for k, n in enumerate((40, 25, 30, 12)):
        age = rng.normal(k, 1, n)
        others = 2 * age[:, None] + 3 * k + (1 + k) * rng.normal(size=(n, 4))
        x = np.column_stack([age, others]).astype(np.float32)
        y = (age + rng.normal(size=n) > k).astype(np.int64)
        made.append(ua.ClientData(train=(x[5:], y[5:]), test=(x[:5], y[:5])))
    return made


def trained(method, clients, **more):
    return ua.run(method, clients, model=MODEL, rounds=3, work=WORK, progress=False, **more)


@pytest.mark.parametrize(
    ("method", "kept", "executor"),
    [("fedavg", (), "loop"), ("fedavg", (0,), "batched"), ("scaffold + ditto", (0, 2), "loop")],
)
def test_combat_equals_its_method_on_harmonized_clients(clients, method, kept, executor):
    options = {"executor": executor, "protocol": ("clients", "personal")}
    found = trained(f"combat(kept={kept}, method='{method}')", clients, **options)
    population = harmonized(ua.Population.of(clients), kept=kept)
    expected = trained(method, population, **options)
    without = trained(method, clients, **options)

    assert not torch.allclose(without.params["head.bias"], expected.params["head.bias"], atol=1e-3)
    for name, w in expected.params.items():
        torch.testing.assert_close(found.params[f"module.{name}"], w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        found.history.rounds["loss"], expected.history.rounds["loss"], rtol=1e-4
    )

    # a client's model takes samples as its site measures them
    for k, client in enumerate(population):
        measured = torch.as_tensor(clients[k].test[0])
        torch.testing.assert_close(
            found.predictor(k)(measured),
            expected.predictor(k)(client.test[0]),
            rtol=1e-4,
            atol=1e-4,
        )


def test_wire_of_combat_lists_the_sums_and_what_all_sites_have_in_common(clients):
    """One kept and four corrected columns: n, 4 + 1 means, R, 4 products and 4 squares; alpha, beta and sigma of 5 columns."""
    run_config = configure_run("combat(kept=(0,))", clients, model=MODEL, rounds=2)
    items = {(i.direction, i.what): i.bytes for i in run_config.wire}
    assert items["up", "sums: answer to harmonization_sums (once)"] == 8 * (1 + 5 + 1 + 4 + 4)
    assert items["down", "train: parameters that stay fixed (once)"] == 4 * (5 + 5 + 5)


def test_client_of_one_sample_keeps_its_inputs(clients):
    one = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])
    clients[3] = ua.ClientData(train=(one, torch.tensor([0])), test=clients[3].test)
    run = trained("combat(kept=(0,))", clients)
    group = run._runner.state.groups["all"]
    changed = [bool(group.context(k)["input_correction"]["shift"].any()) for k in range(4)]
    assert changed == [True, True, True, False]
    assert (group.context(3)["input_correction"]["scale"] == 1).all()


@pytest.mark.parametrize(
    ("spec", "message"),
    [("combat(columns=(1,))", "two columns or more"), ("combat(kept=(5,))", "kept columns .5. are constant"),
     ("combat", "columns .5. are constant"), ("combat(columns=(1, 9))", "positions from 0 to 5"),
     ("combat(kept=(0, 5), method='client_dp(noise_multiplier=1)')", "answers to the query harmonization_sums have no noise")],
)  # fmt: skip
def test_columns_that_cannot_be_corrected_are_refused(clients, spec, message):
    def with_constant(samples):
        x, y = samples
        return np.column_stack([x, np.full(len(x), 0.1, np.float32)]), y

    wider = [
        ua.ClientData(train=with_constant(c.train), test=with_constant(c.test)) for c in clients
    ]
    with pytest.raises(UnalikeError, match=message):
        trained(spec, wider)


def test_images_and_impossible_sums_are_refused(clients):
    images = [ua.ClientData(train=(torch.rand(6, 1, 2, 2), torch.arange(6) % 2))]
    with pytest.raises(UnalikeError, match="expected rows of numbers"):
        trained("combat", images)
    query = HarmonizationSums(width=5)
    answer = site_sums(torch.as_tensor(clients[0].train[0]), range(5), ())._asdict()
    assert not query.why_impossible(answer, 35)
    assert query.why_impossible(answer, 36) == "sums of 35 samples; expected 36"
    assert "negative" in query.why_impossible(answer | {"residual": -answer["residual"]}, 35)
