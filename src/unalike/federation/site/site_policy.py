"""A site's own rules, in `site.toml`: what it answers, how often, when, and how exactly. They are told to nobody."""

import json
import os
import resource
import sys
import tomllib
from collections.abc import Iterable
from datetime import datetime, time
from pathlib import Path
from typing import Annotated, Any, Self

from unalike._utils import spec
from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike._utils.validated import validated
from unalike.core.option import Help, options_of
from unalike.core.options import AtLeastOne, NotNegative, Whole
from unalike.core.tasks.task import Task
from unalike.data.client_data import ClientData
from unalike.federation.protocol.envelope import Head
from unalike.federation.protocol.messages import Declined
from unalike.federation.site.earlier_requests import EarlierRequests
from unalike.methods.plan import DEFAULT_METHOD, plan

DAY_SECONDS = 24 * 3600


@validated
class SitePolicy:
    """The rules of a site. `rounds`, what follows of requests and `epsilon` are checked at each of them, the others at the start.

    Rules about few samples hold for test and validation samples, whose counts by class leave the site.
    """

    methods: Annotated[
        tuple[str, ...],
        Help(
            'Methods and parts that may be trained, such as ["fedavg", "clip"]; empty: the agreed ones.'
        ),
    ] = ()
    rounds: Annotated[
        Whole, Help("Rounds of a run that it trains in; 0: as many as were agreed when it joined.")
    ] = 0
    requests_per_round: Annotated[
        AtLeastOne,
        Help("Different requests of a round, also declined ones; each can evaluate one model."),
    ] = 4
    masking_per_round: Annotated[
        AtLeastOne,
        Help("Different requests of a round for keys and shares of secure aggregation."),
    ] = 20
    sums_per_model: Annotated[
        AtLeastOne,
        Help("Sums over one model, each of other sites; two of them can show what one site sent."),
    ] = 1
    runs_per_day: Annotated[AtLeastOne, Help("New runs that it takes part in within 24 hours.")] = (
        10
    )
    least_training: Annotated[Whole, Help("Fewest training samples with which it takes part.")] = 20
    least_per_coefficient: Annotated[
        Whole,
        Help(
            "Fewest training samples for each coefficient of an exact fit (newton) with which it takes part; 0: no such rule."
        ),
    ] = 1
    least_test: Annotated[
        Whole, Help("Fewest test samples with which it evaluates; with fewer it only trains.")
    ] = 20
    least_class: Annotated[
        Whole,
        Help(
            "Fewest test samples of a class, with an event or without one, or with each of several labels; rarer ones are left out."
        ),
    ] = 3
    most_public: Annotated[
        Whole,
        Help("Most public samples for which it sends what its own model predicts; 0: none."),
    ] = 1000
    digits: Annotated[
        Whole, Help("Significant digits of sums of losses and errors that leave; 0: all.")
    ] = 4
    epsilon: Annotated[
        NotNegative,
        Help(
            "Epsilon that the private methods of all runs may cost together; 0: no limit (the ledger is kept all the same)."
        ),
    ] = 0.0
    hours: Annotated[
        tuple[()] | tuple[time, time],
        Help('Hours in which it answers, such as ["20:00", "06:00"]; empty: always.'),
    ] = ()
    cores: Annotated[Whole, Help("Processor cores that it uses; 0: all.")] = 0
    memory: Annotated[Whole, Help("Megabytes of memory that it may take; 0: no limit.")] = 0

    @classmethod
    def of(cls, file: Path, **values: Any) -> Self:
        """The rules in the file, which is made with comments and these `values` if it is missing. Raises `UnalikeError`."""
        if not file.exists():
            text = "# Rules of this site. Restart `unalike join` after a change.\n\n"
            for option in options_of(SitePolicy).values():
                value = values.get(option.name, option.default)
                text += f"# {option.help.text}\n{option.name} = {json.dumps(value)}\n\n"
            write_bytes(file, text.encode())
        return cls.read(file)

    @classmethod
    def read(cls, file: Path) -> Self:
        """The rules in the file, the usual ones if it is missing. Raises `UnalikeError` for what cannot be read."""
        if not file.exists():
            return cls()
        try:
            return cls(**tomllib.loads(file.read_text()))
        except (OSError, ValueError) as error:
            raise UnalikeError(
                f"cannot use {file}: {error}; mend it, or delete it to get one with comments"
            ) from None

    @property
    def of_samples(self) -> str:
        """The rules that leave out samples."""
        return f"least_test = {self.least_test} and least_class = {self.least_class}"

    def limit_process(self) -> None:
        """Hold this process to its cores and memory."""
        if self.cores:
            allowed = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, allowed[: self.cores])
        if self.memory:
            limit = self.memory * 2**20
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    def allowed(self, data: ClientData, method: str, task: Task) -> ClientData:
        """The samples of a task that the rules leave. Raises `Declined` for a method or a number of samples that they exclude."""
        names = {call.name for call in spec.parse(method)}
        # a plan trains the method that is its argument, FedAvg unless given
        inner = getattr(plan(method), "method", DEFAULT_METHOD)
        names |= {call.name for call in spec.parse(inner)} - {DEFAULT_METHOD}
        if self.methods and not names <= set(self.methods):
            raise Declined(
                "rules",
                f"site.toml allows {', '.join(self.methods)}; the federation trains {method}",
            )
        if len(data.train[1]) < self.least_training:
            raise Declined(
                "rules",
                f"{len(data.train[1])} training samples; site.toml demands {self.least_training}, since an update can show those "
                "of few: join with more, or lower least_training there",
            )
        return data.without_small_groups(self.least_test, self.least_class, task.kinds)

    def check_fit(self, samples: int, coefficients: int) -> None:
        """Raise `Declined` for training samples that are too few for an exact fit of so many coefficients (0: there is none)."""
        least = self.least_per_coefficient * coefficients
        if samples < least:
            raise Declined(
                "rules",
                f"{samples} training samples for {coefficients} coefficients, whose second derivatives can show single samples; "
                f"site.toml demands {least} (least_per_coefficient = {self.least_per_coefficient}): ask the coordinator for fewer "
                "columns, or lower the rule where a secure aggregation adds up what the sites send",
            )

    def check_public(self, samples: int) -> None:
        """Raise `Declined` for public samples that are too many to send predictions of the site's own model for."""
        if samples > self.most_public:
            raise Declined(
                "rules",
                f"{samples} public samples, for which it would send what its own model predicts; site.toml allows "
                f"{self.most_public} (most_public)",
            )

    def unused(self, data: ClientData, task: Task) -> list[str]:
        """Sentences on test and validation samples that are not evaluated: of rare classes, or too few."""
        left = data.without_small_groups(self.least_test, self.least_class, task.kinds).splits()
        sentences = []
        for split, (_, y) in data.splits().items():
            _, y_left = left[split]
            if len(y_left) == len(y):
                continue
            why = f"of a class with fewer than least_class in site.toml ({self.least_class})"
            if not len(y_left):
                why = (
                    f"fewer than least_test in site.toml ({self.least_test}), or only of rare classes; no score leaves this site, "
                    "which trains and keeps its model all the same"
                )
            sentences.append(
                f"{len(y) - len(y_left)} of {len(y)} {split} samples are not used: they are {why}"
            )
        return sentences

    def check_request(
        self, head: Head, agreed_rounds: int, before: int, earlier: EarlierRequests
    ) -> None:
        """Raise `Declined` for a request that these rules exclude.

        Args:
            head: The head of the request.
            agreed_rounds: Rounds of a run that the site agreed to.
            before: Other requests of the same round that came before.
            earlier: All requests until now, with this one.
        """
        if not self.is_open(datetime.now().time()):
            hours = " to ".join(f"{hour:%H:%M}" for hour in self.hours)
            raise Declined("rules", f"site.toml has it answer from {hours} only")
        most = self._most_rounds(agreed_rounds)
        if head.round > most:
            raise Declined(
                "rules", f"round {head.round}; site.toml allows {most} rounds of a run (rounds)"
            )
        # each step of a plan has one more than it trains in, for the model after the last one
        rounds_of_run = earlier.rounds(head.run, last=most)
        if rounds_of_run > most + max(1, head.stage):
            raise Declined(
                "rules",
                f"{rounds_of_run} rounds in {head.stage} steps of the plan; site.toml allows {most} rounds of a run (rounds)",
            )
        if before >= self.requests_per_round:
            raise Declined(
                "rules",
                f"{before} other requests of this round came before; site.toml allows no more",
            )

    def check_masking_request(self, before: int) -> None:
        """Raise `Declined` for a request of secure aggregation too many; so many others of the same round came `before`."""
        if before >= self.masking_per_round:
            raise Declined(
                "rules",
                f"{before} other requests of this round for keys or shares; site.toml allows no more (masking_per_round)",
            )

    def check_training(self, round: int, agreed_rounds: int) -> None:
        """Raise `Declined` for training beyond the rounds of a run: R rounds, counted from 0, are R updates."""
        most = self._most_rounds(agreed_rounds)
        if round >= most:
            raise Declined(
                "rules",
                f"training in round {round}, counted from 0; site.toml allows {most} rounds of a run (rounds)",
            )

    def _most_rounds(self, agreed_rounds: int) -> int:
        """The rounds of a run in which it trains: those agreed on, or fewer."""
        return min(self.rounds or agreed_rounds, agreed_rounds)

    def check_new_run(self, begun: Iterable[float], now: float) -> None:
        """Raise `Declined` for a run too many, by the times at which runs have begun."""
        count = sum(now - start < DAY_SECONDS for start in begun)
        if count >= self.runs_per_day:
            raise Declined(
                "rules",
                f"{count} runs began within 24 hours; site.toml allows no more (runs_per_day)",
            )

    def is_open(self, now: time) -> bool:
        """Whether it answers at this time of day."""
        opens, closes = self.hours or (time.min, time.max)
        if opens <= closes:
            return opens <= now < closes
        # over midnight
        return not closes <= now < opens


NO_RULES = SitePolicy(
    rounds=sys.maxsize,
    requests_per_round=sys.maxsize,
    masking_per_round=sys.maxsize,
    runs_per_day=sys.maxsize,
    least_training=0,
    least_per_coefficient=0,
    least_test=0,
    least_class=0,
    most_public=sys.maxsize,
    digits=0,
)
"""Rules that allow everything."""
