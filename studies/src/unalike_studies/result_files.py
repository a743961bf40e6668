"""Results in Parquet files: one row a cell, in any number of files of the folder studies/results/NAME/SCALE.

A cell that ends writes a file of its own, cell-DIGEST.parquet. When a run ends, `gather` joins its files into one,
cells-HASH.parquet, and changes no other file. The files of two machines therefore have different names, and git merges them.
"""

import json
import math
from collections.abc import Collection, Iterable
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike_studies.cells import StudyCell
from unalike_studies.results import CellResult, Results

FOLDER = Path("studies", "results")
"""The folder of results, below the root of the repository."""
ESTIMATES = "estimates.json"
"""The file of a folder of results that keeps the estimated seconds of cells."""
SINGLE, EVERY = "cell-*.parquet", "*.parquet"
"""Files of a folder with the result of one cell, and all files with results."""
LEVEL = 19
"""Level of Zstandard's compression."""
FIELDS = tuple(field.name for field in fields(CellResult))


def save(result: CellResult, folder: Path) -> None:
    """Write the file of one cell."""
    write_bytes(folder / f"cell-{result.digest}.parquet", _parquet([_row(result)]))


def read(folder: Path, cells: Iterable[StudyCell]) -> Results:
    """The stored results of cells, under their present labels."""
    cells = list(cells)
    rows = _rows(folder, {cell.digest for cell in cells})
    return Results(
        tuple(_result(rows[cell.digest]).labelled(cell) for cell in cells if cell.digest in rows)
    )


def digests(folder: Path) -> set[str]:
    """The digests of the stored results of a folder."""
    return {
        digest
        for table in _tables(folder, EVERY, ["digest"])
        for digest in table["digest"].to_pylist()
    }


def find(root: Path, wanted: Iterable[str]) -> dict[str, CellResult]:
    """Digest -> a result with it, of all studies and scales below `root`."""
    absent, results = set(wanted), dict[str, CellResult]()
    for folder in sorted(root.glob("*/*")):
        if here := absent & digests(folder):
            results |= {digest: _result(row) for digest, row in _rows(folder, here).items()}
            absent -= here
    return results


def gather(folder: Path, pattern: str = SINGLE, without: Collection[str] = ()) -> None:
    """Join files of a folder into one, without the results of some digests.

    The files are removed when the new one is written: after an interruption, a result is in both, which does no harm.
    """
    files = sorted(folder.glob(pattern))
    rows_there = (row for table in _tables(folder, pattern) for row in table.to_pylist())
    rows = {row["digest"]: row for row in rows_there if row["digest"] not in without}
    if rows:
        ordered = sorted(
            rows.values(), key=lambda row: (row["setting"], row["method"], row["seed"])
        )
        data = _parquet([_without_nulls(row) for row in ordered])
        joined = folder / f"cells-{sha256(data).hexdigest()[:16]}.parquet"
        write_bytes(joined, data)
        files = [file for file in files if file != joined]
    for file in files:
        file.unlink(missing_ok=True)


def estimates(folder: Path) -> dict[str, float]:
    """The estimates that a folder keeps: "METHOD, SETTING" -> seconds of one cell."""
    path = folder / ESTIMATES
    try:
        return (
            {}
            if not path.exists()
            else {str(name): float(s) for name, s in json.loads(path.read_text()).items()}
        )
    except (ValueError, AttributeError, TypeError) as error:
        raise UnalikeError(f"cannot read {path}: {error}; delete it") from None


def _tables(folder: Path, pattern: str, columns: list[str] | None = None) -> list[pa.Table]:
    """The tables of the files of a folder, listed anew where another process gathers them meanwhile."""
    while True:
        try:
            return [_table(path, columns) for path in sorted(folder.glob(pattern)) if path.exists()]
        except FileNotFoundError:
            continue


def _table(path: Path, columns: list[str] | None) -> pa.Table:
    """A table with the fields of `CellResult`. Raises `UnalikeError` for a damaged file, and one of something else."""
    try:
        file = pq.ParquetFile(path)
        if set(file.schema_arrow.names) - set(FIELDS) or "digest" not in file.schema_arrow.names:
            names = ", ".join(file.schema_arrow.names)
            raise UnalikeError(
                f"{path} has the columns {names}, not those of results; move it elsewhere"
            )
        return file.read(columns)
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise UnalikeError(
            f"cannot read {path}: {error}; delete it, and run its study again"
        ) from None


def _rows(folder: Path, wanted: set[str]) -> dict[str, dict[str, Any]]:
    """Digest -> row, of the results with these digests."""
    values = pa.array(wanted, pa.string())
    tables = (table.filter(pc.is_in(table["digest"], values)) for table in _tables(folder, EVERY))
    return {row["digest"]: row for table in tables for row in table.to_pylist()}


def _row(result: CellResult) -> dict[str, Any]:
    """The fields of a result; None for empty ones, since an empty mapping has no columns, and options as JSON."""
    values = {name: _finite(getattr(result, name)) for name in FIELDS}
    empty = {
        name: None for name, value in values.items() if isinstance(value, list | dict) and not value
    }
    return {**values, **empty, "options": json.dumps(result.options)}


def _result(row: dict[str, Any]) -> CellResult:
    return CellResult(**_without_nulls(row) | {"options": json.loads(row["options"])})


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    """The bytes of a file. Fields of mappings, such as the columns of `rounds`, are columns of their own."""
    table = pa.table({name: [row.get(name) for row in rows] for name in FIELDS})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", compression_level=LEVEL, use_dictionary=False)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _finite(value: Any) -> Any:
    """The value with None for each number that is not finite, and names as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def _without_nulls(value: Any) -> Any:
    """Mappings without the entries that only other rows of their file have."""
    if isinstance(value, dict):
        return {name: _without_nulls(entry) for name, entry in value.items() if entry is not None}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_without_nulls(entry) for entry in value]
    return value
