"""The recording of a run: what the server saw and chose in each round, how clients' updates differ, and clients' parameters.

`ua.run(..., record="server + updates")`. A `Recording` says what is wanted, `RoundRecords` collects it in one long
table with the columns `round group part quantity layer client other value`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unalike._utils import spec
from unalike._utils.errors import UnalikeError, unknown
from unalike._utils.profiler_regions import Region, timed
from unalike._utils.tensor_files import read_tensors, round_file, write_bytes, write_tensors
from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import Cohort, ServerState
from unalike.methods.method import Method
from unalike.methods.notes import notes_to
from unalike.runtime.records.client_values import Entry, entries, matched_moments, moments
from unalike.training.server.updates import decode_updates

if TYPE_CHECKING:
    import pandas as pd

Hook = Callable[
    [int, "dict[str, Cohort]", "dict[str, ServerState]", "dict[str, ServerState]"], "list[Entry]"
]
"""A recording of one's own: called with the round, the cohorts, and the states before and after it, all by group; it returns
entries with at least `quantity` and `value`."""

RECORDS_FILE = "records.parquet"
PARAMETERS_FOLDER = "client-parameters"
COLUMNS = {
    "round": 0,
    "group": "",
    "part": "",
    "quantity": "",
    "layer": "",
    "client": -1,
    "other": -1,
    "value": float("nan"),
}
"""Columns of the table, with the value of an entry that says nothing else. `client` is -1 for the server."""
KINDS = (
    "server",
    "updates",
    "products",
    "time",
    "moments",
    "matched_moments",
    "entries",
    "clients",
)
AGGREGATION: Region = "aggregation"
COUNTED = {"clients": ("layers", "every"), "entries": ("entries", "first")}
"""Kinds with options -> the field of their option `layers`, a pattern, and their other option, a count."""


@dataclass(frozen=True)
class Recording:
    """A request to record a run.

    `server`: the notes of parts, the clients' weights, and the norms of the model and of its change by layer. `updates`: the
    norm of each client's update by layer, and the cosine of every two of them; `products`: the inner product of every two, by
    layer. `time`: the seconds of aggregation and server step in this process. `moments`: skewness, coefficient of variation and
    squared deviation of parameters over clients, by layer; `matched_moments`: the same after the hidden neurons of every client
    were renumbered to match the received model. `entries` and `layers` are patterns of the names of tensors: of the one the
    `first` entries are recorded, of the other the clients' parameters are kept `every` so many rounds; None records none.
    `hook` is a function of one's own.
    """

    server: bool = False
    updates: bool = False
    products: bool = False
    time: bool = False
    moments: bool = False
    matched_moments: bool = False
    entries: str | None = None
    first: int = 8
    layers: str | None = None
    every: int = 1
    hook: Hook | None = None

    @classmethod
    def of(cls, given: str | Hook | Recording | None) -> Recording | None:
        """Read `record=`: text such as "server + updates + clients(layers='head', every=10)", or a function.

        Raises:
            UnalikeError: for anything else.
        """
        if given is None or isinstance(given, Recording):
            return given
        if callable(given):
            return cls(hook=given)
        if not isinstance(given, str):
            raise UnalikeError(
                f"record={given!r}: expected text such as 'server + updates', or a function of the round"
            )
        wanted: dict[str, Any] = {}
        for call in spec.parse(given):
            if call.name not in KINDS:
                raise unknown("recording", call.name, KINDS)
            wanted |= _options(call, given)
        return cls(**wanted)

    @property
    def keeps_parameters(self) -> bool:
        """Whether parameters of single clients are kept."""
        return self.layers is not None or self.entries is not None

    @property
    def needs_updates(self) -> bool:
        """Whether each client's update must be kept after the round."""
        numbers = self.updates or self.products or self.moments or self.matched_moments
        return numbers or self.keeps_parameters or self.hook is not None


def _options(call: spec.Call, given: str) -> dict[str, Any]:
    """The fields of a recording that one kind sets. Raises `UnalikeError` for options that the kind does not have."""
    options = dict(call.parameters)
    if call.name not in COUNTED:
        if options:
            raise UnalikeError(f"record={given!r}: {call.name} takes no options")
        return {call.name: True}
    pattern, count = COUNTED[call.name]
    layers = options.pop("layers", "")
    number = options.get(count, 1)
    is_count = isinstance(number, int) and number >= 1
    if not isinstance(layers, str) or set(options) - {count} or not is_count:
        raise UnalikeError(
            f"record={given!r}: expected {call.name}(layers='PATTERN', {count}=10), where the pattern is found in names of "
            "parameters"
        )
    return {pattern: layers} | options


@dataclass
class RoundRecords:
    """Collects the entries of a run round by round."""

    recording: Recording
    folder: Path | None = None
    entries: list[Entry] = field(default_factory=list)
    parameters: dict[int, dict[int, Tree]] = field(default_factory=dict)
    """Round -> client -> its parameters after local training; in a folder they are files instead."""
    _notes: list[tuple[str, str, Any, str, str]] = field(default_factory=list)
    _seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Collect the notes of the server half of a round, and its seconds."""
        self._notes = []
        self._seconds = {}
        with ExitStack() as stack:
            if self.recording.server:
                stack.enter_context(notes_to(self._take_note))
            if self.recording.time:
                stack.enter_context(timed(self._seconds))
            yield

    def _take_note(self, *note: Any) -> None:
        self._notes.append(note)

    def round(
        self,
        number: int,
        method: Method,
        cohorts: dict[str, Cohort],
        before: dict[str, ServerState],
        after: dict[str, ServerState],
    ) -> None:
        """Add the records of a round: its number, the cohorts, and the server states before and after it, by group."""
        # What clients sent may be encoded; recorded is what the server made of it.
        cohorts = {
            group: _decoded(method, cohort, before[group]) for group, cohort in cohorts.items()
        }
        ids = {group: cohort.ids for group, cohort in cohorts.items()}
        found = [*self._note_entries(ids)]
        if self.recording.time:
            found.append(
                {"quantity": "aggregation_seconds", "value": self._seconds.get(AGGREGATION, 0.0)}
            )
        for group, cohort in cohorts.items():
            entries = self._of_group(cohort, before[group].params, after[group].params)
            found += [{"group": group} | entry for entry in entries]
        if self.recording.layers is not None and number % self.recording.every == 0:
            trained: dict[int, Tree] = {}
            for group, cohort in cohorts.items():
                trained |= self._trained(cohort, before[group].params)
            self._keep(number, trained)
        if self.recording.hook is not None:
            found += self.recording.hook(number, cohorts, before, after)
        self.entries += [COLUMNS | entry | {"round": number} for entry in found]

    def _of_group(self, cohort: Cohort, before: Tree, after: Tree) -> Iterator[Entry]:
        """Numbers about the model of a group, its clients' updates, and the values of single parameters at the clients."""
        wanted = self.recording
        ids = tuple(cohort.ids)
        if wanted.server:
            yield from _steps(before, after)
        if not cohort.stacked.update:
            return
        if wanted.updates:
            yield from _updates(cohort)
        if wanted.products:
            yield from _inner_products(cohort)
        if wanted.moments:
            yield from moments(cohort.update, before)
        if wanted.matched_moments:
            yield from matched_moments(cohort.update, before, ids)
        if wanted.entries is not None:
            yield from entries(cohort.update, before, after, ids, wanted.entries, wanted.first)

    def _note_entries(self, ids: dict[str, tuple[int, ...]]) -> Iterator[Entry]:
        """The notes of a round; `ids` are the clients of each group, in the order of a noted vector."""
        for group, quantity, value, part, layer in self._notes:
            about: Entry = {"group": group, "part": part, "quantity": quantity, "layer": layer}
            numbers = torch.as_tensor(value)
            values = numbers.detach().double().flatten().tolist()
            clients = ids.get(group, ())
            if not numbers.dim() or len(clients) != len(values):
                clients = (-1,) * len(values)  # about the server, not one of the clients each
            for client, number in zip(clients, values):
                yield about | {"client": client, "value": number}

    def _trained(self, cohort: Cohort, params: Tree) -> dict[int, Tree]:
        """Client -> its parameters after local training, of the layers that are kept."""
        pattern = re.compile(self.recording.layers or "")
        names = [name for name in cohort.stacked.update if pattern.search(name)]
        found: dict[int, Tree] = {}
        if not names:
            return found
        for i, client in enumerate(cohort.ids):
            found[client] = {name: (params[name] + cohort.update[name][i]).cpu() for name in names}
        return found

    def _keep(self, number: int, trained: dict[int, Tree]) -> None:
        """Keep the clients' parameters after a round, if there are any."""
        if not trained:
            return
        if self.folder is None:
            self.parameters[number] = trained
        else:
            flat = {f"{k}/{name}": t for k, own in trained.items() for name, t in own.items()}
            write_tensors(round_file(self.folder / PARAMETERS_FOLDER, number), flat)

    @property
    def table(self) -> pd.DataFrame:
        """All entries: `round group part quantity layer client other value`."""
        import pandas as pd

        table = pd.DataFrame(self.entries, columns=list(COLUMNS))
        return table.astype(
            {"round": "int32", "client": "int32", "other": "int32", "value": "float32"}
        )

    def read_parameters(self) -> dict[int, dict[int, Tree]]:
        """Round -> client -> its parameters after local training, from memory or from the folder."""
        found = dict(self.parameters)
        if self.folder is None:
            return found
        for path in sorted((self.folder / PARAMETERS_FOLDER).glob("round-*.safetensors")):
            clients = found.setdefault(int(path.stem.removeprefix("round-")), {})
            tensors, _ = read_tensors(path)
            for name, value in tensors.items():
                client, _, parameter = name.partition("/")
                clients.setdefault(int(client), {})[parameter] = value
        return found

    def save(self) -> None:
        """Write the table into the folder, atomically."""
        if self.folder is None:
            return
        # categories, since few words fill these columns
        texts = dict.fromkeys(("group", "part", "quantity", "layer"), "category")
        buffer = io.BytesIO()
        self.table.astype(texts).to_parquet(buffer, index=False)
        write_bytes(self.folder / RECORDS_FILE, buffer.getvalue())

    def load(self, until: int) -> None:
        """Read the entries of the folder up to and including round `until`. Raises `UnalikeError` for a damaged table."""
        import pandas as pd

        path = None if self.folder is None else self.folder / RECORDS_FILE
        if path is None or not path.exists():
            return
        try:
            table = pd.read_parquet(path)
            kept = table[table["round"] <= until]
            self.entries = kept[list(COLUMNS)].astype({"value": "float64"}).to_dict("records")  # type: ignore[assignment]
        except (OSError, ValueError, KeyError) as error:
            raise UnalikeError(f"cannot read {path}: {error}; restore or delete it") from None


def _decoded(method: Method, cohort: Cohort, before: ServerState) -> Cohort:
    """The cohort with its updates as the server reads them; without updates it stays as it is."""
    update = cohort.stacked.update
    if update:
        update = decode_updates(method, update, before)
    return replace(cohort, stacked=cohort.stacked._replace(update=update))


def _steps(before: Tree, after: Tree) -> Iterator[Entry]:
    """The norms of the model and of its change, by layer and for the whole model."""
    change = {name: after[name] - w for name, w in before.items()}
    for quantity, values in (("model_norm", after), ("step_norm", change)):
        yield {"quantity": quantity, "value": float(tree.norm(values))}
        for names in tree.layers(values):
            yield {
                "quantity": quantity,
                "layer": names[0],
                "value": float(tree.norm(tree.only(values, names))),
            }


def _updates(cohort: Cohort) -> Iterator[Entry]:
    """The norm of each client's update by layer and as a whole, and the cosine of every two updates."""
    count = len(cohort.ids)
    total = torch.zeros(count, count, dtype=torch.float64)
    for names in tree.layers(cohort.update):
        products = sum(
            (_products(cohort.update[name], count) for name in names), torch.zeros_like(total)
        )
        total += products
        for client, norm in zip(cohort.ids, products.diagonal().sqrt().tolist()):
            yield {"quantity": "update_norm", "layer": names[0], "client": client, "value": norm}
    # The whole update is the sum over layers of the inner products, which cosines need, too.
    norms = total.diagonal().sqrt()
    cosines = total / norms.outer(norms).clamp_min(torch.finfo(torch.float64).tiny)
    for i, client in enumerate(cohort.ids):
        yield {"quantity": "update_norm", "client": client, "value": float(norms[i])}
        for j in range(i + 1, count):
            yield {
                "quantity": "cosine",
                "client": client,
                "other": cohort.ids[j],
                "value": float(cosines[i, j]),
            }


def _inner_products(cohort: Cohort) -> Iterator[Entry]:
    """The inner product of every two updates, of a client's update with itself too, by layer."""
    count = len(cohort.ids)
    for names in tree.layers(cohort.update):
        products = torch.stack([_products(cohort.update[name], count) for name in names]).sum(0)
        for i, j in torch.triu_indices(count, count).T.tolist():
            pair = {"client": cohort.ids[i], "other": cohort.ids[j]}
            yield pair | {
                "quantity": "inner_product",
                "layer": names[0],
                "value": float(products[i, j]),
            }


def _products(update: Tensor, count: int) -> Tensor:
    """The inner products of K updates of one tensor, [K, K]."""
    rows = update.reshape(count, -1).cpu()
    return (rows @ rows.T).double()
