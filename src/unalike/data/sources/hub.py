"""Data sets from the Hugging Face hub, through `datasets` (the optional extra `hub`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike.data.dataset import Dataset
from unalike.data.other_libraries import stacked_inputs, stacked_labels
from unalike.data.sources.registry import registry
from unalike.data.sources.table_files import tokens
from unalike.data.table_encoding import Encoding


@registry.register("hub")
def hub(
    encoding: Encoding | None = None,
    *,
    path: str,
    x: str | tuple[str, ...] = "image",
    y: str | None = "label",
    config: str | None = None,
    train: str = "train",
    test: str | None = "test",
    length: int = 64,
    vocabulary: int = 20000,
    task: str | None = None,
) -> Dataset:
    """A data set of the Hugging Face hub, such as `hub(path='ylecun/mnist')`.

    Column `x` holds images, rows, texts or tokens of one length, column `y` the labels: classes, numbers, masks as images, or a
    class for each token. `task` names their task where their type does not imply it; one such as `next_token` needs none, `y=None`.
    Several text columns are joined by a space; several others, such as `('input_ids', 'attention_mask')`, are a dictionary of
    arrays. `train` and `test` name the splits (None: no test set); `length`, `vocabulary` and `encoding` are as for text files.
    Needs the extra: pip install 'unalike[hub]'.

    Raises `UnalikeError` without the package, the network, or such a split or column.
    """
    return of_tables(
        path,
        tables=_fetch(path, config),
        encoding=encoding,
        x=x,
        y=y,
        train=train,
        test=test,
        length=length,
        vocabulary=vocabulary,
        task=task,
    )


def of_tables(
    path: str,
    tables: Mapping[str, Any],
    encoding: Encoding | None = None,
    x: str | tuple[str, ...] = "image",
    y: str | None = "label",
    train: str = "train",
    test: str | None = "test",
    length: int = 64,
    vocabulary: int = 20000,
    task: str | None = None,
) -> Dataset:
    """The data set of the splits of `datasets.Dataset`; the other arguments are those of `hub`."""
    splits = [split for split in (train, test) if split is not None]
    columns = (x,) if isinstance(x, str) else x
    _check_columns(path, tables, splits, columns if y is None else (*columns, y))

    # The inputs of all splits, training first, so that texts have one vocabulary and images one size.
    inputs: list[Any] = []
    labels: list[Any] = []
    for split in splits:
        table = tables[split]
        if len(columns) == 1:
            inputs += list(table[columns[0]])
        elif isinstance(table[columns[0]][0], str):
            texts = [table[column] for column in columns]
            inputs += [" ".join(row) for row in zip(*texts)]
        else:
            arrays = [table[column] for column in columns]
            inputs += [dict(zip(columns, row)) for row in zip(*arrays)]
        if y is not None:
            labels += list(table[y])
    count = len(tables[train][columns[0]])
    samples: Any
    if isinstance(inputs[0], str):
        samples, encoding = tokens(inputs, count, length, vocabulary, encoding)
    else:
        samples = stacked_inputs(inputs, path)
        encoding = None
    name = path.split("/")[-1]
    if y is None:
        return Dataset.divided(name, samples, None, count, encoding=encoding, task=task)
    return Dataset.divided(
        name=name,
        x=samples,
        y=stacked_labels(labels, path),
        train=count,
        classes=getattr(tables[train].features[y], "names", None),
        encoding=encoding,
        task=task,
    )


def available() -> bool:
    """Return whether the package `datasets` can be imported."""
    try:
        import datasets  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        return False
    return True


def _fetch(path: str, config: str | None) -> Mapping[str, Any]:
    if not available():
        raise UnalikeError(
            f"{path} is fetched with the package datasets, found none: pip install 'unalike[hub]'"
        )
    import datasets

    try:
        return datasets.load_dataset(path, config)  # type: ignore[no-any-return,unused-ignore]
    except (OSError, ValueError) as error:
        raise UnalikeError(
            f"{path} could not be fetched from the Hugging Face hub ({error}); check "
            "the name and the network, or put the data set's files into the folder of "
            "data files"
        ) from None


def _check_columns(
    path: str, tables: Mapping[str, Any], parts: Sequence[str], columns: Sequence[str]
) -> None:
    missing = [part for part in parts if part not in tables]
    if missing:
        raise UnalikeError(
            f"{path} has no split {', '.join(missing)}; expected one of {', '.join(tables)}"
        )
    lacking = [column for column in columns if column not in tables[parts[0]].features]
    if lacking:
        names = ", ".join(tables[parts[0]].features)
        raise UnalikeError(
            f"{path} has no column {', '.join(lacking)}; it has {names}: name those of inputs and "
            "labels with x= and y="
        )
