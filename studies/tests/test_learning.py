"""Runs at chance give no verdict."""

from dataclasses import replace

from unalike_studies.claim_verdicts import Above, Below
from unalike_studies.claims import FLUCTUATION, Claim, gain, oscillation
from unalike_studies.published import Printed
from unalike_studies.results import CellResult, Results

BETTER = Claim("A is better than B", gain("A", "B", "here", last=1), Above())


def cell(method, seed, accuracy):
    """A run on two classes of which the larger one has 60 % of the samples: it has learned from 64 % on."""
    return CellResult(
        method=method,
        setting="here",
        seed=seed,
        digest="",
        spec="",
        options={"data": "d"},
        seconds=1.0,
        ended="",
        rounds={"round": [1], "accuracy": [accuracy]},
        label_counts=[[4, 2], [2, 2]],
    )


def results(a, b):
    """Results of the methods A and B, one accuracy for each seed."""
    return Results(
        tuple(cell("A", seed, value) for seed, value in enumerate(a))
        + tuple(cell("B", seed, value) for seed, value in enumerate(b))
    )


def test_seed_under_which_one_of_the_methods_dies_does_not_count():
    found = BETTER.finding(results([0.9, 0.91, 0.92, 0.6], [0.8, 0.8, 0.8, 0.8]))
    assert (found.seeds, found.verdict) == (3, "reproduced")
    assert found.not_learned == ("A (seed 3)",)


def test_too_few_seeds_that_learned_give_no_verdict_and_show_the_numbers():
    found = BETTER.finding(results([0.9, 0.91, 0.63], [0.8, 0.8, 0.8]))
    assert (found.verdict, found.seeds) == ("not learned", 3)
    assert abs(found.mean - 100 * (0.1 + 0.11 - 0.17) / 3) < 1e-9


def test_both_at_chance_is_no_difference_of_zero():
    found = BETTER.finding(results([0.6, 0.6, 0.6], [0.6, 0.6, 0.6]))
    assert found.verdict == "not learned"


def test_level_of_a_run_is_that_of_the_rounds_that_its_score_is_the_mean_of():
    """Over both rounds A has 0.6, which is chance; the score is that of the last one."""
    late = replace(cell("A", 3, 0), rounds={"round": [1, 2], "accuracy": [0.3, 0.9]})
    of_three = results([0.9, 0.91, 0.92], [0.8, 0.8, 0.8, 0.8])
    found = BETTER.finding(Results((*of_three.cells, late)))
    assert (found.seeds, found.not_learned) == (4, ())


def test_method_that_dies_under_every_seed_is_a_result():
    found = BETTER.finding(results([0.6, 0.6, 0.61], [0.8, 0.8, 0.82]))
    assert (found.verdict, found.not_learned) == ("against", ())


def test_method_that_stays_near_chance_is_a_result_also_where_a_seed_is_just_above():
    found = BETTER.finding(results([0.61, 0.61, 0.645], [0.8, 0.8, 0.82]))
    assert (found.verdict, found.not_learned) == ("against", ())


def test_curve_of_a_run_at_chance_says_nothing():
    calmer = Claim("A is calmer", oscillation("A", "here"), Below())
    rounds = {"round": [1, 2, 3, 4, 5], "accuracy": [0.6, 0.6, 0.61, 0.6, 0.61]}
    flat = Results(
        tuple(replace(c, rounds=rounds) for c in results([0] * 3, [0] * 3).cells if c.seed < 3)
    )
    assert calmer.finding(flat).verdict == "not learned"


def test_claim_about_attacks_counts_runs_at_chance():
    attacked = replace(BETTER, needs_learning=False)
    found = attacked.finding(results([0.9, 0.91, 0.92], [0.6, 0.65, 0.6]))
    assert (found.seeds, found.verdict) == (3, "reproduced")


def test_accuracies_below_half_of_the_printed_ones_give_no_verdict():
    printed = Printed(10.0, "99 - 89, table 1", level=89.0)
    low = results([0.7, 0.71, 0.72], [0.65, 0.65, 0.65])
    many_classes = Results(tuple(replace(c, label_counts=[[1] * 100]) for c in low.cells))
    assert replace(BETTER, published=printed).finding(many_classes).verdict == "reproduced"
    halved = Results(
        tuple(
            replace(c, rounds={"round": [1], "accuracy": [c.rounds["accuracy"][0] / 2]})
            for c in many_classes.cells
        )
    )
    assert replace(BETTER, published=printed).finding(halved).verdict == "not learned"


def test_one_method_far_below_its_printed_accuracy_gives_no_verdict():
    """B has 36 % where 89 % are printed, so that A's lead is that of two experiments; without a number it is a result."""
    printed = Printed(10.0, "99 - 89, table 1", level=89.0)
    apart = results([0.9, 0.91, 0.92], [0.36, 0.36, 0.37])
    many_classes = Results(tuple(replace(c, label_counts=[[1] * 100]) for c in apart.cells))
    assert replace(BETTER, published=printed).finding(many_classes).verdict == "not learned"
    assert BETTER.finding(many_classes).verdict == "reproduced"


def test_point_of_fluctuation_is_not_negligible_as_one_of_accuracy_is():
    close = results([0.801, 0.8, 0.799], [0.8, 0.8, 0.8])
    assert BETTER.finding(close).verdict == "none within d"
    assert replace(BETTER, unit=FLUCTUATION).finding(close).verdict == "undecided"
