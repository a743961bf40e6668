"""Summaries of comparisons small enough to check by hand."""

import math

import numpy as np
import pandas as pd
import pytest
from derived_columns import derived

from unalike._utils.errors import UnalikeError
from unalike.metrics.named_metrics import KNOWN, read
from unalike.statistics import costs
from unalike.statistics import scores as st
from unalike.statistics import summary as summaries
from unalike.statistics.summary import summary
from unalike.statistics.verdicts import Rules


def rounds_of(**scores):
    """Method -> list over seeds of lists over rounds (from round 0); bytes and seconds are the same in every round."""
    rows = [
        {"method": m, "seed": s, "round": r, "accuracy": value, "macro_f1": value / 2, "loss": 1 - value,
         "seconds": 2.0 if r else 0.0, "bytes_down": 3e6 if r else 0, "bytes_up": 1e6 if r else 0}
        for m, seeds in scores.items() for s, values in enumerate(seeds) for r, value in enumerate(values)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def clients_of(**scores):
    """Method -> list over seeds of lists over clients."""
    rows = [
        {"method": m, "seed": s, "client": f"c{k}", "accuracy": value}
        for m, seeds in scores.items() for s, values in enumerate(seeds) for k, value in enumerate(values)
    ]  # fmt: skip
    return pd.DataFrame(rows)


ROUNDS = rounds_of(
    base=[[0.1, 0.4, 0.6], [0.1, 0.5, 0.7], [0.1, 0.6, 0.8]],
    other=[[0.1, 0.5, 0.7], [0.1, 0.7, 0.9], [0.1, 0.9, 1.1]],
)
CLIENTS = clients_of(
    base=[[0.4, 0.6], [0.5, 0.7], [0.6, 0.8]], other=[[0.5, 0.7], [0.4, 1.2], [0.6, 1.4]]
)


COLUMNS = derived(ROUNDS)
ACCURACY, RMSE = (derived([name]).scores[0] for name in ("accuracy", "rmse"))


@pytest.mark.parametrize(
    ("evaluated", "counted"),
    [(1, 1), (2, 1), (3, 1), (5, 1), (6, 2), (15, 5), (29, 9), (30, 10), (300, 10)],
)
def test_scored_rounds_are_the_last_third_at_most_ten(evaluated, counted):
    assert st.scored_rounds(evaluated) == counted


def test_tail_mean_of_a_short_run_is_its_end_not_its_climb():
    """15 rounds from 0.1 to 1.5: the last five are 1.1 .. 1.5; round 0 never counts."""
    rounds = rounds_of(base=[[9.0, *(0.1 * r for r in range(1, 16))]])
    assert st.tail_mean(rounds, ACCURACY)[("base", 0)] == pytest.approx(1.3)
    assert st.scoring_rule(rounds, COLUMNS) == "mean of the last 5 of 15 evaluated rounds"
    assert st.tail_mean(ROUNDS, ACCURACY)[("base", 0)] == pytest.approx(0.6)
    assert st.scoring_rule(ROUNDS, COLUMNS) == "the last evaluated round"


def test_tail_mean_counts_evaluated_rounds_only():
    rounds = ROUNDS.copy()
    rounds.loc[
        (rounds["method"] == "base") & (rounds["seed"] == 0) & (rounds["round"] == 2), "accuracy"
    ] = math.nan
    assert st.tail_mean(rounds, ACCURACY)[("base", 0)] == pytest.approx(0.4)


def test_tail_mean_does_not_depend_on_the_order_of_rows_and_keeps_the_order_of_methods():
    shuffled = pd.concat([ROUNDS.iloc[[-1]], ROUNDS.iloc[:-1].iloc[::-1]])
    means = st.tail_mean(shuffled, ACCURACY)
    assert means[("other", 2)] == pytest.approx(1.1)
    assert list(dict.fromkeys(means.index.get_level_values("method"))) == ["other", "base"]


def test_scoring_rule_of_runs_of_different_lengths_names_the_rule():
    rounds = pd.concat([rounds_of(a=[[0.1] * 16]), rounds_of(b=[[0.1] * 31])])
    assert (
        st.scoring_rule(rounds, COLUMNS)
        == "mean of the last third of the evaluated rounds, at most 10"
    )
    assert (
        st.scoring_rule(rounds.assign(selected=False), COLUMNS)
        == "the round with the best validation score"
    )


def test_still_rising_names_methods_that_gain_more_than_the_smallest_effect():
    """Over the last 5 of 15 rounds, rising gains 5 x 0.01; flat none; falling -0.05, which is no gain."""
    up = [0.3 + 0.01 * r for r in range(16)]
    rounds = rounds_of(rising=[up, up], flat=[[0.5] * 16] * 2, falling=[up[::-1]] * 2)
    assert st.still_rising(rounds, ACCURACY, 0.005) == [
        st.Rise("rising", pytest.approx(0.05), 5, 15)
    ]
    assert st.still_rising(rounds, ACCURACY, 0.06) == []
    assert st.still_rising(rounds.assign(selected=True), ACCURACY, 0.005) == []
    lower = rounds.rename(columns={"accuracy": "rmse"})
    assert [rise.method for rise in st.still_rising(lower, RMSE, 0.005)] == ["falling"]


def test_still_rising_needs_more_than_noise_between_seeds():
    up, down = ([0.3 + slope * r for r in range(16)] for slope in (0.012, -0.01))
    assert st.still_rising(rounds_of(base=[up, down]), ACCURACY, 0.005) == []


def test_summary_equals_hand_computed_values():
    """Scores (the last round): base 0.6, 0.7, 0.8; other 0.7, 0.9, 1.1; d = 0.1, 0.2, 0.3, so 0.2 -+ 0.2484138."""
    base, other = summary(ROUNDS, CLIENTS, COLUMNS, Rules("base")).to_dict("records")
    assert (base["method"], base["protocol"], base["seeds"]) == ("base", "clients", 3)
    assert base["accuracy"] == pytest.approx(0.7) and base["accuracy_sd"] == pytest.approx(0.1)
    assert math.isnan(base["difference"]) and math.isnan(base["ci_low"])
    assert base["macro_f1"] == pytest.approx(0.35) and base["loss"] == pytest.approx(0.3)
    assert other["difference"] == pytest.approx(0.2)
    assert (other["ci_low"], other["ci_high"]) == pytest.approx((-0.0484138, 0.4484138), abs=1e-6)
    assert base["client_sd"] == pytest.approx(0.2 / math.sqrt(2))
    assert other["worst_decile"] == pytest.approx(0.5)  # the worst of two clients: 0.5, 0.4, 0.6
    assert (base["mb_down"], base["mb_up"], base["seconds"]) == pytest.approx((6.0, 2.0, 4.0))


def test_totals_keep_evaluation_apart_and_unknown_where_a_folder_lacks_it():
    evaluated = costs.totals(ROUNDS.assign(evaluation_seconds=1.5))
    assert evaluated.loc["base", ["seconds", "evaluation_seconds"]].tolist() == pytest.approx(
        [4.0, 4.5]
    )
    assert costs.totals(ROUNDS)["evaluation_seconds"].isna().all()


def test_summary_one_seed_has_no_deviation_and_no_interval():
    rounds = ROUNDS[ROUNDS["seed"] == 0]
    other = summary(rounds, CLIENTS, derived(rounds), Rules("base")).iloc[1]
    assert other["difference"] == pytest.approx(0.1)
    assert (
        math.isnan(other["accuracy_sd"])
        and math.isnan(other["ci_low"])
        and math.isnan(other["ci_high"])
    )


def test_summary_pairs_seeds_by_number():
    rounds = ROUNDS[~((ROUNDS["method"] == "other") & (ROUNDS["seed"] == 0))]
    other = summary(rounds, CLIENTS, derived(rounds), Rules("base")).iloc[1]
    assert other["difference"] == pytest.approx(0.25) and other["seeds"] == 2
    less = ROUNDS[~((ROUNDS["method"] == "base") & (ROUNDS["seed"] > 0))]
    base, other = summary(less, CLIENTS, derived(less), Rules("base")).to_dict("records")
    assert (base["pairs"], other["pairs"], other["seeds"]) == (0, 1, 3)


def test_summary_does_not_mix_protocols():
    rounds = ROUNDS.assign(personal_accuracy=math.nan)
    other = rounds["method"] == "other"
    rounds.loc[other, "personal_accuracy"] = rounds.loc[other, "accuracy"] + 1
    table = summary(rounds, CLIENTS, derived(rounds), Rules("base"))
    assert list(zip(table["method"], table["protocol"])) == [
        ("base", "clients"),
        ("other", "clients"),
        ("other", "personal"),
    ]
    assert math.isnan(table.iloc[2]["difference"]) and table.iloc[2]["accuracy"] == pytest.approx(
        1.9
    )


def test_summary_method_without_shared_model_has_only_a_personal_row():
    rounds = ROUNDS.assign(personal_accuracy=ROUNDS["accuracy"])
    rounds.loc[rounds["method"] == "other", "accuracy"] = math.nan
    table = summary(rounds, CLIENTS, derived(rounds), Rules("base"))
    assert list(zip(table["method"], table["protocol"])) == [
        ("base", "clients"),
        ("base", "personal"),
        ("other", "personal"),
    ]
    assert table.iloc[2]["difference"] == pytest.approx(0.2)


def test_summary_regression_uses_rmse_with_highest_as_worst():
    rounds = ROUNDS.rename(columns={"accuracy": "rmse"}).drop(columns="macro_f1")
    clients = CLIENTS.rename(columns={"accuracy": "rmse"})
    table = summary(rounds, clients, derived(rounds), Rules("base"))
    assert "rmse_sd" in table and "macro_f1" not in table
    assert table.iloc[1]["worst_decile"] == pytest.approx((0.7 + 1.2 + 1.4) / 3)
    effects = st.client_effects(clients, "base", RMSE).set_index("method").loc["other"]
    assert effects["worst"] == pytest.approx((0.7 + 1.2 + 1.4) / 3)
    assert effects["largest_loss"] == pytest.approx(0.6)


def test_client_effects_pair_each_client_with_itself():
    """Gains of other: 0.1 0.1 | -0.1 0.5 | 0.0 0.6, so 4 of 6 are better off, 1 of 6 worse, the largest loss is 0.1."""
    effects = st.client_effects(CLIENTS.round(6), "base", ACCURACY).set_index("method")
    other = effects.loc["other"]
    assert (other["better_off"], other["worse_off"]) == pytest.approx((4 / 6, 1 / 6))
    assert other["largest_loss"] == pytest.approx(0.1) and other["worst"] == pytest.approx(0.5)
    assert math.isnan(effects.loc["base", "better_off"])


def test_worst_decile_takes_a_tenth_and_at_least_one():
    metric = KNOWN["accuracy"]
    assert st.worst_decile(pd.Series([0.9, 0.2, math.nan]), metric) == pytest.approx(0.2)
    assert st.worst_decile(pd.Series(range(25)), metric) == pytest.approx(0.5)
    assert math.isnan(st.worst_decile(pd.Series(dtype=float), metric))


def test_totals_count_the_rounds_between_evaluations():
    sparse = ROUNDS[ROUNDS["round"] != 1]
    pd.testing.assert_frame_equal(costs.totals(sparse), costs.totals(ROUNDS))
    assert costs.cumulative(ROUNDS).loc[1, "mb_down"] == pytest.approx(3.0)


def test_statistics_errors_state_what_was_found():
    with pytest.raises(UnalikeError, match="baseline 'nobody' was not run"):
        summary(ROUNDS, CLIENTS, COLUMNS, Rules("nobody"))
    with pytest.raises(UnalikeError, match="no metric decides: found loss"):
        summary(ROUNDS, CLIENTS, derived(["method", "seed", "round", "loss"]), Rules("base"))
    with pytest.raises(UnalikeError, match="lacks the columns speed"):
        st.tail_mean(ROUNDS, derived(["speed"]).all[0])


def test_to_target_needs_every_seed():
    """Base reaches 0.6 in rounds 2, 2 and 1, other in 2, 1 and 1; a round costs 4 MB and 2 s. No seed of base reaches 0.9."""
    reached = costs.to_target(ROUNDS.round(6), 0.6, ACCURACY).set_index("method")
    assert reached.loc[
        "base", ["seeds", "reached", "round", "mb", "seconds"]
    ].tolist() == pytest.approx([3, 3, 5 / 3, 20 / 3, 10 / 3])
    assert reached.loc["other", "round"] == pytest.approx(4 / 3)
    far = costs.to_target(ROUNDS.round(6), 0.9, ACCURACY).set_index("method")
    assert far["reached"].tolist() == [0, 2] and far[["round", "mb", "seconds"]].isna().all(
        axis=None
    )
    fell = costs.to_target(ROUNDS.round(6), 0.6, ACCURACY, lost={"other": 1}).set_index("method")
    assert fell.loc["other", ["seeds", "reached"]].tolist() == [4, 3] and math.isnan(
        fell.loc["other", "mb"]
    )
    assert fell.loc["base"].equals(reached.loc["base"])
    less = costs.to_target(ROUNDS.rename(columns={"accuracy": "rmse"}), 0.45, RMSE).set_index(
        "method"
    )
    assert less["reached"].tolist() == [1, 0]


def test_pareto_front_keeps_non_dominated_rows():
    table = pd.DataFrame({"a": [1, 2, 2, 3, math.nan], "cost": [1, 2, 3, 9, 0]})
    assert costs.pareto_front(table, ["a"], ["cost"]).tolist() == [True, True, False, True, False]
    same = pd.DataFrame({"a": [1, 1], "cost": [1, 1]})
    assert costs.pareto_front(same, ["a"], ["cost"]).all()


def named(method, name, shift):
    own = ROUNDS[ROUNDS["method"] == method]
    return own.assign(method=name, accuracy=own["accuracy"] + [shift[s] for s in own["seed"]])


def test_summary_corrects_for_the_candidates_of_one_protocol():
    third = named("other", "third", [0.01, -0.01, 0.02])
    table = summary(pd.concat([ROUNDS, third]), CLIENTS, COLUMNS, Rules("base")).set_index("method")
    assert math.isnan(table.loc["base", "p_holm"]) and table.loc["base", "role"] == "baseline"
    assert table.loc["other", "p_holm"] in (
        pytest.approx(2 * table.loc["other", "p"]),
        pytest.approx(table["p"].max()),
    )
    assert table.loc["other", ["p_exact", "better", "won"]].tolist() == [0.25, 1.0, 3]
    assert table["probability_best"].sum() == pytest.approx(1)


def test_summary_leaves_references_and_repetitions_out_of_the_family():
    """The numbers of a candidate are the same with and without a reference and two methods that repeat others."""
    repeated = [
        ROUNDS[ROUNDS["method"] == m].assign(method=name)
        for m, name in (("base", "ditto"), ("other", "again"))
    ]
    pooled = named("other", "pooled", [0.3, 0.2, 0.5])
    rules = Rules("base", references={"pooled": "upper reference"})
    table = summary(pd.concat([ROUNDS, *repeated, pooled]), CLIENTS, COLUMNS, rules).set_index(
        "method"
    )
    assert table["role"].to_dict() == {
        "base": "baseline",
        "other": "candidate",
        "ditto": "the same scores as base in every round",
        "again": "the same scores as other in every round",
        "pooled": "upper reference",
    }
    alone = summary(ROUNDS, CLIENTS, COLUMNS, rules).set_index("method")
    for column in ("p", "p_holm", "ci_low", "verdict", "probability_best"):
        assert table.loc["other", column] == alone.loc["other", column]
    outside = table.loc[["ditto", "again", "pooled"]]
    assert outside[["p", "p_holm", "p_exact", "probability_best"]].isna().all(axis=None) and set(
        outside["verdict"]
    ) == {""}
    assert outside["difference"].tolist() == pytest.approx([0, 0.2, 0.2 + 1 / 3])


def test_client_effects_ignore_rounding():
    table = pd.DataFrame(
        {
            "method": ["a", "a", "b", "b"],
            "seed": 0,
            "client": [0, 1] * 2,
            "rmse": [3.6, 1.2, 3.6000001, 1.1],
        }
    )
    found = st.client_effects(table, "a", RMSE).set_index("method").loc["b"]
    assert (found["better_off"], found["worse_off"], found["largest_loss"]) == (0.5, 0, 0)


def test_summary_infinite_scores_have_no_spread_and_no_warning(recwarn):
    rows = [
        {
            "method": m,
            "seed": s,
            "round": 1,
            "rmse": math.inf,
            "loss": 1.0,
            "seconds": 1.0,
            "bytes_down": 1,
            "bytes_up": 1,
        }
        for m in "ab"
        for s in (0, 1)
    ]
    clients = pd.DataFrame([row | {"client": "x"} for row in rows])
    assert (
        summary(pd.DataFrame(rows), clients, derived(rows[0]), Rules("a"))["rmse_sd"].isna().all()
    )
    assert not recwarn.list


def test_interval_excludes_zero_where_the_corrected_test_shows_a_difference():
    """Differences of four candidates that are shown, nearly shown and not shown, in 30 draws of five seeds."""
    rng = np.random.default_rng(0)
    [metric] = read(["accuracy"])
    shown = 0
    for _ in range(30):
        base = rng.normal(0.5, 0.01, 5)
        scores = {"base": pd.Series(base)}
        for name, gain in {"a": 0.06, "b": 0.04, "c": -0.03, "d": 0.0}.items():
            scores[name] = pd.Series(base + gain + rng.normal(0, 0.03, 5))
        role = {"base": "baseline"} | dict.fromkeys("abcd", "candidate")
        tests = summaries.tests_and_verdicts(scores, role, Rules("base"), metric).loc[list("abcd")]
        excludes = (tests["ci_low"] > 0) | (tests["ci_high"] < 0)
        assert (excludes == (tests["p_holm"] < 0.05)).all()
        shown += int(excludes.sum())
    assert 0 < shown < 120
