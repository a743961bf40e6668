"""The history of a run: a table with a row per round, and a table with a row per round and client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from unalike._utils.errors import DamagedRun
from unalike._utils.notebook import sparkline
from unalike._utils.registry import figures
from unalike._utils.tensor_files import write_bytes
from unalike.metrics.columns import NO_COLUMNS, Columns
from unalike.metrics.named_metrics import MISSING

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Row = dict[str, Any]

DIVERGED = "diverged"
ROUNDS_FILE = "rounds.parquet"
CLIENTS_FILE = "clients.parquet"
TIMELINE_FILE = "timeline.parquet"


class History:
    """`rounds`: round seconds evaluation_seconds participants loss accuracy macro_f1 train_loss bytes_down bytes_up, then the
    further metrics.

    `clients`: round client n_train n_test loss accuracy macro_f1 personal_accuracy status, then the further metrics:
    balanced_accuracy, for two classes roc_auc and average_precision, the user's own; regression has loss, rmse, mae and
    r2. Metrics that were chosen by name stand in front of the loss. Row r of `rounds` belongs to
    the model after r rounds; row 0 is the start. The plain columns hold the first protocol of the run, others carry their name in
    front, and scores of validation samples `val_` before the metric (`val_accuracy`, `personal_val_accuracy`). Where a round was
    not evaluated, or a method has no shared model, they are NaN. `epsilon` is what the rounds of a private method cost until then.
    `selected` marks the round that was chosen by validation samples, where one was, `personal_selected` that of the personal
    models, and so on. In a plan of several steps `stage` is the step number of the round's stage; it is NaN or absent for the
    first. `columns` says what each column of scores measures.

    `timeline`: round client begun ended age fate bytes_down bytes_up, of simulated devices and of sites: each client that a round
    heard of, as in `client_devices.simulated_clock.Turn`; empty without such devices.
    """

    def __init__(
        self,
        rounds: list[Row] | None = None,
        clients: list[Row] | None = None,
        columns: Columns = NO_COLUMNS,
        timeline: list[Row] | None = None,
    ):
        self.rows = rounds or []
        """The rows of `rounds`, oldest first."""
        self.client_rows = clients or []
        """The rows of `clients`, oldest first."""
        self.timeline_rows = timeline or []
        """The rows of `timeline`, oldest first."""
        self.columns = columns

    def add(self, row: Row, clients: list[Row], timeline: Sequence[Row] = ()) -> None:
        """Append a round."""
        self.rows.append(row)
        self.client_rows += clients
        self.timeline_rows += timeline

    @property
    def last_clients(self) -> list[Row]:
        """The rows of `clients` that belong to the newest round; none where it was not evaluated."""
        number = self.last["round"]
        first = len(self.client_rows)
        while first > 0 and self.client_rows[first - 1]["round"] == number:
            first -= 1
        return self.client_rows[first:]

    @property
    def rounds(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.rows)

    @property
    def clients(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.client_rows)

    @property
    def timeline(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.timeline_rows)

    @property
    def last(self) -> Row:
        """The newest row of `rounds`."""
        return self.rows[-1]

    @property
    def headline(self) -> str:
        """The newest score with its name, and of a private method epsilon: `accuracy 34.1 %, epsilon 2.1`; empty without both."""
        spent = f"epsilon {self.last['epsilon']:.3g}" if "epsilon" in self.last else ""
        return ", ".join(filter(None, (self.columns.text(self.last), spent)))

    @property
    def progress_row(self) -> Row:
        """The newest row with its headline, as progress callbacks get it."""
        return self.last | {"headline": self.headline}

    def select(self, rounds: dict[str, int]) -> None:
        """Mark the rounds that are best by columns such as `personal_val_accuracy`: in `personal_selected`, a column for each."""
        for name, best in rounds.items():
            column = self.columns.named(name)
            assert column is not None
            for row in self.rows:
                row[column.selected] = row["round"] == best

    @property
    def selected(self) -> dict[str, int]:
        """Protocol -> the round that was selected for it."""
        flags = {column.protocol: column.selected for column in self.columns.all}
        return {
            name: row["round"]
            for name, flag in flags.items()
            for row in self.rows
            if row.get(flag) is True
        }

    @property
    def final(self) -> int | None:
        """The selected round that the final models come from: that of the personal models, or else of the shared model."""
        return self.selected.get("personal", self.selected.get(self.columns.unprefixed_protocol))

    def plot(self, metric: str | None = None) -> go.Figure:
        """Draw a metric over the rounds, as the report does.

        Args:
            metric: a column of `rounds`; the score unless given.

        Returns:
            The Plotly figure.

        Raises:
            UnalikeError: there is no such column, or it holds no number.
        """
        return figures["history"](self, metric, "run")

    def sparkline(self) -> str:
        """The score over the rounds as a small drawing in HTML."""
        column = self.columns.shown(self.last)
        return (
            ""
            if column is None
            else sparkline(list(map(column.value, self.rows)), column.label, column.metric.text)
        )

    def __repr__(self) -> str:
        return f"<History of {len(self) - 1} round{'s' * (len(self) != 2)}, {len(self.client_rows)} rows of clients>"

    def _repr_html_(self) -> str:
        forms: Any = {
            column.name: column.metric.text
            for column in self.columns.all
            if column.name in self.rounds
        }
        table = self.rounds.to_html(
            max_rows=12, na_rep=MISSING, float_format="{:.4g}".format, formatters=forms
        )
        return self.sparkline() + str(table)

    def __len__(self) -> int:
        return len(self.rows)

    def save(self, folder: Path) -> None:
        """Write `columns.json`, `rounds.parquet`, `clients.parquet` and, if it has rows, `timeline.parquet`, each atomically."""
        self.columns.save(folder)
        tables = {ROUNDS_FILE: self.rounds, CLIENTS_FILE: self.clients}
        if self.timeline_rows:
            tables[TIMELINE_FILE] = self.timeline
        for name, table in tables.items():
            write_bytes(folder / name, table.to_parquet(index=False))

    @classmethod
    def load(cls, folder: Path, until: int | None = None) -> History:
        """Read a saved history, up to and including round `until`.

        Raises `DamagedRun` for a missing or damaged table, and for one that lacks a round.
        """
        import pandas as pd

        files = [folder / ROUNDS_FILE, folder / CLIENTS_FILE]
        if (folder / TIMELINE_FILE).exists():
            files.append(folder / TIMELINE_FILE)
        tables = []
        for file in files:
            try:
                tables.append(pd.read_parquet(file))
                if len(tables[-1]) and "round" not in tables[-1]:
                    raise ValueError("it has no column 'round'")
            except (OSError, ValueError) as error:
                raise DamagedRun(
                    f"cannot read {file}: {error}; restore it, or start in another folder"
                ) from error
        # Rounds after the newest checkpoint are trained again, so only those until it must be there.
        absent = {*range(1, (until or 0) + 1)}.difference(tables[0].get("round", ()))
        if absent:
            raise DamagedRun(
                f"{folder / ROUNDS_FILE} lacks round {min(absent)} of {until} that were done; restore it, or start in another "
                "folder"
            )
        kept = [t if until is None or t.empty else t[t["round"] <= until] for t in tables]
        rounds, clients, *timeline = map(_rows_of, kept)
        return cls(rounds, clients, Columns.load(folder), *timeline)


def _rows_of(table: pd.DataFrame) -> list[Row]:
    """The rows of a table, without marks of selected rounds: these are made again when a run ends."""
    marks = [column for column in table if str(column).endswith("selected")]
    return cast(list[Row], table.drop(columns=marks).to_dict("records"))


def last_stage(rows: Iterable[Row]) -> int:
    """The first round of the last stage: the models of a run are those of this stage, whatever the earlier ones trained."""
    later = [row for row in rows if row.get("stage", 0) > 0]
    return next((row["round"] for row in later if row["stage"] == later[-1]["stage"]), 0)
