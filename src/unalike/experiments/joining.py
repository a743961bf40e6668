"""Several comparisons or runs side by side: what differs between them, what may be joined, and what may not."""

from __future__ import annotations

import string
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from unalike._utils.errors import UnalikeError
from unalike.experiments.comparison import Comparison, in_given_order
from unalike.reporting import wording

if TYPE_CHECKING:
    import pandas as pd

    from unalike.metrics.inference import Ranks
    from unalike.reporting.joined_page import JointContent

Settings = dict[str, Any]

NAMED = ("data", "partition", "clients", "federation")
"""What the clients are called. A federation knows nothing of its sites' samples but their numbers; its name vouches for them."""
DATA = (*NAMED, "data_dir", "plan", "fingerprint", "sizes")
"""What makes another partition of a study; anything else that differs makes another study."""
OWN = ("method", "baseline", "seeds", "seed")
"""What says which cells a comparison holds."""
MACHINE = ("executor", "device")
"""What changes speed and rounding."""


@dataclass(frozen=True)
class ComparisonFolder:
    """One folder that was given: a letter, the text it was given as, and what it holds."""

    letter: str
    given: str
    comparison: Comparison

    @cached_property
    def config(self) -> Settings:
        return tomllib.loads(self.comparison.facts.config)

    @cached_property
    def data(self) -> Settings:
        """Which clients: by name, and by the fingerprint of the first seed."""
        facts, config = self.comparison.facts, self.config
        found = {key: facts.partition.get(key, config.get(key)) for key in NAMED}
        return found | {"fingerprint": str(facts.partition.get("hash", "not said"))[:12]}

    @cached_property
    def training(self) -> Settings:
        """All that must agree before results are pooled: model, rounds, work, protocol, metric and version."""
        from unalike.metrics.statistics import headline, plain_protocol

        tables = self.comparison.rounds, self.comparison.clients
        settings = {k: v for k, v in self.config.items() if k not in (*DATA, *OWN, *MACHINE)}
        scored = {"metric": headline(tables[0]).column, "protocol": plain_protocol(*tables)}
        return settings | scored | {"unalike": self.comparison.facts.versions.get("unalike")}

    @cached_property
    def sizes(self) -> dict[int, list[tuple[Any, ...]]]:
        """Seed -> its clients with their numbers of samples, which a name of a partition cannot vouch for."""
        table = self.comparison.clients[["seed", "client", "n_train", "n_test"]].drop_duplicates(["seed", "client"])
        seeds = table["seed"].unique().tolist()
        return {s: list(table[table["seed"] == s].itertuples(index=False, name=None)) for s in seeds}

    def same_training(self, other: ComparisonFolder) -> bool:
        """Both came to their ends under the same settings."""
        ended = not (self.comparison.facts.unfinished or other.comparison.facts.unfinished)
        return ended and self.training == other.training

    def same_data(self, other: ComparisonFolder) -> bool:
        """The same clients under every seed that both have, as far as names, sizes and labels tell."""
        mine, others = self.comparison.facts, other.comparison.facts
        named = all(self.data[key] == other.data[key] for key in NAMED)
        told = (mine.label_counts, others.label_counts)  # None of a single run without a plan
        labels = None in told or told[0] == told[1]
        first = mine.seed != others.seed or (self.data["fingerprint"] == other.data["fingerprint"] and labels)
        return named and first and all(self.sizes[s] == other.sizes[s] for s in {*self.sizes} & {*other.sizes})

    @property
    def facts(self) -> Settings:
        """Everything that is laid side by side."""
        versions = {k: v for k, v in self.comparison.facts.versions.items() if k != "unalike"}
        machine = {k: self.config.get(k) for k in MACHINE}
        own = {"baseline": self.comparison.facts.baseline, "seeds": sorted(self.sizes)}
        return self.data | own | self.training | machine | versions


@dataclass(frozen=True)
class JoinedBlock:
    """Sources on the same clients with the same training, as one comparison."""

    name: str
    sources: Sequence[ComparisonFolder]
    comparison: Comparison

    @property
    def letters(self) -> str:
        return " + ".join(source.letter for source in self.sources)


@dataclass(frozen=True)
class Joined:
    """The sources in the order given, their blocks, and the blocks over which methods are ranked (none if fewer than two)."""

    sources: Sequence[ComparisonFolder]
    blocks: Sequence[JoinedBlock]
    pooled: Sequence[JoinedBlock]

    @property
    def differences(self) -> list[tuple[str, list[str]]]:
        """Aspect -> its value in each source, for the aspects in which they differ."""
        facts = [source.facts for source in self.sources]
        names = dict.fromkeys(name for own in facts for name in own)
        table = [(name, [_text(own.get(name)) for own in facts]) for name in names]
        return [(name, values) for name, values in table if len(set(values)) > 1]

    @property
    def obstacles(self) -> list[str]:
        """One sentence for each setting that keeps sources apart, each unfinished source, each label of several methods."""
        apart = {*self.sources[0].training}.union(*(source.training for source in self.sources))
        found = [
            f"{name.replace('_', ' ')} differs ({_said(self.sources, values)})"
            for name, values in self.differences
            if name in apart
        ]
        return found + _begun(self.sources) + _clashes(self.sources) + _homonyms(self.pooled)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Partitions (rows) x methods that all of them ran (columns), under the plain protocol.

        Each a mean over the seeds that all these methods have on the partition: another seed has another partition of its own. A
        label that stands for other methods elsewhere is left out.
        """
        import pandas as pd

        tables = {block.name: _by_seed(block.comparison) for block in self.pooled}
        left_out = _ambiguous(self.pooled)
        order = [m["label"] for m in self.pooled[0].comparison.facts.methods] if self.pooled else []
        shared = [m for m in order if m not in left_out and all(m in table for table in tables.values())]
        rows = {name: table[shared].dropna().mean() for name, table in tables.items()}
        return pd.DataFrame(rows).T.dropna(axis=1) if rows else pd.DataFrame()

    @property
    def ranks(self) -> Ranks | None:
        """Ranks of the shared methods over the pooled partitions; None below two of either."""
        from unalike.metrics.inference import ranks
        from unalike.metrics.statistics import headline

        if min(self.scores.shape) < 2:
            return None
        return ranks(self.scores, headline(self.pooled[0].comparison.rounds).sign)

    def page(self, title: str | None = None, target: float | None = None) -> str:
        """The report as one HTML document: the usual one where all sources make one comparison."""
        from unalike.reporting import joined_page
        from unalike.reporting.html import render

        if len(self.blocks) == 1:
            content = self.blocks[0].comparison.content(title, target)
            return render(replace(content, warnings=[*self._origin(), *content.warnings]))
        return joined_page.render(self.content(title, target))

    def _origin(self) -> list[str]:
        """Of several sources that make one comparison: which they are, and in what they differ all the same."""
        if len(self.sources) == 1:
            return []
        apart = [f"{name} ({_said(self.sources, values)})" for name, values in self.differences if name != "baseline"]
        given = wording.listing(f"{source.letter} ({source.given})" for source in self.sources)
        return [f"Joined from {given}" + (f", which differ in {wording.listing(apart)}." if apart else ".")]

    def content(self, title: str | None = None, target: float | None = None) -> JointContent:
        """What the page of several comparisons is made of; with a `target`, each says what it costs to get there."""
        from unalike.reporting.joined_page import JointContent, Pooled

        found = self.ranks
        return JointContent(
            title=title or f"{len(self.blocks)} comparisons side by side",
            parts=[(block.name, block.comparison.content(target=target)) for block in self.blocks],
            messages=[source.letter for source in self.sources],
            differences=[("given as", [source.given for source in self.sources]), *self.differences],
            obstacles=self.obstacles,
            pooled=None if found is None else Pooled(self.scores, found),
        )


def join(comparisons: Sequence[tuple[str, Comparison]]) -> Joined:
    """Lay comparisons side by side: `(what it was given as, comparison)` in the order of the report.

    Sources with the same clients, the same training and cells that do not contradict each other become one block, so that
    runs of single methods add up to a comparison. Blocks that share their training, but not their clients, are partitions
    of one study and are ranked over; nothing else is ever pooled.
    """
    if not comparisons:
        raise UnalikeError("found nothing to join; give one or more folders")
    named = {
        m["spec"]: m["label"] for _, c in reversed(comparisons) for m in c.facts.methods if m["label"] != m["spec"]
    }
    sources = [ComparisonFolder(_letter(i), given, _called(c, named)) for i, (given, c) in enumerate(comparisons)]
    groups: list[list[ComparisonFolder]] = []
    for source in sources:
        home = next((group for group in groups if all(_together(other, source) for other in group)), None)
        if home is None:
            groups.append([source])
        else:
            home.append(source)
    blocks = _named([JoinedBlock("", group, _merged(group)) for group in groups])
    kinds = [[b for b in blocks if b.sources[0].same_training(a.sources[0])] for a in blocks]
    kind = max(kinds, key=len)
    pooled = [block for i, block in enumerate(kind) if not any(_same(block, other) for other in kind[:i])]
    return Joined(sources, blocks, pooled if len(pooled) > 1 else [])


def _called(comparison: Comparison, named: dict[str, str]) -> Comparison:
    """With the names that other sources have for the same methods: the folder of a program's run knows only the parts."""
    facts = comparison.facts
    own = {m["label"] for m in facts.methods}
    new = {s: named[s] for s in own & named.keys() if named[s] not in own}
    if not new:
        return comparison

    def call(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
        return [row | {key: new.get(row[key], row[key])} for row in rows]

    facts = replace(
        facts,
        methods=call(facts.methods, "label"),
        baseline=new.get(facts.baseline, facts.baseline),
        wire=call(facts.wire, "method"),
        ends=call(facts.ends, "method"),
    )
    rounds, clients = (t.assign(method=t["method"].replace(new)) for t in (comparison.rounds, comparison.clients))
    return Comparison(rounds, clients, facts)


def _together(a: ComparisonFolder, b: ComparisonFolder) -> bool:
    return a.same_training(b) and a.same_data(b) and not _contradict(a, b)


def _same(a: JoinedBlock, b: JoinedBlock) -> bool:
    """Blocks on the same clients are one partition, of which a rank may be taken once."""
    return a.sources[0].same_data(b.sources[0])


def _contradict(a: ComparisonFolder, b: ComparisonFolder) -> str:
    """The first method that both hold under one name and seed with other fields or other numbers; empty for none."""
    specs = [{m["label"]: m["spec"] for m in source.comparison.facts.methods} for source in (a, b)]
    for label in specs[0].keys() & specs[1].keys():
        tables = [_cells(source.comparison, label) for source in (a, b)]
        shared = sorted({*tables[0]} & {*tables[1]})
        if specs[0][label] != specs[1][label] or any(not tables[0][s].equals(tables[1][s]) for s in shared):
            return label
    return ""


def _cells(comparison: Comparison, label: str) -> dict[int, pd.DataFrame]:
    table = comparison.rounds[comparison.rounds["method"] == label].drop(columns="seconds")
    return {s: _alone(table[table["seed"] == s]) for s in table["seed"].unique().tolist()}


def _alone(cell: pd.DataFrame) -> pd.DataFrame:
    """A cell as if it were kept by itself: which columns there are, their order and types are those of all cells beside it."""
    return cell.dropna(axis=1, how="all").sort_index(axis=1).convert_dtypes().reset_index(drop=True)


def _clashes(sources: Sequence[ComparisonFolder]) -> list[str]:
    return [
        f"{a.letter} and {b.letter} hold other results of {label} for the same settings and seed, so they are kept apart"
        for i, a in enumerate(sources)
        for b in sources[i + 1 :]
        if a.same_training(b) and a.same_data(b) and (label := _contradict(a, b))
    ]


def _by_seed(comparison: Comparison) -> pd.DataFrame:
    """Seeds x methods: what each run reached under the plain protocol."""
    from unalike.metrics.statistics import headline, tail_mean

    return tail_mean(comparison.rounds, headline(comparison.rounds).column).unstack("method")


def _ambiguous(blocks: Sequence[JoinedBlock]) -> dict[str, list[str]]:
    """Label -> its methods, for the labels that stand for several."""
    specs: dict[str, dict[str, None]] = {}
    for method in (m for block in blocks for m in block.comparison.facts.methods):
        specs.setdefault(method["label"], {})[method["spec"]] = None
    return {label: list(found) for label, found in specs.items() if len(found) > 1}


def _homonyms(blocks: Sequence[JoinedBlock]) -> list[str]:
    return [
        f"{label} stands for {len(specs)} methods ({'; '.join(specs)}), so it is not ranked"
        for label, specs in _ambiguous(blocks).items()
    ]


def _begun(sources: Sequence[ComparisonFolder]) -> list[str]:
    return [
        f"{source.letter} is unfinished ({source.comparison.facts.unfinished}), so nothing is joined with it"
        for source in sources
        if source.comparison.facts.unfinished
    ]


def _merged(group: Sequence[ComparisonFolder]) -> Comparison:
    """The union of the cells; a cell that several sources hold is taken from the first, the baseline from the first comparison."""
    import pandas as pd

    first = group[0].comparison
    if len(group) == 1:
        return in_given_order(first)
    baseline = next(
        (s.comparison.facts.baseline for s in group if len(s.comparison.facts.methods) > 1), first.facts.baseline
    )
    methods = {m["label"]: m for source in reversed(group) for m in source.comparison.facts.methods}
    order = dict.fromkeys(m["label"] for source in group for m in source.comparison.facts.methods)
    keys = {"rounds": ["method", "seed", "round"], "clients": ["method", "seed", "client"]}
    tables = {
        name: pd.concat([getattr(s.comparison, name) for s in group], ignore_index=True).drop_duplicates(key)
        for name, key in keys.items()
    }
    wire = {w["method"]: s.comparison.facts.wire for s in reversed(group) for w in s.comparison.facts.wire}
    facts = replace(
        first.facts,
        baseline=baseline,
        methods=[methods[label] for label in order],
        wire=[row for label in order for row in wire.get(label, []) if row["method"] == label],
        notes=list(dict.fromkeys(note for s in group for note in s.comparison.facts.notes)),
        ends=list({(e["method"], e["seed"]): e for s in reversed(group) for e in s.comparison.facts.ends}.values()),
        command="\n".join(dict.fromkeys(s.comparison.facts.command for s in group)),
        config="\n".join(dict.fromkeys(s.comparison.facts.config for s in group)),
    )
    return in_given_order(Comparison(tables["rounds"], tables["clients"], facts))


def _named(blocks: Sequence[JoinedBlock]) -> list[JoinedBlock]:
    """Blocks under the name of their data and partition, with how far they are and their letters where that is not unique."""
    names = [_told(block.sources[0].comparison) for block in blocks]
    return [
        replace(b, name=name if names.count(name) == 1 else f"{name} [{b.letters}]") for b, name in zip(blocks, names)
    ]


def _told(comparison: Comparison) -> str:
    done = comparison.facts.unfinished
    return f"{comparison.name} (unfinished: {done})" if done else comparison.name


def _said(sources: Sequence[ComparisonFolder], values: list[str]) -> str:
    kinds = {value: [s.letter for s, own in zip(sources, values) if own == value] for value in values}
    return ", ".join(f"{value} in {' and '.join(letters)}" for value, letters in kinds.items())


def _letter(i: int) -> str:
    return string.ascii_uppercase[i] if i < 26 else f"{string.ascii_uppercase[i % 26]}{i // 26}"


def _text(value: object) -> str:
    return "not said" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
