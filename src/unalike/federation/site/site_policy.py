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
from unalike.core.options import AtLeastOne, Help, Whole, options_of
from unalike.data.client_data import ClientData
from unalike.federation.protocol.messages import Declined


@validated
class SitePolicy:
    """The rules of a site. `rounds` and what follows of requests are checked at each of them, the others at the start.

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
        Help("Different requests that it answers in a round; each can evaluate one model."),
    ] = 4
    runs_per_day: Annotated[AtLeastOne, Help("New runs that it takes part in within 24 hours.")] = (
        10
    )
    least_training: Annotated[Whole, Help("Fewest training samples with which it takes part.")] = 20
    least_test: Annotated[
        Whole, Help("Fewest test samples with which it evaluates; with fewer it only trains.")
    ] = 20
    least_class: Annotated[
        Whole, Help("Fewest test samples of a class; those of rarer classes are left out.")
    ] = 3
    digits: Annotated[
        Whole, Help("Significant digits of sums of losses and errors that leave; 0: all.")
    ] = 4
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
            rows = options_of(SitePolicy).values()
            text = "".join(
                f"# {o.help.text}\n{o.name} = {json.dumps(values.get(o.name, o.default))}\n\n"
                for o in rows
            )
            write_bytes(
                file,
                f"# Rules of this site. Restart `unalike join` after a change.\n\n{text}".encode(),
            )
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
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: self.cores])
        if self.memory:
            resource.setrlimit(resource.RLIMIT_DATA, (self.memory * 2**20,) * 2)

    def allowed(self, data: ClientData, method: str, has_classes: bool) -> ClientData:
        """The samples that the rules leave. Raises `Declined` for a method or a number of samples that they exclude."""
        names = {call.name for call in spec.parse(method)}
        if self.methods and not names <= {*self.methods}:
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
        return data.without_small_groups(self.least_test, self.least_class if has_classes else 0)

    def unused(self, data: ClientData) -> list[str]:
        """Sentences on test and validation samples that are too few to evaluate."""
        counts = {
            split: len(data.splits()[split][1])
            for split in ("test", "val")
            if split in data.splits()
        }
        text = f"fewer than least_test in site.toml ({self.least_test}), so that they are not used"
        return [
            f"{n} {split} samples, {text}" for split, n in counts.items() if 0 < n < self.least_test
        ]

    def check_request(self, round: int, agreed_rounds: int, before: int) -> None:
        """Raise `Declined` for a request that these rules exclude; `before` were answered in the same round."""
        if not self.is_open(datetime.now().time()):
            raise Declined(
                "rules",
                f"site.toml has it answer from {' to '.join(f'{t:%H:%M}' for t in self.hours)} only",
            )
        if round > (most := self.rounds or agreed_rounds):
            raise Declined(
                "rules", f"round {round}; site.toml allows {most} rounds of a run (rounds)"
            )
        if before >= self.requests_per_round:
            raise Declined(
                "rules", f"{before} requests of this round were answered; site.toml allows no more"
            )

    def check_new_run(self, begun: Iterable[float], now: float) -> None:
        """Raise `Declined` for a run too many, by the times at which runs have begun."""
        if (found := sum(now - t < 24 * 3600 for t in begun)) >= self.runs_per_day:
            raise Declined(
                "rules",
                f"{found} runs began within 24 hours; site.toml allows no more (runs_per_day)",
            )

    def is_open(self, now: time) -> bool:
        """Whether it answers at this time of day."""
        opens, closes = self.hours or (time.min, time.max)
        return opens <= now < closes if opens <= closes else not closes <= now < opens


ANY = sys.maxsize
NO_RULES = SitePolicy(
    rounds=ANY,
    requests_per_round=ANY,
    runs_per_day=ANY,
    least_training=0,
    least_test=0,
    least_class=0,
    digits=0,
)
"""Rules that allow everything."""
