"""`unalike federation init`: make a federation's folder, keys and bundles."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli import data_flags
from unalike.cli import flags as f
from unalike.cli.config_file import Config
from unalike.cli.federation.control import MOST_SAMPLES, Folder
from unalike.cli.federation.keys import SiteKey, site_keys
from unalike.core.options import (
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
        help="Largest number of training samples that a site may claim; by its --summary a tenth more than in there, else 1000000.",
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
    counts = {name: share_or_number(name, options[name]) for name in ("participation", "quorum")}
    return options | counts | {"method": method, "work": work}


@f.uses_flags(table=data_flags.table, start=f.values_of(StartOptions), terms=terms)
def command(
    folder: Annotated[Path, typer.Argument(help="New folder for the federation.")],
    sites: Names = "3",
    host: Annotated[
        str, typer.Option(help="Name or address under which sites reach this machine.")
    ] = "localhost",
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
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            help="Agree on columns of --like, too, that look like identifiers, or dates as texts.",
        ),
    ] = False,
    *,
    table: dict[str, Any],
    shape: Shape = None,
    classes: Classes = None,
    task: Annotated[
        str, typer.Option(help="classification, binary or regression.")
    ] = "classification",
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
        typer.Option(help="File with samples of the server, for methods that train on the server."),
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
    from unalike.federation.site.site_data import own_samples
    from unalike.federation.site.site_policy import SitePolicy

    by_hand = shape is not None or classes is not None or task != "classification" or tokens
    if (like is not None) + bool(summary) + by_hand > 1:
        raise UnalikeError(
            "--like FILE or --summary FILE already defines the samples; give one of them, and leave out --shape, --classes, --task "
            "and --tokens"
        )
    if summary:
        schema = schema_of(summary)
    elif like is not None:
        schema = schema_like(data_flags.spec(like, table), accept=accept)
    else:
        schema = _schema(shape, classes, task, tokens)
    own = {
        name: value
        for name, value in table.items()
        if name not in ("group", "unit", "drop", "date")
    }
    server_samples = {
        name: own_samples(cast(Any, schema), data_flags.spec(file, own))
        for name, file in (("test", test), ("proxy", proxy))
        if file
    }
    caps, val, least = sample_caps(sites, samples, summary), terms["val"], SitePolicy().least_test
    made = FederationFolder.create(
        folder,
        caps,
        host=host,
        port=port,
        listen=listen,
        name=name or folder.resolve().name,
        data=schema,
        own=server_samples,
        keys=site_keys(site_key),
        **start,
        **terms,
    )
    if few := [site for site, most in caps.items() if val and most * val / (1 - val) < least]:
        print(
            f"note: --val {val:g} leaves fewer than {least} validation samples at {listed(few)}, and a site with fewer evaluates "
            "on none: a larger --val helps, or a lower least_test in its site.toml"
        )
    if made.federation.data.encoding is not None:
        source = like or f"{len(summary)} summaries"
        print(
            f"every bundle holds the encoding of tables: scales and categories (or words) of {source}"
        )
    print(f"made {folder.resolve()}; hand over, each to its site alone:")
    for site, bundle in made.bundles.items():
        print(f"  {site}: {bundle}")
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

    home, made = FederationFolder(folder), site_keys(site_key)
    with home.held():
        for name, samples in sample_caps(site, None, []).items():
            print(f"hand over to {name} alone: {home.enrol_anew(name, made.get(name), samples)}")


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
    """Site -> the most training samples it may claim: as in north:120, else `samples`, else a tenth more than in its summary."""
    from unalike.data.sources.table_summary import TableSummary

    own = dict(name.split(":", 1) for name in text.split(",") if ":" in name)
    names = [name.partition(":")[0].strip() for name in text.split(",")]
    if text.isdecimal():
        names = [f"site-{i + 1}" for i in range(int(text))]
    if not names or len(set(names)) < len(names):
        raise UnalikeError(
            f"--sites {text}: no site, or two of one name; expected 1 or more, or names, each once"
        )
    if not all(number.strip().isdecimal() and int(number) for number in own.values()):
        raise UnalikeError(
            f"--sites {text}: expected names, or names with positive numbers of samples such as north:120,south:95"
        )
    named = {file.stem for file in summaries}
    if named and len(named) < len(names):
        raise UnalikeError(
            f"found summaries of {', '.join(sorted(named))}; expected one of every site, also of "
            f"{', '.join(name for name in names if name not in named)}; north.json is the one of north"
        )
    summed = {
        file.stem: math.ceil(1.1 * TableSummary.load(file).rows)
        for file in summaries
        if samples is None
    }
    usual = {name: samples or summed.get(name, MOST_SAMPLES) for name in names}
    return usual | {name.strip(): int(number) for name, number in own.items()}


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
    return Schema.like(dataset.train[0], dataset.classes, dataset.task, dataset.encoding)


def schema_of(files: Sequence[Path]) -> object:
    """The schema that the sites' summaries agree on."""
    from unalike.data.sources.table_summary import TableSummary, agreed
    from unalike.federation.protocol.federation_file import Schema

    encoding, target = agreed({file.stem: TableSummary.load(file) for file in files})
    return Schema((encoding.width,), target.classes or None, target.kind, False, encoding)


def _schema(shape: str | None, classes: str | None, task: str, tokens: bool) -> object:
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
    named = (
        None
        if classes is None
        else int(classes)
        if classes.isdecimal()
        else tuple(classes.split(","))
    )
    return Schema(
        shape=sizes, classes=named, task=cast(Any, task), tokens=tokens
    )  # Schema checks the task
