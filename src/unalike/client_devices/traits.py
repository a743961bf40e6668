"""The traits of devices that users combine by `+`: speeds, presence, lost connections, deadlines."""

from __future__ import annotations

import csv
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from pydantic import NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass as validated

from unalike._utils.errors import UnalikeError
from unalike.client_devices.device_model import (
    USUAL_MBIT_DOWN,
    USUAL_MBIT_UP,
    USUAL_SAMPLES_PER_SECOND,
    DeviceTrait,
    Presence,
    Rates,
    registry,
)
from unalike.core.options import Positive
from unalike.core.work import Work
from unalike.metrics.columns import REPLY_SECONDS

if TYPE_CHECKING:
    import pandas as pd

Slowed = Literal["all", "computing", "sending"]
"""The speeds that a trait divides: of training, of sending and receiving, or all."""
HOURS_IN_DAY = 24.0
SECONDS_IN_DAY = HOURS_IN_DAY * 3600


class Slowdown(DeviceTrait):
    """A trait that divides the speeds of each device by a factor of its own. `of`: the speeds that it divides."""

    of: Slowed

    def factors(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        """The factor of each device, [N]."""
        raise NotImplementedError

    def rates(self, rates: Rates, rng: np.random.Generator) -> Rates:
        factors = self.factors(len(rates.samples_per_second), rng)
        unchanged = np.ones(len(factors))
        return rates.slowed(
            computing=unchanged if self.of == "sending" else factors,
            sending=unchanged if self.of == "computing" else factors,
        )


@registry.register("pace")
@validated(frozen=True)
class Pace(DeviceTrait):
    """The speeds of a usual device: training samples a second, megabits a second from and to the server.

    Slowdowns to its right divide them; those to its left are replaced.
    """

    samples_per_second: Positive = USUAL_SAMPLES_PER_SECOND
    mbit_down: Positive = USUAL_MBIT_DOWN
    mbit_up: Positive = USUAL_MBIT_UP

    def rates(self, rates: Rates, rng: np.random.Generator) -> Rates:
        clients = len(rates.samples_per_second)
        return Rates.equal(clients, self.samples_per_second, self.mbit_down, self.mbit_up)


@registry.register("lognormal")
@validated(frozen=True)
class Lognormal(Slowdown):
    """Speeds divided by exp(sigma z), z ~ N(0, 1) for each device: half of them are slower than the usual one. sigma = 0: equal."""

    sigma: Annotated[float, Ge(0)] = 1.0
    of: Slowed = "all"

    def factors(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        return np.exp(self.sigma * rng.standard_normal(clients))


@registry.register("pareto")
@validated(frozen=True)
class Pareto(Slowdown):
    """Speeds divided by a Pareto number u^(-1/shape) >= 1, u uniform: a few devices are very slow; below shape 1 without a mean."""

    shape: Positive = 1.5
    of: Slowed = "all"

    def factors(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        # 1 - u, which is never 0
        return (1 - rng.random(clients)) ** (-1 / self.shape)


@registry.register("two_speed")
@validated(frozen=True)
class TwoSpeed(Slowdown):
    """A share `slow` of the devices has speeds divided by `factor`. slow = 0 or factor = 1: equal."""

    slow: Annotated[float, Ge(0), Le(1)] = 0.5
    factor: Annotated[float, Ge(1)] = 10.0
    of: Slowed = "all"

    def factors(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        count = int(self.slow * clients + 0.5)
        factors = np.ones(clients)
        factors[rng.permutation(clients)[:count]] = self.factor
        return factors


@registry.register("slow_clients")
@validated(frozen=True)
class SlowClients(Slowdown):
    """The devices of these `clients`, by number from 0, have speeds divided by `factor`. factor = 1: equal."""

    clients: tuple[NonNegativeInt, ...] = (0,)
    factor: Annotated[float, Ge(1)] = 10.0
    of: Slowed = "all"

    def factors(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        unknown = [client for client in self.clients if client >= clients]
        if unknown:
            raise UnalikeError(
                f"slow_clients: found client {unknown[0]}; expected numbers from 0 to {clients - 1}"
            )
        factors = np.ones(clients)
        factors[[*self.clients]] = self.factor
        return factors


@registry.register("day_night")
@validated(frozen=True)
class DayNight(DeviceTrait):
    """Each device is there for `hours` of every 24, from an hour of its own on, as those that train while they charge.

    With `together` all devices are there at the same hours. hours = 24: always.
    """

    decides_who_counts: ClassVar[bool] = True
    hours: Annotated[float, Gt(0), Le(HOURS_IN_DAY)] = 10.0
    together: bool = False

    def presence(self, clients: int, rng: np.random.Generator) -> Presence:
        starts = np.zeros(clients) if self.together else rng.random(clients)
        share_of_day = self.hours / HOURS_IN_DAY

        def is_there(ids: np.ndarray, moments: np.ndarray) -> np.ndarray:
            days = moments / SECONDS_IN_DAY - starts[ids]
            # the part of a day that has passed; floor is much faster than the remainder
            return days - np.floor(days) < share_of_day

        return is_there


@registry.register("drop_out")
@validated(frozen=True)
class DropOut(DeviceTrait):
    """In each round a device loses the connection with probability `rate`, at a moment of it that is uniform. rate = 0: never."""

    decides_who_counts: ClassVar[bool] = True
    rate: Annotated[float, Ge(0), Le(1)] = 0.1

    def shares_done(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        moments = rng.random(clients)
        return np.where(rng.random(clients) < self.rate, moments, 1.0)


@registry.register("deadline")
@validated(frozen=True)
class Deadline(DeviceTrait):
    """The server waits for so many seconds after a round began; updates that come later do not count.

    With `partial` clients know the deadline and send in time what they have after as many steps as fit (FedProx, section 3), if
    one does.
    """

    decides_who_counts: ClassVar[bool] = True
    seconds: Positive = 60.0
    partial: bool = False

    @property
    def stops_at_deadline(self) -> bool:
        return self.partial

    @property
    def deadline(self) -> float:
        return self.seconds


@registry.register("first")
@validated(frozen=True)
class First(DeviceTrait):
    """A round ends when so many `updates` have arrived; those under way count in the round in which they come, with their age.

    So many clients as a round asks are under way at any time. With `drop` those that come later do not count. As many updates as
    clients in a round: the server awaits all.
    """

    decides_who_counts: ClassVar[bool] = True
    updates: PositiveInt = 10
    drop: bool = False

    @property
    def updates_awaited(self) -> float:
        return self.updates

    @property
    def drops_late(self) -> bool:
        return self.drop


@registry.register("partial_work")
@validated(frozen=True)
class PartialWork(DeviceTrait):
    """In each round a client makes, with probability `rate`, only a share u ~ U(0, 1) of its local steps, and at least one.

    FedProx's stragglers (section 5.2, there drawn in whole epochs) make fewer steps instead of being left out. rate = 0: all
    clients make all steps.
    """

    decides_who_counts: ClassVar[bool] = True
    draws_work: ClassVar[bool] = True
    rate: Annotated[float, Ge(0), Le(1)] = 0.5

    def share_of_steps(self, rng: np.random.Generator) -> float:
        share = rng.random()
        return share if rng.random() < self.rate else 1.0


TRACE_COLUMNS = ("client", "from", "until")


@registry.register("presence_file")
@dataclass(frozen=True)
class PresenceFile(DeviceTrait):
    """The times when devices are there, from a CSV file with the columns client, from and until.

    Clients are counted from 0, times are seconds since the run began, and a client may have several rows. Clients without a row
    are always there.
    """

    decides_who_counts: ClassVar[bool] = True
    path: str = ""

    def presence(self, clients: int, rng: np.random.Generator) -> Presence:
        times = self._read(clients)

        def is_there(ids: np.ndarray, moments: np.ndarray) -> np.ndarray:
            there = np.ones(len(ids), bool)
            for i, client in enumerate(ids.tolist()):
                if client in times:
                    there[i] = any(start <= moments[i] < end for start, end in times[client])
            return there

        return is_there

    def _read(self, clients: int) -> dict[int, list[tuple[float, float]]]:
        """Client -> the times (from, until) when it is there."""
        times: dict[int, list[tuple[float, float]]] = {}
        try:
            # spreadsheets write a mark of the byte order
            with Path(self.path).open(encoding="utf-8-sig", newline="") as file:
                rows = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError) as error:
            raise UnalikeError(f"presence_file: cannot read {self.path!r}: {error}") from None
        if not rows:
            raise UnalikeError(
                f"presence_file: {self.path!r} has no row; expected the columns {', '.join(TRACE_COLUMNS)} and a row for each time "
                "that a client is there"
            )
        for number, row in enumerate(rows, start=2):
            try:
                client = int(row[TRACE_COLUMNS[0]])
                start = float(row[TRACE_COLUMNS[1]])
                end = float(row[TRACE_COLUMNS[2]])
            except (KeyError, TypeError, ValueError):
                raise UnalikeError(
                    f"presence_file: line {number} of {self.path!r} is {dict(row)}; expected the columns "
                    f"{', '.join(TRACE_COLUMNS)} with a whole number and two numbers"
                ) from None
            if not 0 <= client < clients:
                raise UnalikeError(
                    f"presence_file: line {number} of {self.path!r} names client {client}; expected 0 to {clients - 1}"
                )
            if not (math.isfinite(start) and start < end):
                raise UnalikeError(
                    f"presence_file: line {number} of {self.path!r} is from {start:g} until {end:g}; expected a time that ends "
                    "after it begins"
                )
            times.setdefault(client, []).append((start, end))
        return times


SITE_COLUMNS = ("client", "n_train", REPLY_SECONDS)
AMOUNTS_OF_WORK = ("epochs", "steps", "batch_size", "drop_last")
"""The settings of local work that say how many samples pass through the model; a stored one that is missing is None."""


@registry.register("calibrated")
@dataclass(frozen=True)
class Calibrated(DeviceTrait):
    """Speeds as the sites of a federation had them: samples a second = samples of the local steps / seconds until the answer.

    `folder` is that of a federation's run. A site's speed is its median over the rounds that it trained, and each device has
    that of a site, drawn with equal chances. These seconds contain the network, so that sending and receiving take none. Traits
    to its right divide the speeds; those to its left are replaced.
    """

    folder: str = ""

    def rates(self, rates: Rates, rng: np.random.Generator) -> Rates:
        of_sites = self._samples_per_second()
        drawn = of_sites[rng.integers(len(of_sites), size=len(rates.samples_per_second))]
        none = np.full(len(drawn), math.inf)
        return Rates(samples_per_second=drawn, bytes_down_per_second=none, bytes_up_per_second=none)

    def _samples_per_second(self) -> np.ndarray:
        """The speed of each site that trained, by its number."""
        rows, work = self._read()
        trained = rows[rows[REPLY_SECONDS] > 0]
        samples = [sum(work.sizes_for(int(size))) for size in trained["n_train"]]
        speeds = samples / trained[REPLY_SECONDS]
        by_site = speeds.groupby(trained["client"]).median()
        if by_site.empty or not (by_site > 0).all():
            raise UnalikeError(
                f"calibrated: in {self.folder!r} no site has trained; expected the folder of a federation's run with rounds"
            )
        return by_site.to_numpy()

    def _read(self) -> tuple[pd.DataFrame, Work]:
        """The table of clients of the run, and the local work of its sites."""
        import pandas as pd

        file = Path(self.folder) / "clients.parquet"
        try:
            stored = tomllib.loads((Path(self.folder) / "config.toml").read_text("utf-8"))["work"]
            amounts = {name: stored.get(name) for name in AMOUNTS_OF_WORK}
            return pd.read_parquet(file, columns=list(SITE_COLUMNS)), Work(**amounts)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UnalikeError(
                f"calibrated: cannot read the seconds of sites in {file}: {error}; expected the folder of a federation's run, "
                f"whose table of clients has the columns {', '.join(SITE_COLUMNS)}"
            ) from error
