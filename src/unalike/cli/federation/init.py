"""`unalike federation init`: make a federation's folder, keys and bundles."""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli import data_flags
from unalike.cli import flags as f
from unalike.cli.config_file import Config
from unalike.cli.federation.control import Folder
from unalike.cli.federation.keys import SiteKey, site_keys
from unalike.core.options import (
    MAX_SAMPLES,
    FederationOptions,
    ModelOptions,
    RecordOptions,
    RoundOptions,
    SeedOptions,
    SharedRunOptions,
    StartOptions,
    ValidationOptions,
)

NAME = "init"

Names = Annotated[
    str,
    typer.Option(
        help="Number of sites, or their names, also with the largest number of samples: 5, or north:120,south:95."
    ),
]
Shape = Annotated[
    str | None, typer.Option(help="Shape of a sample, such as 1,28,28, instead of --like.")
]
Classes = Annotated[
    str | None, typer.Option(help="Number of classes, or their names: 10, or no,yes.")
]
Samples = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Most training samples that a site may claim; by its --summary a tenth more than its table has, else 1000000.",
        show_default=False,
    ),
]


@f.uses_flags(
    ModelOptions,
    RoundOptions,
    SeedOptions,
    ValidationOptions,
    SharedRunOptions,
    FederationOptions,
    RecordOptions,
    work=f.work,
)
def terms(
    method: f.Method = "fedavg",
    *,
    work: Any,
    **options: Any,
) -> dict[str, Any]:
    """The terms of a federation that flags set, by name."""
    for name in ("participation", "quorum"):
        options[name] = share_or_number(name, options[name])
    return options | {"method": method, "work": work}


@f.uses_flags(table=data_flags.table, start=f.values_of(StartOptions), terms=terms)
def command(
    folder: Annotated[Path, typer.Argument(help="New folder for the federation.")],
    sites: Names = "3",
    host: Annotated[
        list[str],
        typer.Option(
            help="Name or address under which sites reach this machine; repeat for further ones. Bundles have the first."
        ),
    ] = ["localhost"],  # noqa: B006
    port: Annotated[int, typer.Option(help="Port that sites connect to.")] = 8443,
    listen: Annotated[str, typer.Option(help="Address of this machine to listen on.")] = "0.0.0.0",
    name: Annotated[
        str | None, typer.Option(help="Name of the federation; the folder's name unless given.")
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            help="Data set or file with samples like those of the sites; defines the shape, and the encoding of tables."
        ),
    ] = None,
    summary: Annotated[
        list[Path],
        typer.Option(
            help="Summary of a site's table, by `unalike federation summarize`; repeat for every site. Instead of --like.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    *,
    table: dict[str, Any],
    shape: Shape = None,
    classes: Classes = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Samples are integers, as for text.")
    ] = False,
    samples: Samples = None,
    site_key: SiteKey = [],  # noqa: B006
    test: Annotated[
        str | None,
        typer.Option(help="File with test samples of the server, for --protocol server."),
    ] = None,
    proxy: Annotated[
        str | None,
        typer.Option(
            help="File with samples of the server, for methods that learn from them; of fedmd each bundle has them, too."
        ),
    ] = None,
    start: dict[str, Any],
    terms: dict[str, Any],
    config: Config = None,
) -> None:
    """Make a federation's folder, and one bundle for each site.

    The folder holds a certificate authority, its certificates and all keys.

    \b
    unalike federation init hospitals --sites 5 --like sample.csv --target outcome --host fed.example.org --method fedmix
    unalike federation init hospitals --sites north,south --summary north.json --summary south.json --method fedmix
    unalike federation init scans --sites north,south --shape 1,64,64 --classes benign,malignant --model cnn

    A bundle holds secret keys, unless the site made them (--site-key): send it over a private channel, and delete it here.
    """
    from unalike.data.sanity import listed
    from unalike.federation.coordinator.federation_folder import FederationFolder
    from unalike.federation.protocol.agreed_methods import notes_on_methods, notes_on_public
    from unalike.federation.site.site_data import own_samples
    from unalike.federation.site.site_policy import SitePolicy

    accept = table.get("accept", False)

    # one of three sources says what a sample is
    by_hand = shape is not None or classes is not None or tokens
    sources = [like is not None, bool(summary), by_hand]
    if sum(sources) > 1:
        raise UnalikeError(
            "--like FILE or --summary FILE already defines the samples; give one of them, and leave out --shape, --classes and "
            "--tokens"
        )
    if summary:
        schema = schema_of(summary, accept=accept)
    elif like is not None:
        schema = schema_like(data_flags.spec(like, table), accept=accept)
    else:
        schema = _typed_schema(shape, classes, table.get("task"), tokens)

    # the server's samples are read with the sites' encoding, which has chosen the columns already
    reading = {
        name: value
        for name, value in table.items()
        if name not in ("group", "unit", "split_by", "drop", "date")
    }
    server_samples = {}
    for name_of_samples, file in (("test", test), ("proxy", proxy)):
        if file:
            spec = data_flags.spec(file, reading)
            server_samples[name_of_samples] = own_samples(cast(Any, schema), spec)
    caps = sample_caps(sites, samples, summary)
    created = FederationFolder.create(
        folder,
        caps,
        host=host[0],
        names=host[1:],
        port=port,
        listen=listen,
        name=name or folder.resolve().name,
        data=schema,
        own=server_samples,
        keys=site_keys(site_key),
        **start,
        **terms,
    )

    # what the operator should know, and has to do now
    val = terms["val"]
    least = SitePolicy().least_test
    not_validating = sites_without_validation(caps, summary, val, least) if val else []
    if not_validating:
        print(
            f"note: --val {val:g} leaves fewer than {least} validation samples at {listed(not_validating)}: there they train, and "
            "the site validates nothing: a larger --val helps, or a lower least_test in its site.toml"
        )
    untested = sites_without_scores(summary, least)
    if untested:
        print(
            f"note: a fifth of the rows tests, fewer than {least} at {listed(untested)}: there all rows train, the site keeps its "
            "model, and no score leaves it; least_test in its site.toml may be lower"
        )
    for note in [*notes_on_methods(created.federation), *notes_on_public(created.federation)]:
        print(note)
    if created.federation.data.encoding is not None:
        source = like or f"{len(summary)} summaries"
        print(
            f"every bundle holds the encoding of tables: scales and categories (or words) of {source}"
        )
    print(f"made {folder.resolve()}; hand over, each to its site alone:")
    for site, bundle in created.bundles.items():
        print(f"  {site}: {bundle}")
    print(
        f"fingerprint, to be compared by telephone with `unalike join --show`: {created.fingerprint}"
    )
    print(
        f"then `unalike federation up {folder}` here, and `unalike join BUNDLE --data FILE` on every site"
    )


def enrol(
    folder: Folder,
    site: Annotated[
        str, typer.Argument(help="New site and its largest number of samples: west:500.")
    ],
    site_key: SiteKey = [],  # noqa: B006
) -> None:
    """Enrol a further site in a federation that is open (`init --open`), for the next runs.

    \b
    unalike federation enrol hospitals west:500
    unalike federation run hospitals --again

    The federation must not be up. The other sites keep their bundles.
    """
    from unalike.federation.coordinator.federation_folder import FederationFolder

    home = FederationFolder(folder)
    keys = site_keys(site_key)
    with home.held():
        for name, samples in sample_caps(site, None, []).items():
            bundle = home.enrol_anew(name, keys.get(name), samples)
            print(f"hand over to {name} alone: {bundle}")


def share_or_number(name: str, value: float) -> float | int:
    """A value up to 1 is a share of the sites, a larger one a number of sites. Raises `UnalikeError` for other values."""
    if 0 < value <= 1:
        return value
    if value < 1 or not value.is_integer():
        raise UnalikeError(
            f"--{name} {value:g}: expected a share of sites above 0 and up to 1, or a number of sites"
        )
    return int(value)


def sample_caps(text: str, samples: int | None, summaries: Sequence[Path]) -> dict[str, int]:
    """Site -> the most training samples it may claim: as in north:120, else `samples`, else a tenth more than its table's rows."""
    # the names, and the numbers behind some of them
    names = []
    typed_caps = {}
    for entry in text.split(","):
        name, colon, number = entry.partition(":")
        names.append(name.strip())
        if colon:
            typed_caps[name] = number
    if text.isdecimal():
        names = [f"site-{i + 1}" for i in range(int(text))]

    if not names or len(set(names)) < len(names):
        raise UnalikeError(
            f"--sites {text}: no site, or two of one name; expected 1 or more, or names, each once"
        )
    if not all(number.strip().isdecimal() and int(number) for number in typed_caps.values()):
        raise UnalikeError(
            f"--sites {text}: expected names, or names with positive numbers of samples such as north:120,south:95"
        )
    summarized = {file.stem for file in summaries}
    if summarized and len(summarized) < len(names):
        missing = [name for name in names if name not in summarized]
        raise UnalikeError(
            f"found summaries of {', '.join(sorted(summarized))}; expected one of every site, also of "
            f"{', '.join(missing)}; north.json is the one of north"
        )

    # the surest first: the number behind a site's name, that of --samples, that of its summary
    from_summaries = {}
    if samples is None:
        for file in summaries:
            from_summaries[file.stem] = math.ceil(11 * _rows_of_table(file) / 10)
    caps = {name: samples or from_summaries.get(name, MAX_SAMPLES) for name in names}
    for name, number in typed_caps.items():
        caps[name.strip()] = int(number)
    return caps


def sites_without_validation(
    caps: Mapping[str, int], summaries: Sequence[Path], val: float, least: int
) -> list[str]:
    """The sites with fewer than `least` validation samples, by their summaries, or else by the training samples they may claim."""
    from unalike.data.sources.table_summary import TableSummary

    expected = {site: most * val / (1 - val) for site, most in caps.items()}
    for file in summaries:
        expected[file.stem] = TableSummary.load(file).rows * val
    return [site for site, samples in expected.items() if samples < least]


def _rows_of_table(summary: Path) -> int:
    """The rows of the table of a summary, which is of the four fifths that do not test."""
    from unalike.data.sources.table_summary import TableSummary

    return math.ceil(5 * TableSummary.load(summary).rows / 4)


def sites_without_scores(summaries: Sequence[Path], least: int) -> list[str]:
    """The sites of which a fifth of the rows, which tests, is fewer than `least`, by their summaries of the other rows."""
    return [file.stem for file in summaries if _rows_of_table(file) // 5 < least]


def schema_like(data: str, accept: bool = False) -> object:
    """The schema of a data set's samples. Doubtful columns raise `UnalikeError` unless they are accepted."""
    from unalike.data.columns import DoubtfulColumn
    from unalike.data.sources.load import load
    from unalike.federation.protocol.federation_file import Schema

    with warnings.catch_warnings():
        warnings.simplefilter("default" if accept else "error", DoubtfulColumn)
        try:
            dataset = load(data)
        except DoubtfulColumn as doubt:
            raise UnalikeError(
                f"{doubt}. Every site gets the values that are agreed on; --accept keeps them"
            ) from None
    return Schema.like(dataset.train, dataset.classes, dataset.known_task, dataset.encoding)


def schema_of(files: Sequence[Path], accept: bool = False) -> object:
    """The schema that the sites' summaries agree on; prints the sets in which they differ, side by side.

    Raises `UnalikeError`, unless they are accepted, for sets that may be one in several writings.
    """
    from unalike.data.sources.table_summary import TableSummary, agreed, codings
    from unalike.federation.protocol.federation_file import Schema

    summaries = {file.stem: TableSummary.load(file) for file in files}
    encoding, target = agreed(summaries, accept)
    for coding in codings(summaries):
        print(f"{coding}")
    return Schema(
        shape=(encoding.width,),
        classes=target.classes or None,
        task=target.kind,
        encoding=encoding,
        label_shape=target.label_shape,
    )


def _typed_schema(shape: str | None, classes: str | None, task: str | None, tokens: bool) -> object:
    """The schema that flags describe."""
    from unalike.core.tasks.classification import ASSUMED_TASK
    from unalike.core.tasks.registry import find_task
    from unalike.federation.protocol.federation_file import Schema

    if shape is None:
        raise UnalikeError(
            "the schema of the sites' samples is missing; give --like FILE, --summary FILE of every site, or --shape 1,28,28 "
            "--classes 10"
        )
    try:
        sizes = tuple(int(n) for n in shape.split(","))
    except ValueError:
        raise UnalikeError(f"--shape {shape!r}; expected sizes such as 1,28,28") from None
    # the number of classes, or their names
    class_names: Any = None
    if classes is not None:
        class_names = int(classes) if classes.isdecimal() else tuple(classes.split(","))
    # a task whose labels have as many numbers as there are labels, which are its classes here
    named = ASSUMED_TASK if task is None else find_task(task)
    count = class_names if class_names is None or isinstance(class_names, int) else len(class_names)
    named = named.with_classes(count)
    label_shape = named.shape_of_labels(sizes, count)
    if label_shape and named.label_shape is None:
        class_names = None
    return Schema(
        shape=sizes,
        classes=class_names,
        task=named.spec,
        tokens=tokens,
        label_shape=label_shape,
    )
