"""Optuna: the values of the next trial, and whether a running trial is pruned.

Each trial gets a new Optuna study with the earlier trials in it, so that the files of the trials are the only state. The random
numbers of a trial depend on the seed and on its number alone; therefore all methods try the same learning rates at first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unalike._utils import seeds
from unalike._utils.errors import require_extra
from unalike.methods.search_space import LinearRange, LogRange, OneOf, SearchSpace
from unalike.tuning.trial import FINISHED, PRUNED, Trial
from unalike.tuning.tunable import Values

if TYPE_CHECKING:
    import optuna

Spaces = Mapping[str, SearchSpace]

RANDOM_TRIALS = 8
"""The first trials draw values at random, before the sampler learns from them."""
MIN_FINISHED_TRIALS = 3
"""No trial is pruned before so many have finished."""
WARM_UP_SHARE = 0.2
"""The share of the rounds in which no trial is pruned."""


def require_optuna() -> None:
    """Raise `UnalikeError` if Optuna is not installed."""
    require_extra("tune", "optuna", what="tuning")


def next_values(
    spaces: Spaces, ended: Sequence[Trial], number: int, sign: int, seed: int
) -> Values:
    """The values of trial `number`.

    `spaces`: hyperparameter -> search space. `ended` are the trials of the same method that have ended. `sign` is +1 if a higher
    score is better, -1 if a lower one is.
    """
    study = _study(spaces, ended, sign, seed, number)
    distributions = {name: _distribution(space) for name, space in spaces.items()}
    return dict(study.ask(distributions).params)


class Pruner:
    """Ends a trial whose best score so far is below the median of the finished trials at that round."""

    def __init__(self, ended: Sequence[Trial], sign: int, rounds: int):
        import optuna

        self.sign = sign
        warm_up = max(1, round(WARM_UP_SHARE * rounds))
        rule = optuna.pruners.MedianPruner(MIN_FINISHED_TRIALS, warm_up)
        self.trial = _study({}, ended, sign, 0, 0, pruner=rule).ask()

    def hopeless(self, round: int, score: float) -> bool:
        """Whether the trial with this score after this round is to be stopped."""
        self.trial.report(self.sign * score, round)
        return bool(self.trial.should_prune())


def _study(
    spaces: Spaces, ended: Sequence[Trial], sign: int, seed: int, number: int, pruner: Any = None
) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    start = seeds.number(seed, "trial", number) % 2**32
    sampler = optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, seed=start)
    study = optuna.create_study(
        direction="maximize", sampler=sampler, pruner=pruner or optuna.pruners.NopPruner()
    )
    study.add_trials([_frozen_trial(trial, spaces, sign) for trial in ended])
    return study


def _frozen_trial(trial: Trial, spaces: Spaces, sign: int) -> optuna.trial.FrozenTrial:
    """A trial in Optuna's form, without values outside of their search space.

    A diverged trial becomes one that was pruned before any score, which Optuna ranks last.
    """
    import optuna

    inside = {
        name: value
        for name, value in trial.values.items()
        if name in spaces and value in spaces[name]
    }
    # Optuna maximizes, so that lower-is-better scores change their sign.
    state = optuna.trial.TrialState.PRUNED
    value = None
    if trial.end == FINISHED and trial.score is not None:
        state = optuna.trial.TrialState.COMPLETE
        value = sign * trial.score
    intermediate = {}
    if trial.end in (FINISHED, PRUNED):
        intermediate = {number: sign * score for number, score in trial.scores}
    return optuna.trial.create_trial(
        state=state,
        value=value,
        params=inside,
        distributions={name: _distribution(spaces[name]) for name in inside},
        intermediate_values=intermediate,
    )


def _distribution(space: SearchSpace) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if isinstance(space, OneOf):
        return CategoricalDistribution(space.values)
    assert isinstance(space, LinearRange)
    return FloatDistribution(space.low, space.high, log=isinstance(space, LogRange))
