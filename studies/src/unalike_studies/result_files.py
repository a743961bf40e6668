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
SINGLE_CELL_FILES = "cell-*.parquet"
"""The files of a folder with the result of one cell."""
ALL_FILES = "*.parquet"
"""All files of a folder with results."""
COMPRESSION_LEVEL = 19
"""Level of Zstandard's compression."""
RESULT_FIELDS = tuple(field.name for field in fields(CellResult))


def save(result: CellResult, folder: Path) -> None:
    """Write the file of one cell."""
    write_bytes(folder / f"cell-{result.digest}.parquet", _parquet([_row(result)]))


def read(folder: Path, cells: Iterable[StudyCell]) -> Results:
    """The stored results of cells, under their present labels."""
    cells = list(cells)
    rows = _rows(folder, {cell.digest for cell in cells})
    results = []
    for cell in cells:
        if cell.digest in rows:
            result = _result(rows[cell.digest])
            results.append(result.labelled(cell))
    return Results(tuple(results))


def digests(folder: Path) -> set[str]:
    """The digests of the stored results of a folder."""
    stored: set[str] = set()
    for table in _tables(folder, ALL_FILES, ["digest"]):
        stored.update(table["digest"].to_pylist())
    return stored


def find(root: Path, wanted: Iterable[str]) -> dict[str, CellResult]:
    """Digest -> a result with it, of all studies and scales below `root`."""
    absent = set(wanted)
    results: dict[str, CellResult] = {}
    for folder in sorted(root.glob("*/*")):
        here = absent & digests(folder)
        if here:
            for digest, row in _rows(folder, here).items():
                results[digest] = _result(row)
            absent -= here
    return results


def gather(folder: Path, pattern: str = SINGLE_CELL_FILES, without: Collection[str] = ()) -> None:
    """Join files of a folder into one, without the results of some digests.

    The files are removed when the new one is written: after an interruption, a result is in both, which does no harm.
    """
    files = sorted(folder.glob(pattern))
    rows = {}
    for table in _tables(folder, pattern):
        for row in table.to_pylist():
            if row["digest"] not in without:
                rows[row["digest"]] = row

    # The order and the name follow from the content, so that the same results make the same file.
    if rows:
        ordered = sorted(rows.values(), key=_place_in_file)
        data = _parquet([_without_nulls(row) for row in ordered])
        joined = folder / f"cells-{sha256(data).hexdigest()[:16]}.parquet"
        write_bytes(joined, data)
        files = [file for file in files if file != joined]
    for file in files:
        file.unlink(missing_ok=True)


def _place_in_file(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["setting"], row["method"], row["seed"]


def estimates(folder: Path) -> dict[str, float]:
    """The estimates that a folder keeps: "METHOD, SETTING" -> seconds of one cell."""
    path = folder / ESTIMATES
    if not path.exists():
        return {}
    try:
        stored = json.loads(path.read_text())
        return {str(kind): float(seconds) for kind, seconds in stored.items()}
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
        names = file.schema_arrow.names
        if set(names) - set(RESULT_FIELDS) or "digest" not in names:
            listed = ", ".join(names)
            raise UnalikeError(
                f"{path} has the columns {listed}, not those of results; move it elsewhere"
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
    rows = {}
    for table in _tables(folder, ALL_FILES):
        # Only the wanted rows are turned into Python objects, which takes most of the time.
        with_digests = table.filter(pc.is_in(table["digest"], values))
        for row in with_digests.to_pylist():
            rows[row["digest"]] = row
    return rows


def _row(result: CellResult) -> dict[str, Any]:
    """The fields of a result; None for empty ones, since an empty mapping has no columns, and options as JSON."""
    values = {}
    for name in RESULT_FIELDS:
        value = _finite(getattr(result, name))
        is_empty = isinstance(value, list | dict) and not value
        values[name] = None if is_empty else value
    values["options"] = json.dumps(result.options)
    return values


def _result(row: dict[str, Any]) -> CellResult:
    values = _without_nulls(row)
    values["options"] = json.loads(row["options"])
    return CellResult(**values)


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    """The bytes of a file. Fields of mappings, such as the columns of `rounds`, are columns of their own."""
    columns = {}
    for name in RESULT_FIELDS:
        columns[name] = [row.get(name) for row in rows]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(columns),
        sink,
        compression="zstd",
        compression_level=COMPRESSION_LEVEL,
        use_dictionary=False,
    )
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
