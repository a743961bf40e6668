"""Summaries of comparisons small enough to check by hand."""

import math

import pandas as pd
import pytest

from unalike._utils.errors import UnalikeError
from unalike.metrics import statistics as st
from unalike.metrics.inference import paired


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
    base=[[0.1, 0.4, 0.6], [0.1, 0.5, 0.7], [0.1, 0.6, 0.8]], other=[[0.1, 0.5, 0.7], [0.1, 0.7, 0.9], [0.1, 0.9, 1.1]]
)
CLIENTS = clients_of(base=[[0.4, 0.6], [0.5, 0.7], [0.6, 0.8]], other=[[0.5, 0.7], [0.4, 1.2], [0.6, 1.4]])


def test_tail_mean_short_run_skips_round_zero():
    means = st.tail_mean(ROUNDS, "accuracy")
    assert means[("base", 0)] == pytest.approx(0.5)
    assert st.tail_mean(ROUNDS, "accuracy", last=1)[("other", 2)] == pytest.approx(1.1)


def test_tail_mean_counts_evaluated_rounds_only():
    rounds = ROUNDS.copy()
    rounds.loc[(rounds["method"] == "base") & (rounds["seed"] == 0) & (rounds["round"] == 2), "accuracy"] = math.nan
    assert st.tail_mean(rounds, "accuracy", last=1)[("base", 0)] == pytest.approx(0.4)


def test_tail_mean_does_not_depend_on_the_order_of_rows_and_keeps_the_order_of_methods():
    shuffled = pd.concat([ROUNDS.iloc[[-1]], ROUNDS.iloc[:-1].iloc[::-1]])
    means = st.tail_mean(shuffled, "accuracy", last=1)
    assert means[("other", 2)] == pytest.approx(1.1)
    assert list(dict.fromkeys(means.index.get_level_values("method"))) == ["other", "base"]


def test_paired_interval_is_the_t_interval():
    """d = 1, 2, 3: mean 2, sd 1, t(0.975, 2) = 4.302653, margin 4.302653 / sqrt(3) = 2.484138."""
    found = paired([2, 4, 6], [1, 2, 3])
    assert (found.difference, found.low, found.high) == pytest.approx((2.0, -0.484138, 4.484138), abs=1e-6)


def test_paired_one_pair_or_none_has_no_interval():
    one, none = paired([3.0], [1.0]), paired([], [])
    assert one.difference == 2.0 and math.isnan(one.low) and math.isnan(one.high)
    assert all(map(math.isnan, (none.difference, none.low, none.high)))
    with pytest.raises(UnalikeError, match="cannot pair 2 values with 1"):
        paired([1, 2], [1])


def test_summary_equals_hand_computed_values():
    """Tail means: base 0.5, 0.6, 0.7; other 0.6, 0.8, 1.0; d = 0.1, 0.2, 0.3, so 0.2 -+ 0.2484138."""
    base, other = st.summary(ROUNDS, CLIENTS, "base").to_dict("records")
    assert (base["method"], base["protocol"], base["seeds"]) == ("base", "clients", 3)
    assert base["accuracy"] == pytest.approx(0.6) and base["accuracy_sd"] == pytest.approx(0.1)
    assert math.isnan(base["difference"]) and math.isnan(base["ci_low"])
    assert base["macro_f1"] == pytest.approx(0.3) and base["loss"] == pytest.approx(0.4)
    assert other["difference"] == pytest.approx(0.2)
    assert (other["ci_low"], other["ci_high"]) == pytest.approx((-0.0484138, 0.4484138), abs=1e-6)
    assert base["client_sd"] == pytest.approx(0.2 / math.sqrt(2))
    assert other["worst_decile"] == pytest.approx(0.5)  # the worst of two clients: 0.5, 0.4, 0.6
    assert (base["mb_down"], base["mb_up"], base["seconds"]) == pytest.approx((6.0, 2.0, 4.0))


def test_summary_one_seed_has_no_deviation_and_no_interval():
    rounds = ROUNDS[ROUNDS["seed"] == 0]
    other = st.summary(rounds, CLIENTS, "base").iloc[1]
    assert other["difference"] == pytest.approx(0.1)
    assert math.isnan(other["accuracy_sd"]) and math.isnan(other["ci_low"]) and math.isnan(other["ci_high"])


def test_summary_pairs_seeds_by_number():
    rounds = ROUNDS[~((ROUNDS["method"] == "other") & (ROUNDS["seed"] == 0))]
    other = st.summary(rounds, CLIENTS, "base").iloc[1]
    assert other["difference"] == pytest.approx(0.25) and other["seeds"] == 2
    less = ROUNDS[~((ROUNDS["method"] == "base") & (ROUNDS["seed"] > 0))]
    base, other = st.summary(less, CLIENTS, "base").to_dict("records")
    assert (base["pairs"], other["pairs"], other["seeds"]) == (0, 1, 3)


def test_summary_does_not_mix_protocols():
    rounds = ROUNDS.assign(personal_accuracy=math.nan)
    other = rounds["method"] == "other"
    rounds.loc[other, "personal_accuracy"] = rounds.loc[other, "accuracy"] + 1
    table = st.summary(rounds, CLIENTS, "base")
    assert list(zip(table["method"], table["protocol"])) == [
        ("base", "clients"),
        ("other", "clients"),
        ("other", "personal"),
    ]
    assert math.isnan(table.iloc[2]["difference"]) and table.iloc[2]["accuracy"] == pytest.approx(1.8)
    crossed = st.personal_against_shared(rounds, "base").to_dict("records")
    assert [row["method"] for row in crossed] == ["other"] and crossed[0]["difference"] == pytest.approx(1.2)


def test_summary_method_without_shared_model_has_only_a_personal_row():
    rounds = ROUNDS.assign(personal_accuracy=ROUNDS["accuracy"])
    rounds.loc[rounds["method"] == "other", "accuracy"] = math.nan
    table = st.summary(rounds, CLIENTS, "base")
    assert list(zip(table["method"], table["protocol"])) == [
        ("base", "clients"),
        ("base", "personal"),
        ("other", "personal"),
    ]
    assert table.iloc[2]["difference"] == pytest.approx(0.2)


def test_summary_regression_uses_rmse_with_highest_as_worst():
    rounds = ROUNDS.rename(columns={"accuracy": "rmse"}).drop(columns="macro_f1")
    clients = CLIENTS.rename(columns={"accuracy": "rmse"})
    table = st.summary(rounds, clients, "base")
    assert "rmse_sd" in table and "macro_f1" not in table
    assert table.iloc[1]["worst_decile"] == pytest.approx((0.7 + 1.2 + 1.4) / 3)
    effects = st.client_effects(clients, "base").set_index("method").loc["other"]
    assert effects["worst"] == pytest.approx((0.7 + 1.2 + 1.4) / 3)
    assert effects["largest_loss"] == pytest.approx(0.6)


def test_client_effects_pair_each_client_with_itself():
    """Gains of other: 0.1 0.1 | -0.1 0.5 | 0.0 0.6, so 4 of 6 are better off, 1 of 6 worse, the largest loss is 0.1."""
    effects = st.client_effects(CLIENTS.round(6), "base").set_index("method")
    other = effects.loc["other"]
    assert (other["better_off"], other["worse_off"]) == pytest.approx((4 / 6, 1 / 6))
    assert other["largest_loss"] == pytest.approx(0.1) and other["worst"] == pytest.approx(0.5)
    assert math.isnan(effects.loc["base", "better_off"])


def test_worst_decile_takes_a_tenth_and_at_least_one():
    metric, _ = st.METRICS
    assert st.worst_decile(pd.Series([0.9, 0.2, math.nan]), metric) == pytest.approx(0.2)
    assert st.worst_decile(pd.Series(range(25)), metric) == pytest.approx(0.5)
    assert math.isnan(st.worst_decile(pd.Series(dtype=float), metric))


def test_totals_count_the_rounds_between_evaluations():
    sparse = ROUNDS[ROUNDS["round"] != 1]
    pd.testing.assert_frame_equal(st.totals(sparse), st.totals(ROUNDS))
    assert st.cumulative(ROUNDS).loc[1, "mb_down"] == pytest.approx(3.0)


def test_statistics_errors_state_what_was_found():
    with pytest.raises(UnalikeError, match="baseline 'nobody' was not run"):
        st.summary(ROUNDS, CLIENTS, "nobody")
    with pytest.raises(UnalikeError, match="no headline metric"):
        st.summary(ROUNDS.drop(columns="accuracy"), CLIENTS, "base")
    with pytest.raises(UnalikeError, match="lacks the columns speed"):
        st.tail_mean(ROUNDS, "speed")
    with pytest.raises(UnalikeError, match="last=0"):
        st.tail_mean(ROUNDS, "accuracy", last=0)


def test_to_target_needs_every_seed():
    """Base reaches 0.6 in rounds 2, 2 and 1, other in 2, 1 and 1; a round costs 4 MB and 2 s. No seed of base reaches 0.9."""
    reached = st.to_target(ROUNDS.round(6), 0.6).set_index("method")
    assert reached.loc["base", ["seeds", "reached", "round", "mb", "seconds"]].tolist() == pytest.approx(
        [3, 3, 5 / 3, 20 / 3, 10 / 3]
    )
    assert reached.loc["other", "round"] == pytest.approx(4 / 3)
    far = st.to_target(ROUNDS.round(6), 0.9).set_index("method")
    assert far["reached"].tolist() == [0, 2] and far[["round", "mb", "seconds"]].isna().all(axis=None)
    fell = st.to_target(ROUNDS.round(6), 0.6, lost={"other": 1}).set_index("method")
    assert fell.loc["other", ["seeds", "reached"]].tolist() == [4, 3] and math.isnan(fell.loc["other", "mb"])
    assert fell.loc["base"].equals(reached.loc["base"])
    less = st.to_target(ROUNDS.rename(columns={"accuracy": "rmse"}), 0.45).set_index("method")
    assert less["reached"].tolist() == [1, 0]


def test_pareto_front_keeps_non_dominated_rows():
    table = pd.DataFrame({"a": [1, 2, 2, 3, math.nan], "cost": [1, 2, 3, 9, 0]})
    assert st.pareto_front(table, ["a"], ["cost"]).tolist() == [True, True, False, True, False]
    same = pd.DataFrame({"a": [1, 1], "cost": [1, 1]})
    assert st.pareto_front(same, ["a"], ["cost"]).all()


def test_summary_corrects_for_the_methods_of_one_protocol():
    third = ROUNDS[ROUNDS["method"] == "other"].assign(method="third")
    table = st.summary(pd.concat([ROUNDS, third]), CLIENTS, "base").set_index("method")
    assert math.isnan(table.loc["base", "p_holm"])
    assert table.loc["other", "p_holm"] == pytest.approx(2 * table.loc["other", "p"])
    assert table.loc["other", "wilcoxon"] == 0.25 and table.loc["other", "wilcoxon_holm"] == 0.5
    assert table.loc["other", "better"] == 1.0


def test_client_effects_ignore_rounding():
    table = pd.DataFrame(
        {"method": ["a", "a", "b", "b"], "seed": 0, "client": [0, 1] * 2, "rmse": [3.6, 1.2, 3.6000001, 1.1]}
    )
    found = st.client_effects(table, "a").set_index("method").loc["b"]
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
    assert st.summary(pd.DataFrame(rows), clients, "a")["rmse_sd"].isna().all()
    assert not recwarn.list
