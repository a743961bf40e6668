"""`unalike federation init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from unalike.cli import options as o

NAME = "init"

Names = Annotated[str, typer.Option(help="How many sites, or their names: 5, or north,south,west.")]
Shape = Annotated[str | None, typer.Option(help="Shape of a sample, such as 1,28,28, instead of --like.")]
Classes = Annotated[str | None, typer.Option(help="How many classes, or their names: 10, or no,yes.")]
Samples = Annotated[int, typer.Option(help="The most training samples that a site may count with.")]
Cohort = Annotated[float, typer.Option(help="Sites asked in a round: a share such as 0.5, or a number such as 3.")]
Quorum = Annotated[float, typer.Option(help="Sound reports that make a round, of those asked: a share or a number.")]
Deadline = Annotated[float, typer.Option(help="Seconds after which a round closes if the quorum has reported.")]
Patience = Annotated[int, typer.Option(help="Attempts at a round without quorum before the run pauses.")]
MessageBytes = Annotated[int, typer.Option(help="The most bytes of a message: well above the model's.")]
Guard = Annotated[
    float | None, typer.Option(help="Refuse updates whose norm is more than so many times the usual one.")
]


@o.shares(work=o.work)
def terms(
    method: Annotated[str, typer.Option(help="A method or a sum of them.")] = "fedavg",
    model: o.Model = "mlp",
    seed: o.Seed = 0,
    protocol: o.Protocol = ["clients"],  # noqa: B006  (Typer copies it)
    val: o.Val = 0.0,
    select: o.Select = "last",
    participation: Cohort = 1.0,
    quorum: Quorum = 1.0,
    deadline: Deadline = 600.0,
    evaluate_every: o.EvaluateEvery = 1,
    buffers: o.Buffers = "average",
    transform: o.Transform = None,
    *,
    work: Any,
) -> dict[str, Any]:
    """What the sites of a federation agree on, by name."""
    agreed = locals() | {"protocol": tuple(protocol)}
    return agreed | {name: share_or_number(name, agreed[name]) for name in ("participation", "quorum")}


@o.shares(terms=terms)
def command(
    folder: Annotated[Path, typer.Argument(help="A new folder for the federation.")],
    sites: Names = "3",
    host: Annotated[str, typer.Option(help="The name or address by which sites reach this machine.")] = "localhost",
    port: Annotated[int, typer.Option(help="The port that they connect to.")] = 8443,
    listen: Annotated[str, typer.Option(help="The address of this machine that listens.")] = "0.0.0.0",
    name: Annotated[str | None, typer.Option(help="The federation's name; the folder's unless given.")] = None,
    like: Annotated[
        str | None,
        typer.Option(
            help="A data set or file whose samples are like the sites': its shape, and of a table how it is encoded."
        ),
    ] = None,
    target: o.Target = None,
    shape: Shape = None,
    classes: Classes = None,
    task: Annotated[str, typer.Option(help="classification, binary or regression.")] = "classification",
    tokens: Annotated[bool, typer.Option("--tokens", help="Samples are whole numbers, as of text.")] = False,
    samples: Samples = 1_000_000,
    test: Annotated[
        str | None, typer.Option(help="Samples of this machine's own, for --protocol server: a file.")
    ] = None,
    proxy: Annotated[
        str | None, typer.Option(help="Samples of this machine's own, for methods that learn from some: a file.")
    ] = None,
    rounds: o.Rounds = 50,
    *,
    terms: dict[str, Any],
    patience: Patience = 3,
    message_bytes: MessageBytes = 2**30,
    guard: Guard = None,
    config: o.Config = None,
) -> None:
    """Make a federation, and a bundle to hand over for each site.

    The folder holds an authority and its certificates, and keys for everybody.

    \b
    unalike federation init hospitals --sites 5 --like sample.csv --target outcome --host fed.example.org --method fedmix
    unalike federation init scans --sites north,south --shape 1,64,64 --classes benign,malignant --model cnn

    A bundle is a key: send it to its site by a way that nobody else reads, and delete it here when it has arrived.
    """
    from unalike._utils.errors import UnalikeError
    from unalike.federation.operations.extras import require_extra

    require_extra()
    from unalike.federation.operations.federation_folder import FederationFolder
    from unalike.federation.site.site_data import own_samples

    if like is None:
        schema = _schema(shape, classes, task, tokens)
    elif shape is None and classes is None and task == "classification" and not tokens:
        schema = schema_like(o.table(like, target))
    else:
        raise UnalikeError("--like FILE says how samples look: leave out --shape, --classes, --task and --tokens")
    own = {
        name: own_samples(cast(Any, schema), o.table(file, target))
        for name, file in (("test", test), ("proxy", proxy))
        if file
    }
    made = FederationFolder.create(
        folder,
        dict.fromkeys(site_names(sites), samples),
        host=host,
        port=port,
        listen=listen,
        name=name or folder.resolve().name,
        data=schema,
        rounds=rounds,
        patience=patience,
        message_bytes=message_bytes,
        guard=guard,
        own=own,
        **terms,
    )
    if made.federation.data.encoding is not None:
        print(f"every bundle tells its site how tables are encoded: scales and categories (or words) of {like}")
    print(f"made {folder.resolve()}; hand over, each to its site alone:")
    for site, bundle in made.bundles.items():
        print(f"  {site}: {bundle}")
    print(f"then `unalike federation up {folder}` here, and `unalike join BUNDLE --data FILE` on every site")


def share_or_number(name: str, value: float) -> float | int:
    """1.0 and less is a share of the sites, more a number of them. Raises `UnalikeError` for what is neither."""
    from unalike._utils.errors import UnalikeError

    if value <= 1:
        return value
    if not value.is_integer():
        raise UnalikeError(f"--{name} {value}: expected a share of the sites up to 1, or a whole number of them")
    return int(value)


def site_names(text: str) -> list[str]:
    """The names of so many sites, or those that the text lists. Raises `UnalikeError` for one that is there twice."""
    from unalike._utils.errors import UnalikeError

    if text.isdecimal():
        return [f"site-{i + 1}" for i in range(int(text))]
    names = [name.strip() for name in text.split(",")]
    if len(set(names)) < len(names):
        raise UnalikeError(f"--sites {text}: two sites have one name; expected each name once")
    return names


def schema_like(data: str, data_dir: Path | None = None) -> object:
    """What a data set's samples look like."""
    import torch

    from unalike.data.sources.load import load
    from unalike.federation.protocol.federation_file import Schema

    found = load(data, data_dir)
    x, _ = found.train
    classes = None if found.classes is None or found.task.name != "classification" else tuple(found.classes)
    return Schema(
        tuple(x.shape[1:]), classes, cast(Any, found.task.name), not torch.is_floating_point(x), found.encoding
    )


def _schema(shape: str | None, classes: str | None, task: str, tokens: bool) -> object:
    from unalike._utils.errors import UnalikeError
    from unalike.federation.protocol.federation_file import Schema

    if shape is None:
        raise UnalikeError(
            "what the sites' samples look like is not known; give --like FILE, or --shape 1,28,28 --classes 10"
        )
    try:
        sizes = tuple(int(n) for n in shape.split(","))
    except ValueError:
        raise UnalikeError(f"--shape {shape!r}; expected sizes such as 1,28,28") from None
    named = None if classes is None else int(classes) if classes.isdecimal() else tuple(classes.split(","))
    return Schema(shape=sizes, classes=named, task=cast(Any, task), tokens=tokens)  # the class checks
