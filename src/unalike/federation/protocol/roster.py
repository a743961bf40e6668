"""The sites that take part in a run with their numbers of samples, and the run config on either side of the network."""

import json
import secrets
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike.core.option import options_of
from unalike.core.options import RecordOptions, SeedOptions, SharedRunOptions
from unalike.core.tasks.registry import find_task
from unalike.data.client_data import SPLITS, ClientData
from unalike.data.population import Population
from unalike.data.population_arrays import kind_of, shape_in_words
from unalike.data.ragged import Ragged
from unalike.federation.protocol.federation_file import Federation
from unalike.methods.plan import method_of, plan
from unalike.runtime.setup.run_config import Pair, RunConfig, configure_run


@dataclass(frozen=True)
class SampleCounts:
    """Number of samples of a site in each split."""

    train: int
    test: int
    val: int


@dataclass(frozen=True)
class Roster:
    """The sites admitted to a run, none before its admission, and the run's name (`new_run`).

    `joined` are those that came after the run had begun, with the round from which on each takes part.
    """

    run: str
    sites: dict[str, SampleCounts]
    joined: dict[str, int] = field(default_factory=dict)

    @property
    def at_start(self) -> Self:
        """The roster that the run began with."""
        first = {name: counts for name, counts in self.sites.items() if name not in self.joined}
        return replace(self, sites=first, joined={})

    def with_late(self, sites: dict[str, SampleCounts], round: int) -> Self:
        """The roster with sites that take part from a round on."""
        since = dict.fromkeys(sites, round)
        return replace(self, sites=self.sites | sites, joined=self.joined | since)

    def save(self, path: Path) -> None:
        sites = {name: asdict(counts) for name, counts in self.sites.items()}
        values = {"run": self.run, "sites": sites, "joined": self.joined}
        write_bytes(path, json.dumps(values).encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read it; without a name and sites if there is no file. Raises `UnalikeError` for a damaged file."""
        try:
            values = json.loads(path.read_text())
            sites = {name: SampleCounts(**counts) for name, counts in values["sites"].items()}
            # rosters of runs that began before sites could join later have none of these
            return cls(values["run"], sites, dict(values.get("joined", {})))
        except FileNotFoundError:
            return cls("", {})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnalikeError(
                f"cannot read {path}: {error}; restore it, or start in another folder"
            ) from error


DIGITS_OF_TIME = 20
"""The digits of the time with which the name of a run begins, in nanoseconds since 1970."""


def new_run(after: str = "") -> str:
    """A new run's name: the time, then a random number. It is larger than that of the run before, `after`, whatever the clock says.

    Sites answer requests of the run with the largest name alone.
    """
    least = int(after[:DIGITS_OF_TIME] or 0) + 1
    return f"{max(time.time_ns(), least):0{DIGITS_OF_TIME}d}-{secrets.token_hex(8)}"


def placeholders(federation: Federation, roster: Roster) -> Population:
    """The population as the coordinator sees it: it knows the number of samples of each site and none of the samples.

    All indices refer to one sample of zeros.
    """
    absent = SampleCounts(train=0, test=0, val=0)
    counts = [roster.sites.get(site.name, absent) for site in federation.sites]
    indices = {}
    for split in SPLITS:
        indices[split] = Ragged.zeros(np.array([getattr(site, split) for site in counts]))
    schema = federation.data
    task = find_task(schema.task)
    return Population(
        x=schema.placeholder,
        y=schema.placeholder_label,
        train=indices["train"],
        test=indices["test"],
        val=indices["val"],
        names=[site.name for site in federation.sites],
        classes=schema.names,
        task=task,
        encoding=schema.encoding,
    )


def site_population(federation: Federation, number: int, data: ClientData) -> Population:
    """The population as one site sees it: only it has samples. Raises `UnalikeError` for samples of another shape or type."""
    schema = federation.data
    own = Population.of([data], schema.names, schema.task)
    found = kind_of(own.x)
    expected = kind_of(schema.placeholder)
    if found != expected:
        raise UnalikeError(
            f"found inputs {found}; the federation agreed on {expected}: write the samples so, sequences padded to that length"
        )

    placeholder = schema.placeholder_label
    if own.y.shape[1:] != placeholder.shape[1:]:
        raise UnalikeError(
            f"found labels {shape_in_words(own.y)}; the federation agreed on {shape_in_words(placeholder)} for {schema.task}"
        )

    # The other sites are there, with their numbers, but without samples.
    def only_here(rows: Ragged) -> Ragged:
        return Ragged.of(rows[0] if k == number else () for k in range(len(federation.sites)))

    return replace(
        own,
        train=only_here(own.train),
        test=only_here(own.test),
        val=only_here(own.val),
        names=[site.name for site in federation.sites],
    )


COORDINATED = ("protocol", "stop", "budget", "select", "record")
"""Options that only the coordinator applies."""


def run_config_of(
    federation: Federation,
    population: Population,
    test: Pair | None = None,
    proxy: Pair | None = None,
    *,
    start: str | Path | None = None,
    start_partial: bool = False,
    coordinated: bool = False,
    device: str = "cpu",
) -> RunConfig:
    """The federation as a run config. `coordinated` adds the options that only the coordinator applies (`COORDINATED`).

    Raises `UnalikeError` for terms that cannot be run.
    """
    _check_method(federation, proxy)
    eligible = max(1, int(np.count_nonzero(population.sizes)))
    participation = federation.participation
    if not isinstance(participation, float):
        participation = federation.cohort_size(eligible) / eligible

    # Agreed options apply on both sides, so that a site computes what the coordinator expects.
    options = set(options_of(SeedOptions, SharedRunOptions, RecordOptions))
    if not coordinated:
        options -= set(COORDINATED)
    agreed = {name: getattr(federation, name) for name in options}
    return configure_run(
        federation.method,
        population,
        model=federation.model,
        start=start,
        start_partial=start_partial,
        work=federation.work,
        test=test,
        proxy=proxy,
        rounds=federation.rounds,
        participation=participation,
        federated=federation.noise_shares,
        executor="loop",
        device=device,
        **agreed,
    )


def _check_method(federation: Federation, proxy: Pair | None) -> None:
    """Raise `UnalikeError` for a method of simulations alone, and for public samples that the terms do not name."""
    method = method_of(plan(federation.method))
    method.check_real()
    if federation.public is not None:
        federation.public.check(proxy)
    elif method.clients_read_proxy:
        raise UnalikeError(
            f"{federation.method} asks what each site's own model predicts for public samples, and the terms name none; expected a "
            "federation that was made with them: --proxy FILE"
        )
