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
        "Linear, logistic, Poisson and Cox models, fitted as if the samples were pooled, with standard errors.",
        "exact-fits",
        ("newton", "newton_own_intercepts"),
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

This page answers: which methods are there, and what does each send and keep? Methods can be added: `"fedprox(mu=0.1) + lws"`.
[What each family does](../explanation/remedies.md) helps to choose; `unalike list methods NAME` prints one entry.

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


def family_page(page: str, entries: dict[str, method_guide.Entry], places: dict[str, str]) -> str:
    family = FAMILIES[page]
    when = f"[When it helps, and when it cannot](../explanation/remedies.md#{family.section})."
    return (
        "\n\n".join(
            [
                f"# {family.title}",
                f"This page answers: what do these methods compute? {family.intro} {when}",
                *(section(page, entries[n], places) for n in family.names),
                NOTE,
            ]
        )
        + "\n"
    )


def combinations(names: list[str]) -> str:
    """The page of the pairs that are refused. Methods that exclude the same ones, and each other, share a row."""
    rows: dict[frozenset[str], list[str]] = {}
    for a in names:
        refused = {b for b in names if b != a and method_guide.combines(a, b) is not None}
        if refused:
            rows.setdefault(frozenset(refused | {a}), []).append(a)
    lines = ["| of these, one at most | and none of these beside it |", "|---|---|"]
    for excluded, together in rows.items():
        others = sorted(excluded - {*together})
        lines.append(f"| {_listed(together)} | {_listed(others)} |")
    head = (
        "# Which methods combine\n\nThis page answers: which two methods cannot be added? Mostly both replace the same thing, such "
        "as the aggregator or the personal model. All other pairs can be added; a refusal names its reason."
    )
    return "\n\n".join([head, "\n".join(lines), NOTE]) + "\n"


def _listed(names: list[str]) -> str:
    return " ".join(f"`{name}`" for name in names)


def parts_page(places: dict[str, str]) -> str:
    """Each part with the method that describes it; for those that no method has, the first sentence of their docstring."""
    rows = ["| part | described at |", "|---|---|"]
    for name in method_guide.parts():
        if name in places:
            text = f"[{places[name].partition('#')[2]}]({places[name]})"
        else:
            first, _, _ = documentation(registry[name]).partition("\n\n")
            text = as_text(first).replace("\n", " ").replace("|", "\\|")
        rows.append(f"| `{registry.usage(name)}` | {text} |")
    head = (
        "# All parts\n\nThis page answers: which parts are there, by their names in spec text, and where are formula, source and "
        "limit case of each? `unalike list methods NAME` prints them, too."
    )
    return "\n\n".join([head, "\n".join(rows), NOTE]) + "\n"


def places_of_parts(entries: dict[str, method_guide.Entry]) -> dict[str, str]:
    """Part name -> the place in the gallery that describes the part: its own section, else the first method that has it."""
    places: dict[str, str] = {}
    for page, family in FAMILIES.items():
        for name in family.names:
            for part in (name, *(p.name for p in entries[name].parts)):
                places.setdefault(part, f"{page}.md#{name}")
    for page, family in FAMILIES.items():
        places |= {name: f"{page}.md#{name}" for name in family.names}
    return places


def section(page: str, e: method_guide.Entry, places: dict[str, str]) -> str:
    """A method, and those of its parts that no other place describes."""
    here = f"{page}.md#{e.name}"
    texts = []
    for part in e.parts:
        if part.name == e.name:
            continue
        place = places[part.name]
        if place == here:
            texts.append(f"**`{spec_text(part)}`**\n\n{as_text(documentation(type(part)))}")
        else:
            texts.append(f"**`{spec_text(part)}`**: see [{place.partition('#')[2]}]({place}).")
    return "\n\n".join(
        [f"## {e.name}", f"`{e.usage}`", as_text(documentation(registry[e.name])), *texts]
    )


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
    places = places_of_parts(entries)
    made = {
        "index.md": index(entries),
        "combinations.md": combinations(adding),
        "parts.md": parts_page(places),
    }
    return made | {f"{page}.md": family_page(page, entries, places) for page in FAMILIES}


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
