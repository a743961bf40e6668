"""The decision of a comparison: the best candidate against the baseline and against the rest, and what would settle it.

`Decision.answer` and `Decision.key_facts` are what every report begins with: page, terminal, notebook and exports render these two.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pandas as pd

from unalike._utils.notebook import paragraph
from unalike.metrics.columns import SIMULATED_SECONDS, Columns
from unalike.metrics.named_metrics import Metric
from unalike.reporting import wording
from unalike.statistics.inference import MOST_NEEDED, difference_table, family_tests, seeds_needed
from unalike.statistics.seed_draws import Draws, draws_of, sampling_variances
from unalike.statistics.summary import scores_by_seed
from unalike.statistics.verdicts import (
    BETTER,
    CANDIDATE,
    EQUAL,
    UNDECIDED,
    WORSE,
    Rules,
    repeats,
    verdicts,
)

FEW_SEEDS = 3
"""With so few seeds, nobody knows yet that no number of seeds settles a decision."""
MAX_CHEAPER_SHARE = 0.95
"""A method with so much of the best one's bytes, or more, is not called cheaper."""
MAX_NAMED_LOSERS = 3
"""Most clients that a decision names."""
COST_WORDS = {"bytes": "traffic", "seconds": "time", SIMULATED_SECONDS: "simulated time"}
"""Name of a cost -> its word in a key fact."""


@dataclass(frozen=True)
class KeyFact:
    """A fact that carries a decision: `title` names it, `value` is read at a glance, `note` says what belongs to it."""

    title: str
    value: str
    note: str

    def __str__(self) -> str:
        return f"{self.title}: {self.value} ({self.note})."


@dataclass(frozen=True)
class Decision:
    """The decision that a comparison supports under one protocol; `str(decision)` is the answer and its key facts, one a line.

    Differences are in the unit of the metric: 0.01 is one point of accuracy.

    Attributes:
        baseline: the method that the candidates are compared with.
        best: the candidate with the best mean difference to the baseline; empty if there is no candidate.
        choice: the method to use: `best` if it is shown to be better, the baseline if no candidate is, empty while undecided.
        score: mean score of `best` over its seeds.
        difference: mean difference of `best` to the baseline over paired seeds.
        interval: its interval, with confidence 1 - `level`, as the summary has it: corrected for the number of candidates, as p is.
        shrunken: the posterior mean of the difference, which the choice of the best does not bias (`posterior_means`).
        level: 5 %, or the level of each look if seeds were added until the decision stood.
        smallest_effect: differences below it do not matter.
        seeds: paired seeds of `best`.
        seeds_won: the number of them in which `best` is better than the baseline.
        probability_best: the probability that `best` has the best mean of all candidates and the baseline; NaN if unknown.
        cost: cost of a run of `best` divided by that of the baseline: `bytes`, `seconds`, and where devices are simulated
            `simulated_seconds`; NaN if the baseline has none.
        verdicts: candidate -> `better`, `worse`, `practically equal` or `undecided`, against the baseline.
        rivals: other candidate -> the same words, against `best`.
        cheaper: methods that are practically equal to `best` and send fewer bytes -> their bytes divided by its bytes.
        open: methods whose comparison has to be decided before the decision stands.
        settles: about how many more seeds would settle it; 0 if it stands, None if that cannot be told.
        contenders: methods for which more seeds could change the decision, the baseline included.
        reason: why there is nothing to decide; empty if there is.
        metric: the metric that decides.
        protocol: the protocol whose scores decide; with `used`, a method is judged by personal models where it trains them.
        losers: client -> its mean difference with `best`, and the interval, of clients that lose; the largest loss first. None
            where seeds have other clients.
        worse_off: the share of all pairs (seed, client) that are worse off with `best` than with the baseline; NaN if unknown.
        few_clients: how many clients have too few test samples to be judged: they are counted, not named.
        has_judged_clients: whether any client has test samples enough.
        client_noun: what the user's data calls a client, such as `hospital`.
        epsilon: epsilon of a run of `best`, if that is private; else NaN.
        samples_limit: whether a part of the interval's width remains with any number of seeds, because these share samples.
    """

    baseline: str
    metric: Metric
    best: str = ""
    choice: str = ""
    score: float = math.nan
    difference: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)
    shrunken: float = math.nan
    level: float = math.nan
    smallest_effect: float = math.nan
    seeds: int = 0
    seeds_won: int = 0
    probability_best: float = math.nan
    cost: Mapping[str, float] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)
    rivals: Mapping[str, str] = field(default_factory=dict)
    cheaper: Mapping[str, float] = field(default_factory=dict)
    open: tuple[str, ...] = ()
    settles: int | None = None
    contenders: tuple[str, ...] = ()
    reason: str = ""
    protocol: str = "clients"
    epsilon: float = math.nan
    samples_limit: bool = False
    losers: Mapping[str, tuple[float, float, float]] | None = None
    worse_off: float = math.nan
    few_clients: int = 0
    has_judged_clients: bool = True
    client_noun: str = "client"

    @property
    def leader(self) -> str:
        """The best candidate; the baseline if there is no candidate."""
        return self.best or self.baseline

    @property
    def in_use(self) -> str:
        """The method that the answer says to use: the choice, or the baseline that is kept meanwhile."""
        return self.choice or self.baseline

    @property
    def stands(self) -> bool:
        """Whether more seeds are not expected to change the decision."""
        return bool(self.best) and not self.open

    @property
    def is_behind(self) -> bool:
        """Whether the mean of the best candidate is worse than that of the baseline, by a difference that does not round to 0."""
        return self.metric.sign * self.metric.rounded(self.difference) < 0

    def __repr__(self) -> str:
        return f"<Decision: {self}>"

    def _repr_html_(self) -> str:
        return paragraph(self)

    def __str__(self) -> str:
        return "\n".join([self.answer, *map(str, self.key_facts)])

    @property
    def answer(self) -> str:
        """The method to use, in one short sentence; where there is nothing to decide, the reason."""
        if self.reason:
            return self.reason
        if self.choice == self.best:
            use = "Use"
            if not math.isnan(self.epsilon):
                use = f"At epsilon {wording.significant(self.epsilon, digits=2)}, use"
            return f"{use} {self.best}: it is shown to be better than {self.baseline}."
        if not self.choice:
            return f"Keep {self.baseline} for now: no other choice is shown to be better."
        if self.verdicts[self.best] == EQUAL:
            effect = wording.size_of_effect(self.smallest_effect, self.metric)
            return f"Keep {self.baseline}: no other choice is better by {effect} or more."
        return f"Keep {self.baseline}: no other choice is better."

    @property
    def key_facts(self) -> list[KeyFact]:
        """The facts that carry the answer, in the order in which all reports show them; none where there is nothing to decide."""
        if self.reason:
            return []
        facts = [
            self._gain(),
            self._losses(),
            self._chance(),
            self._cost(),
            self._outlook(),
        ]
        return [fact for fact in facts if fact is not None]

    def _gain(self) -> KeyFact:
        """The gain of the best candidate, with its interval."""
        metric = self.metric
        low, high = self.interval
        between = wording.interval(low, high, self.level, metric)
        won = f"better in {self.seeds_won} of {self.seeds} seeds"
        score = f"{metric.word} {metric.text(self.score)}"
        return KeyFact(
            title=wording.gain_over(self.baseline, metric),
            value=metric.difference(self.difference),
            note=f"with {self.best}: {between}, {won}; {score}",
        )

    @property
    def is_chosen_gain(self) -> bool:
        """Whether the gain stands out because it is the largest of several, so that it is too large on average."""
        return len(self.verdicts) > 1 and not self._is_no_gain

    @property
    def _is_no_gain(self) -> bool:
        """Whether even the best candidate is shown to be no better than the baseline."""
        return self.verdicts[self.best] in (EQUAL, WORSE)

    def _losses(self) -> KeyFact | None:
        """The clients that lose with the best candidate; None where it is not recommended, or clients have no scores."""
        title = "Who loses"
        if self._is_no_gain:
            return None
        if self.losers is None:
            if math.isnan(self.worse_off):
                return None
            return KeyFact(
                title,
                value=f"{wording.share(self.worse_off)} of {wording.several(self.client_noun)}",
                note=f"worse off with {self.best} than with {self.baseline}, in all seeds together",
            )
        not_judged = ""
        if self.few_clients:
            not_judged = wording.not_judged(self.few_clients, self.client_noun)
        few = f"; {not_judged}" if not_judged else ""
        if not self.has_judged_clients:
            return KeyFact(title, value="Not known", note=not_judged)
        if not self.losers:
            effect = wording.size_of_effect(self.smallest_effect, self.metric)
            return KeyFact(
                title,
                value=f"No {self.client_noun}",
                note=f"by {effect} or more, on average with {self.best}{few}",
            )
        losses = []
        for name, (difference, low, high) in list(self.losers.items())[:MAX_NAMED_LOSERS]:
            between = ""
            if not math.isnan(low):
                doubt = ", may be chance" if low <= 0 <= high else ""
                between = f" ({self.metric.interval(low, high)}{doubt})"
            losses.append(f"{name} {self.metric.difference(difference)}{between}")
        more = len(self.losers) - MAX_NAMED_LOSERS
        if more > 0:
            losses.append(f"{more} more")
        return KeyFact(
            title,
            value=wording.plural(len(self.losers), self.client_noun),
            note=f"{wording.listing(losses)}, on average with {self.best}{few}",
        )

    def _chance(self) -> KeyFact | None:
        """The probability that the best candidate is the best; None where that is no question."""
        if math.isnan(self.probability_best) or self.is_behind or self._is_no_gain:
            return None
        choices = wording.plural(len(self.verdicts) + 1, "choice")
        note = f"that {self.best} is the best of {choices}"
        if self.rivals and all(verdict == WORSE for verdict in self.rivals.values()):
            note += f"; it is shown to be better than {wording.few([*self.rivals], 'other')}"
        return KeyFact("Chance to be the best", wording.chance(self.probability_best), note)

    def _cost(self) -> KeyFact | None:
        """The cost of the best candidate, and the methods that are as good and cheaper; None where the baseline is kept."""
        ratios = [
            f"{_ratio(ratio)} {COST_WORDS[name]}"
            for name, ratio in self.cost.items()
            if math.isfinite(ratio)
        ]
        if self.choice == self.baseline or not ratios:
            return None
        first, *others = ratios
        note = ", ".join([*others, f"compared with {self.baseline}"])
        cheaper = [f"{name} ({_ratio(ratio)} traffic)" for name, ratio in self.cheaper.items()]
        if cheaper:
            note += f"; as good and cheaper: {wording.listing(cheaper)}"
        return KeyFact("Cost", wording.capital(first), note)

    def _outlook(self) -> KeyFact:
        """The open question, and what would settle it."""
        title = "What would settle it"
        if self.settles == 0:
            return KeyFact(title, "It is settled", "more seeds are not expected to change it")
        if self.choice == self.best:
            rivals = [name for name in self.open if name != self.best]
            is_or_are = "is" if len(rivals) == 1 else "are"
            undecided = f"not decided: whether {wording.few(rivals)} {is_or_are} better"
        else:
            undecided = f"not decided: {wording.few(list(self.open))}"

        # where seeds share samples, no number of seeds may be enough
        is_limited = self.settles == MOST_NEEDED and self.samples_limit
        if self.settles is None or (is_limited and self.seeds <= FEW_SEEDS):
            return KeyFact(title, "Not known yet", undecided)
        if is_limited:
            return KeyFact(title, "More samples", f"more seeds would not; {undecided}")
        if self.settles < MOST_NEEDED / 5:
            return KeyFact(title, f"About {wording.plural(self.settles, 'more seed')}", undecided)
        return KeyFact(title, "Hundreds of seeds", f"about {self.settles} more; {undecided}")


def _ratio(ratio: float) -> str:
    """A share of a cost: `no`, `the same`, `2 times the`."""
    if ratio == 0:
        return "no"
    if abs(ratio - 1) < 0.05:
        return "the same"
    return f"{wording.significant(ratio, digits=2)} times the"


def decide(
    rounds: pd.DataFrame,
    table: pd.DataFrame,
    columns: Columns,
    rules: Rules,
    protocol: str,
    resampled: pd.DataFrame | None = None,
) -> Decision:
    """Derive the decision under a protocol from the histories and their `summary`; `resampled` is as for `summary`."""
    metric = columns.metric
    scored = table[table["protocol"] == protocol].set_index("method")
    candidates = scored[scored["role"] == CANDIDATE]
    compared = candidates[candidates["difference"].map(math.isfinite)]
    reason = _nothing_to_decide(
        scored,
        candidates,
        compared,
        baseline=rules.baseline,
        models="shared model" if protocol == columns.unprefixed_protocol else "model",
        methods=rounds["method"].nunique(),
    )
    if reason and compared.empty:
        return Decision(rules.baseline, metric, reason=reason, protocol=protocol)

    # the best candidate, against the baseline and against the other candidates
    best = str((metric.sign * compared["difference"]).idxmax())
    row = scored.loc[best].to_dict()
    base = scored.loc[rules.baseline].to_dict()
    smallest = rules.effect(metric, float(base[metric.name]))
    against_baseline = {str(name): str(word) for name, word in compared["verdict"].items()}
    column = columns.get(protocol)
    assert column is not None
    by_seed = scores_by_seed(rounds, column)
    draws = draws_of(resampled, column)
    rivals, rival_tests = _rivals(
        by_seed, draws, best, list(against_baseline), rules, metric, smallest
    )
    still_open = _open(best, against_baseline, rivals)

    # how many more seeds would settle what is open
    family = max(1, int(candidates["p"].notna().sum()))
    level_of_family = rules.level / family
    baseline_tests = _tests(
        by_seed,
        draws,
        [rules.baseline, *against_baseline],
        rules=rules,
        metric=metric,
        level=level_of_family,
    )
    seeds_against_baseline = partial(
        _more_seeds,
        baseline_tests,
        smallest=smallest,
        level=level_of_family,
        overlap=rules.overlap,
    )
    seeds_against_best = partial(
        _more_seeds, rival_tests, smallest=smallest, level=rules.level, overlap=rules.overlap
    )
    if against_baseline[best] == BETTER:
        more_seeds = seeds_against_best(still_open)
    elif against_baseline[best] == UNDECIDED and abs(row["difference"]) >= smallest:
        # more seeds will most likely show it to be better, and then its rivals are open
        open_then = _open(best, against_baseline | {best: BETTER}, rivals)
        more_seeds = seeds_against_baseline([best]) + seeds_against_best(open_then)
    else:
        more_seeds = seeds_against_baseline(still_open)
    settles: int | None = 0
    if still_open:
        settles = max(more_seeds) if more_seeds else None

    choice = "" if still_open else rules.baseline
    if against_baseline[best] == BETTER:
        choice = best
    traffic = row["mb_down"] + row["mb_up"]
    traffic_of_baseline = base["mb_down"] + base["mb_up"]
    cost = {
        "bytes": _divided(traffic, traffic_of_baseline),
        "seconds": _divided(row["seconds"], base["seconds"]),
    }
    if SIMULATED_SECONDS in scored:
        cost[SIMULATED_SECONDS] = _divided(row[SIMULATED_SECONDS], base[SIMULATED_SECONDS])
    return Decision(
        baseline=rules.baseline,
        metric=metric,
        best=best,
        choice=choice,
        score=float(row[metric.name]),
        difference=float(row["difference"]),
        interval=(float(row["ci_low"]), float(row["ci_high"])),
        shrunken=float(row["shrunken"]),
        level=rules.level,
        smallest_effect=smallest,
        seeds=int(row["pairs"]),
        seeds_won=int(row["won"]),
        probability_best=float(row["probability_best"]),
        cost=cost,
        verdicts=against_baseline,
        rivals=rivals,
        cheaper=_cheaper(scored, best, rivals),
        open=still_open,
        settles=settles,
        contenders=(rules.baseline, best, *_contenders(best, against_baseline, rivals)),
        reason=reason,
        protocol=protocol,
        epsilon=float(row.get("epsilon", math.nan)),
        samples_limit=bool(rules.overlap or draws),
    )


def _nothing_to_decide(
    scored: pd.DataFrame,
    candidates: pd.DataFrame,
    compared: pd.DataFrame,
    baseline: str,
    models: str,
    methods: int,
) -> str:
    """The reason why there is no decision among so many methods; empty if there is one. `models` says in words what is scored."""
    if len(scored.index.difference([baseline])) == 0:
        if methods == 1:
            return f"Nothing to compare: {baseline} is the only method."
        return f"Nothing to compare with {baseline}: no other method has a {models} that was evaluated after training."
    if candidates.empty:
        return f"Nothing to decide: every other method is a reference, or repeats {baseline}."
    pairs = int(candidates["pairs"].max())
    if not pairs:
        return f"No method shares a seed with a {models} of {baseline}; choose another baseline."
    if scored["seeds"].max() == 1:
        return "One seed cannot show a difference: the results below may be chance. Run three seeds or more."
    if pairs == 1:
        return f"No method shares more than one seed with {baseline}. One seed cannot show a difference: all results may be chance."
    if compared.empty or compared["ci_low"].isna().all():
        return f"No difference to {baseline} can be tested, for the reasons below."
    return ""


def _tests(
    by_seed: Mapping[str, pd.Series],
    draws: Draws,
    methods: list[str],
    rules: Rules,
    metric: Metric,
    level: float,
) -> pd.DataFrame:
    """The tests of the methods against the first of them, with the variance that their test samples add (`sampling`)."""
    first, *others = methods
    differences = difference_table({name: by_seed[name] for name in methods}, first)
    variances = sampling_variances(draws, first, others)
    tests = family_tests(
        differences, sign=metric.sign, level=level, overlap=rules.overlap, sampling=variances
    )
    return tests.assign(sampling=variances)


def _rivals(
    by_seed: Mapping[str, pd.Series],
    draws: Draws,
    best: str,
    candidates: list[str],
    rules: Rules,
    metric: Metric,
    smallest: float,
) -> tuple[dict[str, str], pd.DataFrame]:
    """The verdict on each other candidate against the best, with the tests.

    The p values are not corrected: the best is better than all others only if every single test says so, and then the largest
    p is the p of that claim (Hung and Fithian, 2019).
    """
    others = [name for name in candidates if name != best]
    tests = _tests(by_seed, draws, [best, *others], rules, metric, rules.level)
    words = verdicts(
        gain=metric.sign * tests["difference"],
        low=metric.sign * tests["ci_low"],
        high=metric.sign * tests["ci_high"],
        p=tests["p"],
        level=rules.level,
        smallest=smallest,
    )
    return dict(zip(others, map(str, words))), tests


def _cheaper(scored: pd.DataFrame, best: str, rivals: Mapping[str, str]) -> dict[str, float]:
    """The methods that are practically equal to the best, or repeat it, and send fewer bytes -> their share of its bytes."""
    equal = [name for name, word in rivals.items() if word == EQUAL]
    equal += [str(name) for name, role in scored["role"].items() if role == repeats(best)]
    traffic = scored["mb_down"] + scored["mb_up"]
    cheaper = {}
    for name in equal:
        share = _divided(traffic[name], traffic[best])
        if share < MAX_CHEAPER_SHARE:
            cheaper[name] = share
    return cheaper


def _open(
    best: str, against_baseline: Mapping[str, str], rivals: Mapping[str, str]
) -> tuple[str, ...]:
    """The methods whose comparison is not decided and matters: with the best if it is better, else with the baseline."""
    still_open = []
    if against_baseline[best] == BETTER:
        for name, word in rivals.items():
            if word == UNDECIDED and against_baseline[name] != WORSE:
                still_open.append(name)
    else:
        for name, word in against_baseline.items():
            if word == UNDECIDED and rivals.get(name) != WORSE:
                still_open.append(name)
    return tuple(still_open)


def _contenders(
    best: str, against_baseline: Mapping[str, str], rivals: Mapping[str, str]
) -> list[str]:
    """Candidates that may still turn out best and are not yet shown to be equal to it."""
    contenders = []
    for name, word in rivals.items():
        words = (word, against_baseline[name])
        if WORSE not in words and UNDECIDED in words:
            contenders.append(name)
    return contenders


def _more_seeds(
    tests: pd.DataFrame, names: Sequence[str], smallest: float, level: float, overlap: float
) -> list[int]:
    """For each method that can be tested, about how many more seeds would decide its comparison; `MOST_NEEDED` also for never."""
    known = tests.loc[list(names), ["difference", "sd", "sampling", "pairs"]].dropna(subset=["sd"])
    more_seeds = []
    for difference, sd, sampling, pairs in known.to_numpy(float):
        needed = seeds_needed(
            difference, sd, smallest=smallest, level=level, overlap=overlap, sampling=sampling
        )
        is_never = needed == MOST_NEEDED
        more_seeds.append(needed if is_never else max(1, needed - int(pairs)))
    return more_seeds


def _divided(value: float, base: float) -> float:
    return float(value / base) if base > 0 else math.nan
