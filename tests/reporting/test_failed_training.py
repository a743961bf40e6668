"""Training that failed is named in the first sentence, or among the reasons to doubt the ranking."""

import math
import warnings

import pandas as pd
import pytest

import unalike as ua
from unalike.metrics.columns import Columns
from unalike.metrics.failures import of_run
from unalike.metrics.named_metrics import KNOWN
from unalike.reporting.failed_training import cautions, nothing_learned, some_learned_nothing
from unalike.reporting.findings import findings
from unalike.statistics.verdicts import BASELINE, CANDIDATE, UPPER, Rules


def scored(**columns):
    """Two rows of a summary: fedavg and ditto."""
    return pd.DataFrame({"method": ["fedavg", "ditto"], "role": [BASELINE, CANDIDATE], **columns})


@pytest.mark.parametrize(
    ("metric", "classes", "column", "best", "learned"),
    [
        ("accuracy", 10, "balanced_accuracy", 0.105, False),
        ("accuracy", 10, "balanced_accuracy", 0.13, True),
        ("macro_f1", 62, "balanced_accuracy", 0.0165, False),
        ("macro_f1", 62, "balanced_accuracy", 0.03, True),  # ten points above chance would hide it
        ("roc_auc", 2, "roc_auc", 0.505, False),
        ("roc_auc", 2, "roc_auc", 0.55, True),
        ("rmse", None, "r2", -0.2, False),
        ("rmse", None, "r2", 0.05, True),
    ],
)
def test_nothing_is_learned_unless_one_method_is_better_than_a_constant_prediction(
    metric, classes, column, best, learned
):
    table = scored(**{column: [best, best - 0.01]})
    assert (nothing_learned(table, KNOWN[metric], classes) == "") == learned


def test_an_area_under_the_curve_counts_although_every_prediction_is_the_same_class():
    table = scored(roc_auc=[0.7, 0.8], balanced_accuracy=[0.5, 0.5])
    assert nothing_learned(table, KNOWN["roc_auc"], 2) == ""
    assert "always predicting the most frequent class" in nothing_learned(
        table, KNOWN["accuracy"], 2
    )


def test_nothing_is_said_where_no_column_shows_it_or_only_a_reference_learned():
    assert nothing_learned(scored(), KNOWN["accuracy"], 2) == ""
    assert nothing_learned(scored(log_loss=[9.0, 9.0]), KNOWN["log_loss"], 2) == ""
    table = scored(balanced_accuracy=[0.5, 0.9]).assign(role=[BASELINE, UPPER])
    assert nothing_learned(table, KNOWN["accuracy"], 2) != ""


def rounds(**last):
    """Losses of two rounds: 2 before training, `last[method]` after it."""
    rows = [
        (name, 0, r, loss, 0.5) for name, end in last.items() for r, loss in ((0, 2.0), (1, end))
    ]
    return pd.DataFrame(rows, columns=["method", "seed", "round", "loss", "accuracy"])


def test_a_loss_twenty_times_that_before_training_has_exploded():
    columns, rules = Columns.of(["clients"], [KNOWN["accuracy"], KNOWN["loss"]]), Rules("fedavg")
    table = scored(accuracy=[0.5, 0.5])
    [text] = cautions(rounds(fedavg=39.0, ditto=41.0), table, columns, rules, "clients")
    assert text.startswith("The training of ditto exploded: its loss is 41, 2 before training")
    assert text.endswith("Lower the learning rate.")
    assert cautions(rounds(fedavg=1.0, ditto=2.0), table, columns, rules, "clients") == []


def test_the_noise_of_a_private_method_that_failed_is_named_in_place_of_its_learning_rate():
    columns, noise = (
        Columns.of(["clients"], [KNOWN["accuracy"], KNOWN["loss"]]),
        "ts noise may be the cause: give it a larger",
    )
    exploded, table = (
        rounds(ditto=1e37).assign(epsilon=3.0),
        scored(balanced_accuracy=[0.3, 0.1], accuracy=[0.3, 0.1]),
    )
    found = [
        *cautions(exploded, table, columns, Rules("fedavg"), "clients"),
        *some_learned_nothing(table.assign(epsilon=[math.nan, 3.0]), KNOWN["accuracy"], 10),
        nothing_learned(table.assign(epsilon=3.0, balanced_accuracy=0.1), KNOWN["accuracy"], 10),
        *of_run(exploded.to_dict("records"), columns, 2),
    ]
    assert len(found) == 4 and all(noise in text and "learning rate" not in text for text in found)
    assert "learning rate" in nothing_learned(
        table.assign(epsilon=[math.nan, 3.0], balanced_accuracy=0.1), KNOWN["accuracy"], 10
    )


def test_a_method_without_a_score_has_not_exploded():
    columns = Columns.of(["server"], [KNOWN["accuracy"], KNOWN["loss"]])
    table = rounds(fedavg=1.0, ifca=math.nan, local_only=math.nan)
    table.loc[table["method"] != "fedavg", ["loss", "accuracy"]] = math.nan
    [text] = cautions(
        table, scored(accuracy=[0.5, 0.5]), columns, Rules("fedavg"), "server", ["local_only"]
    )
    assert text.startswith("ifca has no score: protocol server scores none of its models")
    [text] = of_run([{"round": 0}, {"round": 1, "train_loss": 1.0}], columns, 2)
    assert text.startswith("no score: protocol server") and of_run([{"round": 0}], columns, 2) == []


def test_an_upper_reference_below_the_baseline_is_named():
    columns = Columns.of(["clients"], [KNOWN["rmse"], KNOWN["loss"]])
    rules = Rules("fedavg", {"centralised": UPPER})
    table = scored(rmse=[58.1, 64.3]).assign(
        method=["fedavg", "centralised"], role=[BASELINE, UPPER]
    )
    [text] = cautions(rounds(fedavg=1.0), table, columns, rules, "clients")
    assert text.startswith(
        "Centralised is not the best possible here: 64.3, less good than fedavg (58.1)."
    )
    better = table.assign(rmse=[58.1, 58.0])
    assert cautions(rounds(fedavg=1.0), better, columns, rules, "clients") == []


def compared(lr):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work = ua.Work(lr=lr)
        methods = ["fedavg", "fedprox(mu=0.1)"]
        return ua.compare(
            methods,
            data="digits",
            clients=3,
            model="linear",
            rounds=2,
            seeds=2,
            work=work,
            progress=False,
        )


def test_a_comparison_in_which_nothing_was_learned_says_so_first_and_chooses_nothing():
    table = compared(1e-9)
    found = findings(table.content())
    assert found.answer.startswith(
        "Nothing was learned: no method is better than always predicting the most frequent class"
    )
    assert str(table.decision) == found.answer and not table.decision.choice and not found.standing
    assert findings(compared(0.1).content()).answer.startswith(("Use", "Keep"))


def test_methods_that_learned_nothing_are_named_where_others_did():
    table = scored(balanced_accuracy=[0.1, 0.3])
    [text] = some_learned_nothing(table, KNOWN["accuracy"], 10)
    assert (
        "No better than always predicting the most frequent class: fedavg;" in text
        and "shows nothing" in text
    )
    assert nothing_learned(table, KNOWN["accuracy"], 10) == ""
    both = scored(balanced_accuracy=[0.1, 0.1])
    assert some_learned_nothing(both, KNOWN["accuracy"], 10) == []
    equal = both.assign(role=[BASELINE, "the same scores as fedavg in every round"])
    assert nothing_learned(equal, KNOWN["accuracy"], 10) != ""


@pytest.mark.parametrize(
    ("personal", "why"),
    [
        ((), "Its training does not suit it"),
        (("ditto",), "Models of their own, as ditto trains them"),
    ],
)
def test_an_upper_reference_below_a_candidate_is_named(personal, why):
    table = scored(accuracy=[0.8, 0.9])
    table = pd.concat(
        [
            table,
            pd.DataFrame({"method": ["centralised"], "role": [UPPER], "accuracy": [0.85]}),
        ]
    )
    columns = Columns.of(("clients",), [KNOWN["accuracy"], KNOWN["loss"]])
    rules = Rules("fedavg", {"centralised": UPPER}, None)
    [text] = cautions(rounds(fedavg=1.0), table, columns, rules, "clients", personal)
    assert (
        "Centralised is not the best possible here: 85.0" in text
        and "less good than ditto (90.0" in text
        and why in text
    )
    fitted = cautions(rounds(fedavg=1.0), table, columns, rules, "clients", personal, has_fits=True)
    assert fitted == []


def test_a_run_says_that_it_learned_nothing_or_exploded(tmp_path):
    """On the notes of the run, of the run that is opened again, and not again among those of a comparison."""
    options = {"data": "digits", "clients": 3, "model": "linear", "rounds": 2}
    for work, why in (
        (ua.Work(lr=1e-9), "nothing was learned: the model is no better"),
        (ua.Work(lr=1e4), "exploded"),
    ):
        run = ua.run("fedavg", work=work, out=tmp_path / why[:4], **options)
        assert any(why in note for note in run.notes) and not any(
            why in note for note in run.warnings
        )
        assert set(ua.open_run(run.out).notes) == set(run.notes)
    run = ua.run("fedavg", work=ua.Work(lr=0.1), **options)
    assert not any(
        "still got better" in note for note in run.notes
    )  # two rounds after the untrained model show no trend
    run = ua.run("fedavg", work=ua.Work(lr=0.1), **options | {"rounds": 3})
    [rises] = (note for note in run.notes if note not in (*run.warnings, run.run_config.sanity))
    assert rises.startswith("the accuracy still got better by")
    table = ua.compare(["fedavg"], seeds=1, work=ua.Work(lr=1e-9), **options)
    assert not any("nothing was learned" in note for note in table.facts.notes)


@pytest.mark.parametrize(("scheme", "trivial"), [("classes(k=1)", True), ("iid", False)])
def test_personal_models_of_clients_with_one_class_each_decide_nothing(scheme, trivial):
    table = ua.compare(
        ["fedavg", "local_only"],
        data="digits",
        partition=scheme,
        clients=10,
        rounds=2,
        progress=False,
    )
    assert (
        "No decision: 10 of 10 clients train on one class each" in str(table.decision)
    ) == trivial
