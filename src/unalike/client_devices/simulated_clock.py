"""The simulated clock of a run: the time that a round takes, and the clients whose updates arrive in it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.client_devices.device_model import DeviceModel, Presence
from unalike.metrics.columns import MAX_AGE, MEAN_AGE, SIMULATED_SECONDS

LOOK_AGAIN_SECONDS = 60.0
"""Simulated seconds after which a server looks again, where all devices, or all that it would ask, are away."""
LONGEST_WAIT_DAYS = 7.0
SECONDS_IN_DAY = 86_400.0
UNDER_WAY = "under_way"
"""The entry of a checkpoint with the queue of events."""
LEFT = "left before its update arrived"
LOST = "lost the connection"
LATE = "late"
REFUSED = "refused"
TRAINED = "trained"
COUNTED_LATER = "trained, counted in a later round"
MANY_CLIENTS = 100_000
"""Clients from which on a server that draws by chance looks at a random part of the devices, and not at each of them."""
LOOKS_FOR_A_CLIENT = 3
"""Devices that it looks at first for each client that it wants."""
MORE_LOOKS = 8
"""Times as many that it looks at next, where too few of these are there."""
FOLLOWED_CLIENTS = 1_000
"""The timeline has the clients with numbers below this, so that a run of a million devices does not fill the memory with it."""


class RoundWork(NamedTuple):
    """The work of the clients of a group in a round.

    All their `steps` [K], the training `samples` in them [K], the `shares` of them that the server asks for [K], and the bytes
    that each client gets and sends.
    """

    steps: np.ndarray
    samples: np.ndarray
    shares: np.ndarray
    bytes_down: int
    bytes_up: int


ClientNumbers = Sequence[int] | np.ndarray
"""The numbers of K clients."""
WorkOf = Callable[[str, ClientNumbers], RoundWork]
"""A group and those of its clients that are asked -> what they do in the round."""


ShareOfWork = Callable[[Sequence[int], int], np.ndarray]
"""Clients [K] and a round -> the share of its local steps that each of them makes, [K]. It depends on the client, the round and
what the server asks of the cohort alone, so that it is the same in every chunk, and without the latter in every process."""


class Asked(Protocol):
    """A client under way: it was asked for an update of the model that a round began with."""

    @property
    def client(self) -> int: ...

    @property
    def round(self) -> int: ...


class UnderWay(NamedTuple):
    """An event of the queue: the moment at which a client is done with a round, in simulated seconds since the run began.

    `lost` says why its update does not count; empty if it does. `begun` is the moment at which it was asked.
    """

    moment: float
    client: int
    round: int
    lost: str
    begun: float


class RoundEvents(NamedTuple):
    """The events of the K clients that a round asked, as `UnderWay`; the arrays are [K]. `arrives`: nothing is lost."""

    moments: np.ndarray
    clients: np.ndarray
    lost: np.ndarray
    arrives: np.ndarray
    round: int
    begun: float

    def where(self, chosen: np.ndarray) -> RoundEvents:
        """The events that are chosen [K]."""
        return self._at(np.flatnonzero(chosen))

    @property
    def in_order(self) -> RoundEvents:
        """The events as they happen."""
        return self._at(np.lexsort((self.clients, self.moments)))

    def _at(self, places: np.ndarray) -> RoundEvents:
        return self._replace(
            moments=self.moments[places],
            clients=self.clients[places],
            lost=self.lost[places],
            arrives=self.arrives[places],
        )

    def queue(self) -> list[UnderWay]:
        """One by one, in the order in which they are held here."""
        values = zip(self.moments.tolist(), self.clients.tolist(), self.lost.tolist(), strict=True)
        return [
            UnderWay(moment, client, self.round, lost, self.begun)
            for moment, client, lost in values
        ]


class Turn(NamedTuple):
    """A row of the timeline of a run: a client that was asked, until a round heard of it. The fields are the columns.

    `begun` and `ended` are seconds since the run began, of simulated time or with the sites of a federation of the coordinator's:
    of the request, and of the moment at which the server had the update or gave it up. `age`: rounds of the server between the
    two. `fate`: `TRAINED`, `COUNTED_LATER`, or why the update does not count. `bytes_down` were sent to the client, `bytes_up` by
    it: 0 where its update does not count, as in the traffic of a round.
    """

    client: int
    begun: float
    ended: float
    age: int
    fate: str
    bytes_down: int = 0
    bytes_up: int = 0

    @property
    def counts(self) -> bool:
        """Whether the update counts."""
        return self.fate in (TRAINED, COUNTED_LATER)


class Arrivals(NamedTuple):
    """The clients that a round heard of.

    Attributes:
        rounds: Client -> the round whose model it trained, of those whose update has arrived, in ascending order.
        lost: Client -> why its update does not count.
        turns: Their rows of the timeline, in the order of the events; none where nothing is simulated.
    """

    rounds: dict[int, int]
    lost: dict[int, str]
    turns: Sequence[Turn] = ()


class Availability(Protocol):
    """The clients that can be asked, and those that were asked and have not answered yet."""

    @property
    def under_way(self) -> Sequence[Asked]:
        """The clients that were asked and have not answered yet."""

    @property
    def changes_work(self) -> bool:
        """Whether devices may make fewer steps than they are asked for."""

    def late_updates_count(self, awaited: float) -> bool:
        """Whether updates may count in a later round than they were asked for, where a server awaits so many."""

    def present(self, eligible: Sequence[int]) -> Sequence[int]:
        """The clients that can be asked now; where none is there and nobody under way, those that are when the first one comes."""

    def some_present(
        self, eligible: Sequence[int], wanted: int, rng: np.random.Generator
    ) -> Sequence[int]:
        """The clients that can be asked now, as `present`; of very many a random part, with `wanted` of them or more."""

    def wait(self) -> None:
        """A round asks nobody and nobody is under way: whom the sampler would ask may be away, and a later round looks again."""

    @property
    def columns(self) -> dict[str, float]:
        """The columns of the history: the time since the run began in `simulated_seconds`, and the ages of the updates of the
        newest round where they may be late. Empty where nothing is simulated.
        """

    @property
    def checkpoint(self) -> dict[str, Any]:
        """The plain values from which `restore` goes on: the time, and the clients under way."""

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Go on from these values."""

    def share_of_work(self, name: str, work_of: WorkOf) -> ShareOfWork:
        """The share of their local steps that clients of a group make."""


class Devices(Availability, Protocol):
    """The clients' devices, and the time that their rounds take."""

    def train(
        self,
        round: int,
        asked: Mapping[str, Sequence[int]],
        work_of: WorkOf,
        awaited: float = math.inf,
    ) -> Arrivals:
        """Let the clients `asked`, by group, train a round, and wait until `awaited` updates have arrived, of whatever round."""

    def end_stage(self) -> None:
        """Updates that are under way do not count for the next stage."""

    def seconds_of(
        self, round: int, asked: Mapping[str, Sequence[int]], work_of: WorkOf
    ) -> dict[int, float]:
        """The seconds from the request to the update of each client of a round; empty where nothing is simulated."""


class NoDevices:
    """Nothing is simulated: every client is there, and its update arrives."""

    under_way: ClassVar[Sequence[UnderWay]] = ()
    columns: ClassVar[dict[str, float]] = {}
    checkpoint: ClassVar[dict[str, Any]] = {}
    changes_work: ClassVar[bool] = False

    def late_updates_count(self, awaited: float) -> bool:
        return False

    def present(self, eligible: Sequence[int]) -> Sequence[int]:
        return eligible

    def some_present(
        self, eligible: Sequence[int], wanted: int, rng: np.random.Generator
    ) -> Sequence[int]:
        return self.present(eligible)

    def train(
        self,
        round: int,
        asked: Mapping[str, Sequence[int]],
        work_of: WorkOf,
        awaited: float = math.inf,
    ) -> Arrivals:
        rounds: dict[int, int] = {}
        for clients in asked.values():
            rounds.update(dict.fromkeys(clients, round))
        return Arrivals(rounds, {})

    def seconds_of(
        self, round: int, asked: Mapping[str, Sequence[int]], work_of: WorkOf
    ) -> dict[int, float]:
        return {}

    def wait(self) -> None:
        """Nobody is ever away."""

    def end_stage(self) -> None:
        """Nobody is under way."""

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """There is nothing to go on from."""

    def share_of_work(self, name: str, work_of: WorkOf) -> ShareOfWork:
        return share_asked_for(name, work_of)


class SimulatedDevices:
    """The devices of a run by a device model; `time` is the simulated time in seconds since the run began.

    A client that is asked receives the model, trains and sends its update, one after the other:

        seconds = bytes down / rate down + samples / rate of training + bytes up / rate up

    These moments are events of one queue. A round takes events out of it until so many updates have arrived as the server awaits;
    if it awaits all, until nobody is under way. A lost connection is noticed at once, a late client at the deadline. Clients that
    are left in the queue are under way when the next round begins, which asks others. Computation of the server and evaluation
    take no simulated time.
    """

    def __init__(self, model: DeviceModel, clients: int, seed: int):
        self.time = 0.0
        self.under_way: list[UnderWay] = []
        """The queue, as a heap: the next event comes first."""
        self._ages: list[int] | None = None
        """The ages of the updates of the newest round; None where none can be late."""
        self._model = model
        self._clients = clients
        self._seed = seed

    @cached_property
    def _rates(self) -> np.ndarray:
        """The speeds of each device in a row [N, 3], in the order of `Rates`: one look into the table of a million finds all."""
        # what is too slow to be written down is said below
        with np.errstate(over="ignore", divide="ignore"):
            rates = vars(self._model.rates(self._clients, self._seed))
        for speed, values in rates.items():
            standing = np.flatnonzero(~(values > 0))
            if len(standing):
                raise UnalikeError(
                    f"the {speed} of {len(standing)} of {self._clients} devices is {values[standing[0]]:g}, client "
                    f"{standing[0]} among them, which would never be done; expected speeds above 0: check devices="
                )
        return np.stack([*rates.values()], axis=1)

    @cached_property
    def _presence(self) -> Presence | None:
        return self._model.presence(self._clients, self._seed)

    @property
    def changes_work(self) -> bool:
        return self._model.changes_work

    def late_updates_count(self, awaited: float) -> bool:
        return self._awaited(awaited) < math.inf and not self._model.drops_late

    def _awaited(self, awaited: float) -> float:
        return min(awaited, self._model.updates_awaited)

    def present(self, eligible: Sequence[int]) -> Sequence[int]:
        if not self.under_way:
            # a million devices that are always there are a range, and need no table
            if self._presence is None:
                return eligible
            _, ids = self._next_start(eligible)
            return ids.tolist()
        return self._idle(client_numbers(eligible)).tolist()

    def some_present(
        self, eligible: Sequence[int], wanted: int, rng: np.random.Generator
    ) -> Sequence[int]:
        comes_and_goes = self._presence is not None or bool(self.under_way)
        looked_at = LOOKS_FOR_A_CLIENT * max(1, wanted)
        # A random part is drawn before anybody looks at it, so that those who are there have equal chances in it, too.
        while comes_and_goes and len(eligible) >= max(MANY_CLIENTS, MORE_LOOKS * looked_at):
            places = rng.integers(len(eligible), size=looked_at)
            # put in order, and rid of clients that were drawn twice, when only those that are there are left
            there = np.sort(self._idle(clients_at(eligible, places)))
            is_new = np.ones(len(there), bool)
            is_new[1:] = there[1:] != there[:-1]
            there = there[is_new]
            if len(there) >= wanted:
                return there.tolist()
            looked_at *= MORE_LOOKS
        return self.present(eligible)

    def _idle(self, ids: np.ndarray) -> np.ndarray:
        """The clients among these that are there now, and not under way."""
        if self.under_way:
            is_busy = np.zeros(self._clients, bool)
            is_busy[np.array([event.client for event in self.under_way])] = True
            ids = ids[~is_busy[ids]]
        return ids[self._are_there(ids, np.full(len(ids), self.time))]

    def _next_start(self, eligible: ClientNumbers) -> tuple[float, np.ndarray]:
        """The moment from now on when a device is there, and all that are there then."""
        ids = client_numbers(eligible)
        wait = 0.0
        while wait <= LONGEST_WAIT_DAYS * SECONDS_IN_DAY:
            moment = self.time + wait
            there = ids[self._are_there(ids, np.full(len(ids), moment))]
            if len(there):
                return moment, there
            wait += LOOK_AGAIN_SECONDS
        raise UnalikeError(
            f"all devices are away at {self.time:,.0f} s of simulated time and for {LONGEST_WAIT_DAYS:g} days after it, at which "
            f"the server looks every {LOOK_AGAIN_SECONDS:g} s; expected one that is there: check devices="
        )

    def train(
        self,
        round: int,
        asked: Mapping[str, Sequence[int]],
        work_of: WorkOf,
        awaited: float = math.inf,
    ) -> Arrivals:
        enough = self._awaited(awaited)
        self._ages = None
        if asked:
            # as arrays, so that each look into the tables of a million devices takes the numbers as they are
            numbers = {name: client_numbers(clients) for name, clients in asked.items()}
            events = self._events(round, numbers, work_of)
            if enough == math.inf and not self.under_way:
                return self._whole_round(events)
            for event in events.queue():
                heapq.heappush(self.under_way, event)

        # The server takes what comes next until it has what it awaits.
        rounds: dict[int, int] = {}
        lost: dict[int, str] = {}
        turns: list[Turn] = []
        while self.under_way and len(rounds) < enough:
            event = heapq.heappop(self.under_way)
            self.time = event.moment
            if event.lost:
                lost[event.client] = event.lost
            else:
                rounds[event.client] = event.round
            turns += _turns(event, round)
        if self._model.drops_late:
            for event in self.under_way:
                lost[event.client] = LATE
                turns += _turns(event._replace(moment=self.time, lost=LATE), round)
            self.under_way = []

        if self.late_updates_count(awaited):
            self._ages = [round - trained for trained in rounds.values()]
        return Arrivals(dict(sorted(rounds.items())), lost, turns)

    def _whole_round(self, events: RoundEvents) -> Arrivals:
        """A round that ends when all whom it asked are done: nobody waits in the queue. Their number may be large."""
        self.time = float(events.moments.max())
        arrived = np.sort(events.clients[events.arrives]).tolist()
        # few of a large cohort have to be put in order
        gone = events.where(~events.arrives).in_order
        followed = events.where(events.clients < FOLLOWED_CLIENTS).in_order
        turns: list[Turn] = []
        for event in followed.queue():
            turns += _turns(event, events.round)
        return Arrivals(
            rounds=dict.fromkeys(arrived, events.round),
            lost=dict(zip(gone.clients.tolist(), gone.lost.tolist(), strict=True)),
            turns=turns,
        )

    def _events(self, round: int, asked: Mapping[str, np.ndarray], work_of: WorkOf) -> RoundEvents:
        """The moments at which the clients that are asked now are done, and whether their updates count."""
        # Step 1: The round begins when its clients are there, which may be later than the last one ended.
        ids = np.concatenate([*asked.values()])
        start = self.time
        # the first one tells most often: a cohort was just chosen among those that are there
        if not (self.under_way or self._are_there(ids[:1], np.full(1, start)).all()):
            start, _ = self._next_start(ids)

        # Step 2: The seconds that each client needs for its steps, and when it stops if it loses the connection.
        seconds = []
        has_no_step = []
        for name, clients in asked.items():
            work = work_of(name, clients)
            shares = self.shares_of_steps(round, clients, work)
            seconds.append(self._seconds(clients, work, shares))
            has_no_step.append(shares * work.steps < 1)
        needed = np.concatenate(seconds)
        done = self._model.shares_done(len(ids), self._seed, round)
        moments = start + np.minimum(needed * done, self._model.deadline)

        # Step 3: What arrives.
        is_lost = done < 1
        is_late = self._is_late(needed, np.concatenate(has_no_step))
        has_left = ~self._are_there(ids, start + needed)
        reasons = np.full(len(ids), "", object)
        # of several reasons the first to happen
        for reason, applies in ((LEFT, has_left), (LATE, is_late), (LOST, is_lost)):
            reasons[applies] = reason
        return RoundEvents(
            moments=moments,
            clients=ids,
            lost=reasons,
            arrives=~(is_lost | is_late | has_left),
            round=round,
            begun=start,
        )

    def seconds_of(
        self, round: int, asked: Mapping[str, Sequence[int]], work_of: WorkOf
    ) -> dict[int, float]:
        seconds: dict[int, float] = {}
        for name, clients in asked.items():
            work = work_of(name, clients)
            shares = self.shares_of_steps(round, clients, work)
            seconds |= dict(zip(clients, self._seconds(clients, work, shares).tolist()))
        return seconds

    def _are_there(self, ids: np.ndarray, moments: np.ndarray) -> np.ndarray:
        """Whether each of the devices is there at its moment."""
        if self._presence is None:
            return np.ones(len(ids), bool)
        return self._presence(ids, moments)

    def _is_late(self, seconds: np.ndarray, has_no_step: np.ndarray) -> np.ndarray:
        """The clients whose update is not there at the deadline; where clients stop in time, those for whom not one step fits."""
        if self._model.stops_at_deadline:
            return has_no_step
        return seconds > self._model.deadline

    def share_of_work(self, name: str, work_of: WorkOf) -> ShareOfWork:
        def share_of_work(clients: Sequence[int], round: int) -> np.ndarray:
            return self.shares_of_steps(round, clients, work_of(name, clients))

        return share_of_work

    def shares_of_steps(self, round: int, clients: ClientNumbers, work: RoundWork) -> np.ndarray:
        """The share of its local steps that each of the clients makes [K], whoever else is asked."""
        ids = client_numbers(clients)
        shares = np.minimum(work.shares, self._model.shares_of_steps(ids, self._seed, round))
        # whoever makes fewer steps makes one at least
        shares = np.maximum(shares, 1 / work.steps)
        if self._model.stops_at_deadline:
            without_training = self._seconds(clients, work, np.zeros(len(ids)))
            training = self._seconds(clients, work, np.ones(len(ids))) - without_training
            fitting = (self._model.deadline - without_training) / training
            shares = np.minimum(shares, fitting.clip(0))
        return shares

    def _seconds(self, clients: ClientNumbers, work: RoundWork, shares: np.ndarray) -> np.ndarray:
        """The seconds in which each of the clients makes its update with a share of its steps, [K]."""
        ids = client_numbers(clients)
        # `take` reads rows of a large table three times as fast as an index
        of_training, down, up = self._rates.take(ids, axis=0).T
        receiving = work.bytes_down / down
        training = shares * work.samples / of_training
        sending = work.bytes_up / up
        return receiving + training + sending

    def wait(self) -> None:
        if self._presence is not None:
            self.time += LOOK_AGAIN_SECONDS

    def end_stage(self) -> None:
        self.under_way = []

    @property
    def columns(self) -> dict[str, float]:
        seconds = {SIMULATED_SECONDS: self.time}
        return seconds if self._ages is None else seconds | age_columns(self._ages)

    @property
    def checkpoint(self) -> dict[str, Any]:
        return {
            SIMULATED_SECONDS: self.time,
            UNDER_WAY: [*self.under_way],
        }

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        self.time = checkpoint[SIMULATED_SECONDS]
        # in the order of the heap
        self.under_way = [UnderWay(*event) for event in checkpoint[UNDER_WAY]]


def share_asked_for(name: str, work_of: WorkOf) -> ShareOfWork:
    """The share of work of devices that make all steps that they are asked for."""

    def share_of_work(clients: Sequence[int], round: int) -> np.ndarray:
        return work_of(name, clients).shares

    return share_of_work


def age_columns(ages: Sequence[int]) -> dict[str, float]:
    """The columns of the history with the ages of the updates of a round, in rounds; 0 where no update came."""
    known = np.array(ages or [0])
    return {MEAN_AGE: float(known.mean()), MAX_AGE: float(known.max())}


def _turns(event: UnderWay, round: int) -> list[Turn]:
    """The row of the timeline of an event that a round hears of; none of a client that is not followed."""
    if event.client >= FOLLOWED_CLIENTS:
        return []
    age = round - event.round
    turn = Turn(
        client=event.client,
        begun=event.begun,
        ended=event.moment,
        age=age,
        fate=event.lost or (COUNTED_LATER if age else TRAINED),
    )
    return [turn]


def client_numbers(clients: ClientNumbers) -> np.ndarray:
    """The numbers of clients as an array; fast for a range of a million."""
    if isinstance(clients, range):
        return np.arange(clients.start, clients.stop, clients.step)
    return np.asarray(clients, np.int64)


def clients_at(clients: ClientNumbers, places: np.ndarray) -> np.ndarray:
    """The numbers at these places of a sequence of clients; of a range of a million no other is made."""
    if isinstance(clients, range):
        return clients.start + clients.step * places
    return np.asarray(clients, np.int64)[places]


def simulated_devices(model: DeviceModel | None, clients: int, seed: int) -> Devices:
    """The devices of a run of so many clients; without a device model nothing is simulated."""
    if model is None:
        return NoDevices()
    return SimulatedDevices(model, clients, seed)
