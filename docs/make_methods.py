"""Write the pages of docs/methods from the docstrings of the catalogue: python docs/make_methods.py"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from unalike._utils.registry import documentation
from unalike.cli import method_guide
from unalike.methods.part import registry, spec_text

FOLDER = Path(__file__).with_name("methods")
NOTE = "This page is written from the docstrings by `docs/make_methods.py`."


class Family(NamedTuple):
    """A page of the gallery: its title, what its methods have in common, and their names.

    `section` is the section of the page of remedies that says when the family helps.
    """

    title: str
    intro: str
    section: str
    names: tuple[str, ...]


FAMILIES = {
    "averaging": Family(
        "Averaging and references",
        "The baseline that everything is compared with, and references that are no candidates: they show what pooled data, "
        "no communication, or perfect knowledge of the clients would give.",
        "references",
        ("fedavg", "fedsgd", "local_only", "centralised", "cluster_oracle"),
    ),
    "local_objectives": Family(
        "Local objectives",
        "Each client's loss gets a further term or another form, so that local training stays useful for all.",
        "local-objectives",
        ("fedprox", "feddyn", "moon", "fedntd", "fedgen", "balanced_softmax", "feature_alignment"),
    ),
    "drift": Family(
        "Corrections and normalized updates",
        "The clients' gradients are corrected, or their updates are divided by their local progress.",
        "corrections-of-the-gradient",
        ("scaffold", "feddc", "fednova", "fedmix"),
    ),
    "exact": Family(
        "Exact fits",
        "Linear and logistic models, fitted as if the samples were pooled, with standard errors.",
        "exact-fits",
        ("newton",),
    ),
    "server": Family(
        "Server optimizers and shrinking",
        "The combined update is changed before it is applied: by an optimizer on the server, or by shrinking weights.",
        "server-optimizers",
        (
            *("fedavgm", "fedadam", "fedyogi", "fedadagrad"),
            *("lws", "fedlws", "fixed_shrink", "learned_shrinking", "awd", "adadecay"),
        ),
    ),
    "aggregation": Family(
        "Weights and aggregation rules",
        "The weighted mean is replaced by other weights or another rule.",
        "weights-and-aggregation-rules",
        ("uniform", "feddisco", "ldawa", "fedlama", "fedsa", "fedpake", "fedlaw", "feddf"),
    ),
    "robust": Family(
        "Robust aggregation",
        "Rules that bound the influence of single clients, against hostile or broken ones.",
        "robust-aggregation",
        (
            *(
                "median",
                "trimmed_mean",
                "krum",
                "multikrum",
                "bulyan",
                "geometric_median",
                "centered_clipping",
            ),
            *("norm_bound", "bucketing", "fltrust"),
        ),
    ),
    "attacks": Family(
        "Attacks",
        "What malicious clients of a simulation do, to be added to a method and a defence: `fedavg + median + alie(share=0.2)`. "
        "The clients are drawn from the seed, the same ones for every attack; scores are those of the others.",
        "attacks",
        (
            *(
                "label_flip",
                "backdoor",
                "scaling",
                "sign_flip",
                "free_rider",
                "gaussian_attack",
                "alie",
            ),
            "inner_product",
        ),
    ),
    "personal": Family(
        "Personal models",
        "Each client is evaluated with a model of its own.",
        "personal-models",
        (
            *("ditto", "apfl", "fedper", "fedrep", "fedbn", "fedbabu", "fedala", "fedgh", "fedpac"),
            *("perfedavg", "pfedme", "local_finetune", "conditional", "own_statistics"),
        ),
    ),
    "stages": Family(
        "Plans of several stages",
        "Remedies that train several models, ask the clients questions, or calibrate a model afterwards.",
        "groups-of-clients",
        ("ifca", "clustered", "fedconcat", "ccvr", "fedetf", "data_sharing", "diagnosis"),
    ),
    "messages": Family(
        "Compression, noise, fixed parameters",
        "Parts to be added to other methods: they save bytes, bound or disturb what is sent, or fix a part of the model.",
        "smaller-messages-and-noise",
        (
            "clip",
            "topk",
            "random_mask",
            "powersgd",
            "quantize",
            "half_precision",
            "gaussian_noise",
            "client_dp",
            "dp_sgd",
            "fixed",
        ),
    ),
}

ESCAPED = {"_": "\\_", "*": "\\*", "<": "&lt;"}


def index(entries: dict[str, method_guide.Entry]) -> str:
    families = [
        f"## [{family.title}]({page}.md)\n\n{family.intro}\n\n{table([entries[n] for n in family.names], page)}"
        for page, family in FAMILIES.items()
    ]
    return "\n\n".join([INDEX.strip(), *families, MORE.strip(), NOTE]) + "\n"


INDEX = """
# Methods

All methods, family by family. A method is a sum of parts, and any two methods that combine can be added: `"fedprox(mu=0.1) + lws"`.
[What each family does](../explanation/remedies.md) helps to choose; `unalike list methods NAME` prints one entry in the terminal.

*Down* and *up* are what a client receives and sends in a round, *server* and *client* what each of them keeps between rounds.
The unit is the model (its number of parameters).
"""
MORE = """
## More

- [Which methods combine](combinations.md)
- [All parts](parts.md) that methods are made of
- [Methods of several stages](../plans.md), and how to write one
- [Write your own method](../tutorials/write_your_own_method.md)
"""


def table(entries: list[method_guide.Entry], page: str) -> str:
    rows = [
        "| method | paper | down | up | server | client | needs |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for e in entries:
        numbers = " | ".join(method_guide.units(v) for v in (e.down, e.up, e.server, e.client))
        rows.append(
            f"| [`{e.name}`]({page}.md#{e.name}) | {e.source} | {numbers} | {', '.join(e.needs)} |"
        )
    return "\n".join(rows)


def family_page(page: str, entries: dict[str, method_guide.Entry]) -> str:
    family = FAMILIES[page]
    when = f"[When it helps, and when it cannot](../explanation/remedies.md#{family.section})."
    return (
        "\n\n".join(
            [
                f"# {family.title}",
                f"{family.intro} {when}",
                *(section(entries[n]) for n in family.names),
                NOTE,
            ]
        )
        + "\n"
    )


def combinations(names: list[str]) -> str:
    """The page of the pairs that are refused, by method."""
    rows = ["| method | cannot be added to |", "|---|---|"]
    for a in names:
        refused = [f"`{b}`" for b in names if b != a and method_guide.combines(a, b) is not None]
        if refused:
            rows.append(f"| `{a}` | {' '.join(refused)} |")
    head = (
        "# Which methods combine\n\nAny two methods can be added, except the pairs in this table. An exception is refused with the "
        "reason: mostly, both methods replace the same thing, such as the aggregator or the personal model."
    )
    return "\n\n".join([head, "\n".join(rows), NOTE]) + "\n"


def parts_page() -> str:
    parts = [
        f"## {n}\n\n`{registry.usage(n)}`\n\n{as_text(documentation(registry[n]))}"
        for n in method_guide.parts()
    ]
    head = "# All parts\n\nThe parts that methods are made of, by their names in spec text, with formula, source and limit case."
    return "\n\n".join([head, *parts, NOTE]) + "\n"


def section(e: method_guide.Entry) -> str:
    text = documentation(registry[e.name])
    others = [p for p in e.parts if p.name != e.name]
    parts = [f"**`{spec_text(p)}`**\n\n{as_text(documentation(type(p)))}" for p in others]
    return "\n\n".join([f"## {e.name}", f"`{e.usage}`", as_text(text), *parts])


def as_text(docstring: str) -> str:
    """A docstring as Markdown: formulas may hold signs that Markdown would read, but within backticks."""
    return re.sub(
        "`[^`]*`|[_*<]", lambda found: ESCAPED.get(found[0], found[0]), docstring.replace("<-", "←")
    )


def pages() -> dict[str, str]:
    """File name -> text of every page. Raises `ValueError` if a method is in no family, or in two."""
    entries = {name: method_guide.entry(name) for name in method_guide.published()}
    placed = sorted(name for family in FAMILIES.values() for name in family.names)
    if placed != sorted(entries):
        raise ValueError(
            f"in no family or in two: {sorted({*placed} ^ {*entries})}; change FAMILIES in docs/make_methods.py"
        )
    adding = [name for name, e in entries.items() if e.down == e.down]
    made = {
        "index.md": index(entries),
        "combinations.md": combinations(adding),
        "parts.md": parts_page(),
    }
    return made | {f"{page}.md": family_page(page, entries) for page in FAMILIES}


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
