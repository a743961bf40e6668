"""The sentences of the report claim no more than the numbers support."""

import dataclasses
import math

import pandas as pd
import pytest

from unalike._utils.errors import UnalikeError
from unalike.comparison.references import is_grouped
from unalike.methods.plan import complete_spec, plan
from unalike.metrics.named_metrics import KNOWN
from unalike.reporting import panels, paper_figures, wording
from unalike.reporting.charts.palette import looks
from unalike.reporting.findings import findings
from unalike.reporting.summary_columns import summary_columns, summary_tables
from unalike.statistics.inference import MOST_NEEDED
from unalike.statistics.seed_draws import SPLITS, SeedDraws

ACCURACY, RMSE = KNOWN["accuracy"], KNOWN["rmse"]


def found_in(content):
    return findings(content)


def scored(content, **levels):
    """The content of these methods without personal models, with accuracy `levels[method][seed]` in every round."""
    table = content.rounds[content.rounds["method"].isin(levels)].copy()
    table = table[[name for name in table if not name.startswith(("personal_", "used_"))]]
    table["accuracy"] = [
        levels[method][seed] for method, seed in zip(table["method"], table["seed"])
    ]
    methods = [method for method in content.methods if method.label in levels]
    clients = content.clients[content.clients["method"].isin(levels)]
    return dataclasses.replace(content, methods=methods, rounds=table, clients=clients)


def test_findings_interval_excluding_zero_claims_a_gain(content):
    found = found_in(scored(content, fedavg=[0.5, 0.6, 0.7], fedmix=[0.55, 0.66, 0.75]))
    assert found.answer == "Use fedmix: it is shown to be better than fedavg."
    facts = {fact.title: fact for fact in found.key_facts}
    assert list(facts) == [
        "Gain over fedavg",
        "Who loses",
        "Chance to be the best",
        "Cost",
        "What would settle it",
    ]
    gain = facts["Gain over fedavg"]
    assert gain.value == "+5.3 points"
    assert gain.note == (
        "with fedmix: 95\u00a0% interval +3.9 to +6.8, better in 3 of 3 seeds; accuracy 65.3\u00a0%"
    )
    assert facts["Chance to be the best"].note.startswith("that fedmix is the best of 2 choices")
    assert facts["What would settle it"].value == "It is settled"
    assert found.details[0][1].endswith(": better.")


def test_findings_interval_including_zero_claims_no_gain(content):
    found = found_in(scored(content, fedavg=[0.5, 0.6, 0.7], fedmix=[0.6, 0.6, 0.71]))
    assert found.answer == "Keep fedavg for now: no other choice is shown to be better."
    assert found.key_facts[-1].value.endswith("more seeds")
    assert found.key_facts[-1].note == "not decided: fedmix"
    assert "the interval includes 0" in found.details[0][1]


def test_findings_difference_that_rounds_to_zero_is_neither_signed_nor_behind(content):
    table = scored(content, fedavg=[0.5, 0.6, 0.7], fedmix=[0.5, 0.61, 0.6899])
    assert -0.0005 < table.decision.difference < 0 and not table.decision.is_behind
    assert found_in(table).key_facts[0].value == "0.0 points"


@pytest.mark.parametrize("value", [0.0, -0.0, 0.0004, -0.0004])
def test_difference_of_shares_that_rounds_to_zero_has_no_sign(value):
    assert (
        ACCURACY.difference(value) == "0.0 points"
        and ACCURACY.interval(value, 0.01) == "0.0 to +1.0"
    )
    assert RMSE.change(0.0) == RMSE.change(-0.0) == "0" and RMSE.change(-1e-9) == "−1.00e−09"


def test_findings_undecided_candidate_that_is_behind_has_no_chance_to_be_the_best(content):
    found = found_in(scored(content, fedavg=[0.5, 0.6, 0.7], fedmix=[0.4, 0.6, 0.65]))
    assert found.answer == "Keep fedavg for now: no other choice is shown to be better."
    assert found.key_facts[0].value == "\u22125.0 points"
    assert "Chance to be the best" not in [fact.title for fact in found.key_facts]


def test_findings_methods_tested_on_other_clients_are_named(content):
    """Malicious clients have no test samples, so a method under attack has another score than the same method without one."""
    assert not any("Not tested" in text for text in found_in(content).cautions)
    clients = content.clients.copy()
    clients.loc[
        (clients["method"] == "fedmix") & (clients["client"] == clients["client"][0]), "n_test"
    ] = 0
    cautions = found_in(dataclasses.replace(content, clients=clients)).cautions
    assert any(
        text.startswith("Not tested on the same clients as fedavg: fedmix.") for text in cautions
    )


def test_findings_one_client_and_one_method_are_no_several(content):
    clients = content.clients[content.clients["client"] == content.clients["client"][0]]
    found = found_in(
        dataclasses.replace(content, clients=clients, sampling=SeedDraws(SPLITS, 0.25))
    )
    assert found.about.startswith("The intervals hold for other samples of this client and")
    rounds = content.rounds[(content.rounds["method"] == "fedavg") & (content.rounds["round"] <= 9)]
    methods = [method for method in content.methods if method.label == "fedavg"]
    clients = content.clients[content.clients["method"] == "fedavg"]
    [text] = [
        text
        for text in found_in(
            dataclasses.replace(content, methods=methods, rounds=rounds, clients=clients)
        ).cautions
        if text.startswith("Curves still rise")
    ]
    assert text.endswith("9 rounds are too few to judge this method.")


def test_decision_far_candidate_does_not_raise_the_seeds_needed(simulate):
    """Whether a method far behind the best one differs from the baseline does not matter for the decision."""
    content = simulate(methods=3, seeds=2)
    first, second = (label for label in content.labels if label != content.baseline)
    decision = scored(
        content, **{content.baseline: [0.50, 0.60], first: [0.70, 0.73], second: [0.51, 0.60]}
    ).decision
    assert decision.best == first and set(decision.open) == {first, second}
    assert decision.settles is not None and decision.settles <= 3


def test_decision_of_few_seeds_does_not_rule_out_more_of_them(content):
    """Where seeds share test samples, the interval keeps a part of its width with any number of seeds."""
    decision = scored(content, fedavg=[0.5, 0.6, 0.7], fedmix=[0.6, 0.6, 0.71]).decision
    values = []
    for seeds in (2, 3, 4):
        limited = dataclasses.replace(
            decision, settles=MOST_NEEDED, samples_limit=True, seeds=seeds
        )
        values.append(limited.key_facts[-1].value)
    assert values == ["Not known yet", "Not known yet", "More samples"]


def test_findings_constant_prediction_is_scored_on_the_test_samples(content):
    counts = pd.DataFrame([[5, 45]], columns=["nein", "ja"])
    confusions = [{"method": "fedavg", "classes": ["nein", "ja"], "counts": [[3, 5], [1, 1]]}]
    found = found_in(dataclasses.replace(content, label_counts=counts, confusions=confusions))
    assert any(
        text
        == "Always predicting 'ja', the class of most training samples under seed 0, has an accuracy of about 20.0\u00a0%."
        for text in found.limits
    )
    unknown = found_in(
        dataclasses.replace(content, label_counts=counts, confusions=[])
    )  # as in the folder of a run
    assert (
        "The most frequent class, 'ja', has 90.0\u00a0% of the training samples under seed 0."
        in unknown.limits
    )


def test_findings_worse_method_is_named(content):
    found = found_in(scored(content, fedavg=[0.5, 0.6, 0.7], fedmix=[0.45, 0.54, 0.65]))
    assert found.answer == "Keep fedavg: no other choice is better."
    assert "worse: fedmix" in found.standing


def test_findings_one_seed_shows_no_difference(simulate):
    found = found_in(simulate(methods=3, seeds=1))
    assert found.answer.startswith("One seed cannot show a difference")
    assert all("shows no difference" in sentence for _, sentence in found.details)


def test_findings_baseline_with_one_seed_is_stated(content):
    table = scored(content, fedavg=[0.5, 0.6, 0.7], fedmix=[0.55, 0.66, 0.75])
    lost = (table.rounds["method"] == "fedavg") & (table.rounds["seed"] > 0)
    found = found_in(dataclasses.replace(table, rounds=table.rounds[~lost]))
    assert (
        found.answer.startswith("No method shares more than one seed with fedavg")
        and "Run three" not in found.answer
    )
    assert "under the one seed that both ran" in found.details[0][1]


def test_findings_diverged_method_is_stated(simulate):
    content = simulate(methods=3, regression=True)
    names = content.labels
    content.rounds.loc[content.rounds["method"] == names[1], "rmse"] = math.inf
    found = found_in(content)
    assert found.details[0] == (names[1], "inf; it diverged, so there is no difference to test.")
    assert "95\u00a0% interval" in found.details[1][1]
    turned = found_in(dataclasses.replace(content, baseline=names[1]))
    assert turned.answer == f"No difference to {names[1]} can be tested, for the reasons below."
    assert all(
        s.endswith(f"; {names[1]} diverged, so there is no difference to test.")
        for _, s in turned.details
    )


def test_findings_equal_gain_under_every_seed_is_not_tested(content):
    found = found_in(
        scored(content, fedavg=[0.5, 0.6, 0.7], fedmix=[0.6, 0.7, 0.8], ditto=[0.5, 0.6, 0.7])
    )
    sentences = dict(found.details)
    assert (
        sentences["fedmix"]
        == "70.0\u00a0%, +10.0 points compared with fedavg under every seed: without a spread, no test is possible."
    )
    repeated = "60.0\u00a0%, 0.0 points compared with fedavg; not to choose from: the same scores as fedavg in every round."
    assert sentences["ditto"] == repeated
    assert "did better" not in found.answer


def test_findings_one_method_compares_nothing(simulate):
    assert found_in(simulate(methods=1)).answer == "Nothing to compare: fedavg is the only method."


def test_findings_baseline_without_shared_model_is_compared_by_its_personal_models(content):
    found = found_in(dataclasses.replace(content, baseline="local_only"))
    assert found.key_facts[0].title == "Gain over local_only"
    assert all("compared with local_only" in sentence for _, sentence in found.details)


def test_findings_personal_models_are_judged_with_the_shared_ones(content):
    found = found_in(content)
    assert content.deciding_protocol == "used" and content.decision.protocol == "used"
    assert found.models.startswith(
        "Methods are judged by the models that clients use: the personal models of ditto and local_only"
    )
    shared = content.shared_decision
    assert (
        found.shared
        == f"If one shared model must serve all clients, also new ones: {shared.answer}"
    )
    assert found.shared_facts == shared.key_facts
    assert (
        content.shared_decision.protocol == "clients"
        and "ditto" in content.shared_decision.verdicts
    )


def test_method_with_a_model_for_each_group_is_no_answer_to_one_shared_model(content):
    best = content.shared_decision.best
    methods = [dataclasses.replace(m, grouped=m.label == best) for m in content.methods]
    grouped = dataclasses.replace(content, methods=methods)
    assert best in grouped.decision.verdicts and best not in grouped.shared_decision.verdicts
    used, shared = summary_tables(grouped)
    assert [row[1].text for row in used.rows if row[0].text == best] == ["group"]
    assert (
        best not in [row[0].text for row in shared.rows]
        and f"the groups' models of {best}" in found_in(grouped).models
    )
    drawn = [
        panel(grouped, looks(grouped.labels))
        for panel in (panels.curves, panels.distributions, panels.differences)
    ]
    views = [view for panel in drawn if panel is not None for view in panel.views]
    of_shared = [view.alt for view in views if "shared model" in view.label.lower()]
    assert len(of_shared) == 4 and not any(best in alt for alt in of_shared)
    assert all(
        best in view.alt for view in views if "models that clients use" in view.label.lower()
    )
    figures = dict(paper_figures.figures(grouped))
    assert best in figures["curves-used"].labelled and best not in figures["curves"].labelled
    assert is_grouped(complete_spec(plan("ifca(clusters=2)"))) and not is_grouped(
        "my_own_method(lr=1.0)"
    )


@pytest.mark.parametrize(
    "value, text",
    [
        (82, "82.0"),
        (99.96, "100"),
        (1234.5, "1,234"),
        (0.5, "0.500"),
        (0.0123, "0.0123"),
        (12345678, "12,345,678"),
        (0, "0"),
        (1.5e-7, "1.50e−07"),
    ],
)
def test_score_rmse_keeps_significant_zeros(value, text):
    assert RMSE.text(value) == RMSE.amount(value) == text
    assert RMSE.difference(value) == ("+" if value else "") + text and RMSE.text(math.nan) == "–"


@pytest.mark.parametrize(
    "value, text", [(0.0488, "0.0488"), (0, "0"), (1.26, "1.3"), (12.34, "12.3"), (1234.5, "1,234")]
)
def test_megabytes_small_values_keep_digits(value, text):
    assert wording.megabytes(value) == text


def test_losses_of_large_targets_have_no_decimals():
    column = summary_columns(RMSE, "fedavg")["loss"]
    assert [column.cell({"loss": loss}).text for loss in (0.4071, 1729211660.413)] == [
        "0.407",
        "1,729,211,660",
    ]


def test_findings_few_seeds_are_stated_with_numbers(content):
    limits = " ".join(found_in(content).limits)
    assert "With 3 seeds" in limits and "p = 0.25" in limits and "from 6 seeds on" in limits


def test_fixed_looks_keep_the_look_of_a_shared_method_and_give_others_free_colors():
    places = {"FedAvg": 0, "SCAFFOLD": 4}
    first, second = looks(["FedAvg", "a", "b"], places), looks(["a", "SCAFFOLD", "FedAvg"], places)
    assert first["FedAvg"] == second["FedAvg"] == looks(["FedAvg"])["FedAvg"]
    assert (
        len({look.color for look in first.values()})
        == len({look.color for look in second.values()})
        == 3
    )
    many = looks([f"method {i}" for i in range(30)] + ["FedAvg"], places)
    assert len({(look.color, look.dash) for look in many.values()}) == 31


def test_looks_depend_on_position_and_do_not_repeat():
    names = [f"m{i}" for i in range(20)]
    styles = looks(names)
    assert len({(look.color, look.dash) for look in styles.values()}) == 20
    assert styles == looks(names)


def test_wording_missing_number_is_a_dash():
    assert (
        ACCURACY.text(math.nan)
        == RMSE.interval(math.nan, math.nan)
        == wording.size(math.nan)
        == "–"
    )
    assert ACCURACY.difference(-0.0312) == "−3.1 points"
    assert (wording.size(2.5e6), wording.duration(90), wording.duration(7300)) == (
        "2.5 MB",
        "90.0 s",
        "2.0 h",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"baseline": "nobody"}, "'nobody' is not among the methods"),
        ({"methods": []}, "no method"),
        ({"rounds": pd.DataFrame({"method": []})}, "lacks the columns seed"),
    ],
)
def test_content_inconsistent_tables_are_refused(content, change, message):
    with pytest.raises(UnalikeError, match=message):
        dataclasses.replace(content, **change)


def test_content_duplicate_or_unknown_rows_are_refused(content):
    with pytest.raises(UnalikeError, match="twice; expected one row"):
        dataclasses.replace(content, clients=pd.concat([content.clients, content.clients.tail(1)]))
    with pytest.raises(UnalikeError, match="has no rows of 'local_only'"):
        dataclasses.replace(
            content, rounds=content.rounds[content.rounds["method"] != "local_only"]
        )
    with pytest.raises(UnalikeError, match="has the method 'local_only'"):
        dataclasses.replace(content, methods=content.methods[:-1])
    with pytest.raises(UnalikeError, match="clients table has no accuracy, by which"):
        dataclasses.replace(content, clients=content.clients.rename(columns={"accuracy": "rmse"}))


def test_findings_means_over_different_seeds_are_stated(content):
    """A diverged run is left out, so the mean of the other seeds would flatter its method."""
    cut = content.rounds[(content.rounds["method"] != "scaffold") | (content.rounds["seed"] != 1)]
    found = found_in(dataclasses.replace(content, rounds=cut))
    assert "scaffold has 2 of 3 seeds: each mean is over the method's own seeds" in found.limits[-1]
    assert not any("own seeds" in text for text in found_in(content).limits)


@pytest.mark.parametrize("target", [80, -0.1, math.nan])
def test_content_impossible_target_is_refused(content, target):
    with pytest.raises(UnalikeError, match="is not a possible accuracy; expected a share"):
        dataclasses.replace(content, target=target)


def test_percent_texts_have_no_space_at_which_a_line_could_end():
    texts = [KNOWN["accuracy"].text(0.653), wording.share(0.5), wording.confidence(0.05)]
    texts += map(wording.chance, (0.5, 0.999, 0.001))
    assert texts == [t.replace(" ", "\u00a0") for t in texts] and all(
        t.endswith("\u00a0%") for t in texts
    )
