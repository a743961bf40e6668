"""Write the pages of docs/methods from the docstrings of the catalogue: python docs/make_methods.py

The pages in docs/methods have the first paragraph of each docstring; those of the site have all of them (`in_full`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from unalike._utils.registry import documentation
from unalike.cli import method_guide
from unalike.methods.part import Part, parameters, registry

FOLDER = Path(__file__).with_name("methods")
NOTE = "`docs/make_methods.py` writes these pages from the docstrings."
MORE = "`unalike list methods NAME` and the site (`make docs`) also tell limit cases and deviations from the papers."


class Family(NamedTuple):
    """A page of the gallery: its title, what its methods have in common, and their names."""

    title: str
    intro: str
    names: tuple[str, ...]


FAMILIES = {
    "averaging": Family(
        "Averaging and references",
        "The baseline that everything is compared with, and references that are no candidates: they show what pooled data, "
        "no communication, or perfect knowledge of the clients would give.",
        ("fedavg", "fedsgd", "local_only", "centralised", "cluster_oracle"),
    ),
    "local_objectives": Family(
        "Local objectives",
        "Each client's loss gets a further term or another form, so that local training stays useful for all.",
        (
            *("fedprox", "feddyn", "moon", "fedntd", "fedgen", "fedcurv"),
            *("balanced_softmax", "fedlc", "feature_alignment"),
        ),
    ),
    "drift": Family(
        "Corrections and normalized updates",
        "The clients' gradients are corrected, or their updates are divided by their local progress.",
        (
            *("scaffold", "feddc", "adabest", "mimelite", "fedsam", "fedlesam", "extragradient"),
            *("fednova", "fedmix"),
        ),
    ),
    "exact": Family(
        "Exact fits",
        "Linear, logistic, Poisson and Cox models, fitted as if the samples were pooled, with standard errors.",
        ("newton", "newton_own_intercepts"),
    ),
    "server": Family(
        "Server optimizers and shrinking",
        "The combined update is changed before it is applied: by an optimizer on the server, or by shrinking weights.",
        (
            *("fedavgm", "fedacg", "fedadam", "fedyogi", "fedadagrad", "fedexp"),
            *("lws", "fedlws", "fixed_shrink", "learned_shrinking", "awd", "adadecay"),
        ),
    ),
    "aggregation": Family(
        "Weights and aggregation rules",
        "The weighted mean is replaced by other weights or another rule.",
        (
            "uniform",
            "feddisco",
            "ldawa",
            "fedlama",
            "matched",
            "fedsa",
            "fedpake",
            "fedlaw",
            "feddf",
            "fedbe",
            "fedex_lora",
            "flora",
            "fedbuff",
            "fedasync",
            "heterofl",
        ),
    ),
    "fair": Family(
        "Fair objectives",
        "Clients on which the model is bad count more, so that the worst one gains; the mean over the clients often loses.",
        ("q_ffl", "term", "afl"),
    ),
    "robust": Family(
        "Robust aggregation",
        "Rules that bound the influence of single clients, against hostile or broken ones.",
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
        (
            *("ditto", "apfl", "fedper", "fedrep", "fedbn", "fedbabu", "fedala", "fedgh", "fedpac"),
            *("lg_fedavg", "fedproto", "fedmd", "consensus", "fedrod", "fedamp", "creff", "pfedhn"),
            *("flop", "fedah", "fedas", "fedtgp", "pfedfda", "pfedla", "fedsa_lora"),
            *("perfedavg", "pfedme", "local_finetune", "conditional", "own_statistics"),
        ),
    ),
    "stages": Family(
        "Plans of several stages",
        "Remedies that train several models, ask the clients questions, or calibrate a model afterwards.",
        (
            "ifca",
            "clustered",
            "fedconcat",
            "ccvr",
            "fedetf",
            "floco",
            "combat",
            "data_sharing",
            "diagnosis",
        ),
    ),
    "selection": Family(
        "Selection of clients",
        "Who is asked in a round, to be added to any method: `fedavg + power_of_choice(d=20)`. Without one the run draws uniformly "
        "(`--sampling`). The column `chosen` of the table of clients says why a client was asked. "
        "[Slow, unequal and absent clients](../how_to/slow_clients.md#who-is-asked) helps to choose.",
        (
            *("uniform_cohort", "poisson_cohort", "cohort_by_size", "cohort_by_cluster"),
            *("round_robin", "named_clients", "power_of_choice", "oort", "pyramidfl", "favor"),
        ),
    ),
    "messages": Family(
        "Compression, noise, fixed parameters",
        "Parts to be added to other methods: they save bytes, bound or disturb what is sent, or fix a part of the model.",
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
            "ffa_lora",
        ),
    ),
}

ESCAPED = {"_": "\\_", "*": "\\*", "<": "&lt;"}


def index(entries: dict[str, method_guide.Entry], places: dict[str, str]) -> str:
    families = [
        f"## [{family.title}]({page}.md)\n\n{overview([entries[n] for n in family.names], page)}"
        for page, family in FAMILIES.items()
    ]
    names = [name for name, e in entries.items() if e.down == e.down]
    more = [combinations(names), parts_index(places, {*entries})]
    return "\n\n".join([INDEX.strip(), *families, *more, NOTE]) + "\n"


INDEX = """
# Methods

Which methods are there, and what does each send and keep? [What each family does](../explanation/remedies.md) helps to choose;
`unalike list methods NAME` prints one. Methods can be added, `"fedprox(mu=0.1) + lws"`, but [not all](#which-methods-combine).
You can [write your own](../tutorials/write_your_own_method.md), also [of several stages](../plans.md).

In a round of FedAvg the model goes down and up; server and client keep nothing between rounds. The tables list what differs,
in units of the model (its number of parameters): *down*, *up*, at the *server*, at the *client*. Plans, whose stages differ, and
references that no federation has are without numbers.
"""
TRAFFIC_OF_FEDAVG = {"down": "1", "up": "1", "server": "0", "client": "0"}
NO_NUMBER = "-"


def overview(entries: list[method_guide.Entry], page: str) -> str:
    """The methods of a family: one line for those like FedAvg, one for those without numbers, a table of the others."""
    plain = [e for e in entries if not traffic(e) and not e.needs]
    unnumbered = [e for e in entries if traffic(e) == NO_NUMBER and not e.needs]
    others = [e for e in entries if e not in plain and e not in unnumbered]
    told = []
    if plain:
        told.append(f"As FedAvg: {', '.join(link(e, page) for e in plain)}.")
    if unnumbered:
        told.append(f"Without numbers: {', '.join(link(e, page) for e in unnumbered)}.")
    if others:
        rows = ["| method | sent and kept | needs |", "|---|---|---|"]
        rows += [f"| {link(e, page)} | {traffic(e)} | {', '.join(e.needs)} |" for e in others]
        told.append("\n".join(rows))
    return "\n\n".join(told)


def link(entry: method_guide.Entry, page: str) -> str:
    return f"[`{entry.name}`]({page}.md#{entry.name})"


def traffic(entry: method_guide.Entry) -> str:
    """What a method sends and keeps in units of the model, where it differs from FedAvg; a dash where that is no number."""
    if entry.down != entry.down:
        return NO_NUMBER
    found = {name: method_guide.units(getattr(entry, name)) for name in TRAFFIC_OF_FEDAVG}
    return ", ".join(
        f"{name} {value}" for name, value in found.items() if value != TRAFFIC_OF_FEDAVG[name]
    )


def family_page(
    page: str, entries: dict[str, method_guide.Entry], places: dict[str, str], *, in_full: bool
) -> str:
    family = FAMILIES[page]
    intro = f"{family.intro} [When does it help?](../explanation/remedies.md)"
    if not in_full:
        intro += f" {MORE}"
    paragraphs = Paragraphs({}, in_full=in_full)
    sections = [section(page, entries[n], places, paragraphs) for n in family.names]
    return "\n\n".join([f"# {family.title}", intro, *sections]) + "\n"


def combinations(names: list[str]) -> str:
    """The pairs that are refused, each once. Methods that exclude the same ones, and each other, share a row."""
    refused = {a: refused_beside(a, names) for a in names}
    alone = [name for name in names if len(refused[name]) == len(names) - len([name, "fedavg"])]
    rows: dict[frozenset[str], list[str]] = {}
    for a, others in refused.items():
        others = others - {*alone}
        if others and a not in alone:
            rows.setdefault(frozenset(others | {a}), []).append(a)
    lines = ["| of these, one at most | and none of these beside it |", "|---|---|"]
    listed: set[str] = set()
    for excluded, together in rows.items():
        others = sorted(excluded - {*together} - listed)
        if others or len(together) > 1:
            lines.append(f"| {_listed(together)} | {_listed(others)} |")
        listed |= {*together}  # their pairs are in the table
    head = (
        "## Which methods combine\n\nAll pairs but these, which mostly replace the same thing, such as the aggregator or the "
        f"personal model; a refusal names its reason. {_listed(alone)} stands alone."
    )
    return "\n\n".join([head, "\n".join(lines)])


def refused_beside(name: str, names: list[str]) -> set[str]:
    return {b for b in names if b != name and method_guide.combines(name, b) is not None}


def _listed(names: list[str]) -> str:
    return " ".join(f"`{name}`" for name in names)


def parts_index(places: dict[str, str], methods: set[str]) -> str:
    """The parts that are no methods by their own names, each with a link if a method describes it."""
    names = [name for name in method_guide.parts() if name not in methods]
    links = [f"[`{name}`]({places[name]})" if name in places else f"`{name}`" for name in names]
    head = "Methods are made of parts, which spec text can name; `unalike list methods NAME` describes each:"
    return f"## Parts with other names\n\n{head}\n\n{', '.join(links)}."


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


class Paragraphs(NamedTuple):
    """The paragraphs of a page: text -> the method whose section has it."""

    told: dict[str, str]
    in_full: bool

    def new(self, name: str, docstring: str) -> str:
        """The paragraphs of a docstring that the page does not have yet, and links to the sections that have the others."""
        paragraphs = as_text(docstring).split("\n\n")
        if not self.in_full:
            return paragraphs[0]
        fresh, elsewhere = [], []
        for paragraph in paragraphs:
            first = self.told.setdefault(paragraph, name)
            if first == name:
                fresh.append(paragraph)
            elif first not in elsewhere:
                elsewhere.append(first)
        links = [f"The rest is as for [`{first}`](#{first})." for first in elsewhere]
        return "\n\n".join([*fresh, *links])


def section(
    page: str, e: method_guide.Entry, places: dict[str, str], paragraphs: Paragraphs
) -> str:
    """A method, and those of its parts that no other place describes."""
    here = f"{page}.md#{e.name}"
    pieces = [
        f"## {e.name}",
        f"`{e.usage}`",
        paragraphs.new(e.name, documentation(registry[e.name])),
    ]
    elsewhere = []
    for part in e.parts:
        if part.name == e.name:
            continue
        place = places[part.name]
        if place == here:
            pieces.append(f"**`{title(part, e.usage)}`**")
            pieces.append(paragraphs.new(e.name, documentation(type(part))))
        else:
            elsewhere.append(f"[`{title(part, e.usage)}`]({place})")
    if elsewhere:
        pieces.append(f"With {', '.join(elsewhere)}.")
    return "\n\n".join(pieces)


def title(part: Part, usage: str) -> str:
    """The spec text of a part, without the fields that the usage of its method shows with the same values."""
    shown = usage.partition("(")[2].removesuffix(")").split(", ")
    fields = [f"{name}={value!r}" for name, value in parameters(part).items()]
    others = [field for field in fields if field not in shown]
    return f"{part.name}({', '.join(others)})" if others else part.name


def as_text(docstring: str) -> str:
    """A docstring as Markdown: formulas may hold signs that Markdown would read, but within backticks."""
    return re.sub(
        "`[^`]*`|[_*<]", lambda found: ESCAPED.get(found[0], found[0]), docstring.replace("<-", "←")
    )


def pages(*, in_full: bool) -> dict[str, str]:
    """File name -> text of every page. Raises `ValueError` if a method is in no family, or in two."""
    entries = {name: method_guide.entry(name) for name in method_guide.published()}
    placed = sorted(name for family in FAMILIES.values() for name in family.names)
    if placed != sorted(entries):
        raise ValueError(
            f"in no family or in two: {sorted({*placed} ^ {*entries})}; change FAMILIES in docs/make_methods.py"
        )
    places = places_of_parts(entries)
    made = {"index.md": index(entries, places)}
    for page in FAMILIES:
        made[f"{page}.md"] = family_page(page, entries, places, in_full=in_full)
    return made


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in pages(in_full=False).items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
