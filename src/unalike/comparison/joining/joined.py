"""Several comparisons or runs side by side: their differences, what may be combined and ranked, and what may not."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

from unalike._utils.errors import UnalikeError
from unalike.comparison.comparison import Comparison
from unalike.comparison.joining.comparability import ComparisonFolder
from unalike.comparison.joining.merging import merge, with_shared_labels
from unalike.reporting import wording

if TYPE_CHECKING:
    import pandas as pd

    from unalike.reporting.joined_page import JoinedContent
    from unalike.statistics.ranks import Ranks


@dataclass(frozen=True)
class JoinedBlock:
    """Folders with the same clients and the same training, as one comparison."""

    name: str
    folders: Sequence[ComparisonFolder]
    comparison: Comparison

    @property
    def letters(self) -> str:
        """The letters of its folders, and what was given for the only one: `A + B`, `C: results/mild`."""
        letters = " + ".join(folder.letter for folder in self.folders)
        if len(self.folders) > 1:
            return letters
        return f"{letters}: {self.folders[0].given}"


@dataclass(frozen=True)
class Joined:
    """The folders in the order given, the blocks they make, and the blocks that methods are ranked over (none below two)."""

    folders: Sequence[ComparisonFolder]
    blocks: Sequence[JoinedBlock]
    pooled: Sequence[JoinedBlock]

    @property
    def differences(self) -> list[tuple[str, list[str]]]:
        """(setting, its value in each folder) for the settings in which the folders differ."""
        settings = [folder.all_settings for folder in self.folders]
        names: dict[str, None] = {}
        for of_folder in settings:
            names |= dict.fromkeys(of_folder)
        differing = []
        for name in names:
            values = [_text(of_folder.get(name)) for of_folder in settings]
            if len(set(values)) > 1:
                differing.append((name, values))
        return differing

    @property
    def obstacles(self) -> list[str]:
        """One sentence for each reason that keeps results apart."""
        training: set[str] = set()
        for folder in self.folders:
            training |= folder.training.keys()
        settings = [
            f"{name.replace('_', ' ')} differs ({self._values(values)})"
            for name, values in self.differences
            if name in training
        ]
        unfinished = [
            f"{folder.letter} is unfinished ({folder.comparison.facts.unfinished}), so nothing is joined with it"
            for folder in self.folders
            if folder.comparison.facts.unfinished
        ]
        ambiguous = [
            f"{label} stands for {len(specs)} methods ({'; '.join(specs)}), so it is not ranked"
            for label, specs in _labels_of_several_methods(self.pooled).items()
        ]
        return [*settings, *unfinished, *self._conflicts(), *ambiguous]

    def _conflicts(self) -> list[str]:
        sentences = []
        for a, b in combinations(self.folders, 2):
            if not (a.same_training(b) and a.same_data(b)):
                continue
            if label := a.conflicting_method(b):
                sentences.append(
                    f"{a.letter} and {b.letter} hold different results of {label} for the same settings and seed, so they are "
                    "kept apart"
                )
        return sentences

    def _values(self, values: list[str]) -> str:
        """The values of a setting with the letters of their folders: `2 in A and C, 3 in B`."""
        letters: dict[str, list[str]] = {}
        for folder, value in zip(self.folders, values):
            letters.setdefault(value, []).append(folder.letter)
        return ", ".join(
            f"{value} in {' and '.join(of_value)}" for value, of_value in letters.items()
        )

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Mean scores by partition (rows) and method (columns), for methods that ran on all partitions.

        A mean is over the seeds that all these methods have on the partition, since each seed has a partition of its own. A
        label that stands for several methods is left out. All are scored across clients as the first partition is.
        """
        import pandas as pd

        if not self.pooled:
            return pd.DataFrame()
        first = self.pooled[0].comparison.facts
        tables = {}
        for block in self.pooled:
            tables[block.name] = _scores_by_seed(block.comparison.judged_by(across=first.across))

        excluded = _labels_of_several_methods(self.pooled)
        shared = []
        for method in first.methods:
            label = method["label"]
            if label not in excluded and all(label in table for table in tables.values()):
                shared.append(label)
        means = {name: table[shared].dropna().mean() for name, table in tables.items()}
        return pd.DataFrame(means).T.dropna(axis=1)

    @property
    def ranks(self) -> Ranks | None:
        """Ranks of the shared methods over the pooled partitions; None below two of either."""
        from unalike.statistics.ranks import ranks

        if min(self.scores.shape) < 2:
            return None
        return ranks(self.scores, self.pooled[0].comparison.columns.metric.sign)

    def page(
        self, title: str | None = None, target: float | None = None, summary: bool = False
    ) -> str:
        """The report as one HTML document; if all folders make one comparison, the report of that comparison, or its summary.

        Raises `UnalikeError` for the summary of several comparisons.
        """
        from unalike.reporting import joined_page, summary_page
        from unalike.reporting.html import render

        if len(self.blocks) == 1:
            comparison = self.blocks[0].comparison
            facts = replace(comparison.facts, notes=[*self._joined_from(), *comparison.facts.notes])
            content = replace(comparison, facts=facts).content(title, target)
            return summary_page.render(content) if summary else render(content)
        if summary:
            raise UnalikeError(
                f"found a summary of {len(self.blocks)} comparisons, expected one; write a summary for each folder by itself"
            )
        return joined_page.render(self.content(title, target))

    def _joined_from(self) -> list[str]:
        """A note that names the folders of a comparison and the settings in which they differ; none for one folder."""
        if len(self.folders) == 1:
            return []
        settings = [
            f"{name} ({self._values(values)})"
            for name, values in self.differences
            if name != "baseline"
        ]
        folders = wording.listing(f"{folder.letter} ({folder.given})" for folder in self.folders)
        if not settings:
            return [f"Joined from {folders}."]
        return [f"Joined from {folders}, which differ in {wording.listing(settings)}."]

    def content(self, title: str | None = None, target: float | None = None) -> JoinedContent:
        """The content of the page of several comparisons. `target`: the score for which costs are compared."""
        from unalike.reporting.joined_page import JoinedContent

        ranks = self.ranks
        return JoinedContent(
            title=title or f"{len(self.blocks)} comparisons side by side",
            parts=[(block.name, block.comparison.content(target=target)) for block in self.blocks],
            letters=[folder.letter for folder in self.folders],
            differences=[
                ("given as", [folder.given for folder in self.folders]),
                *self.differences,
            ],
            obstacles=self.obstacles,
            pooled=None if ranks is None else (self.scores, ranks),
        )


def join(comparisons: Sequence[tuple[str, Comparison]], baseline: str | None = None) -> Joined:
    """Combine comparisons that belong together, and lay the others side by side.

    Folders with the same clients, the same training and no conflicting cells become one block, so that runs of single
    methods add up to a comparison. Blocks with the same training on different clients are partitions of one study: methods
    are ranked over them. Nothing else is pooled.

    `comparisons` are (folder as the user gave it, its comparison), in the order of the report. `baseline` is the label of the
    method that the others are compared with; None leaves each comparison its own. Raises `UnalikeError` if there is no comparison,
    or one lacks the baseline.
    """
    if not comparisons:
        raise UnalikeError("found nothing to join; give one or more folders")
    typed = [folder for folder, _ in comparisons]
    relabelled = with_shared_labels([comparison for _, comparison in comparisons])
    folders = []
    for i, comparison in enumerate(relabelled):
        judged = comparison.judged_by(baseline=baseline)
        folders.append(ComparisonFolder(_letter(i), typed[i], judged))

    blocks = []
    for group in _group_compatible(folders):
        merged = merge([folder.comparison for folder in group])
        _check_baseline(merged, group)
        blocks.append(JoinedBlock("", group, merged))
    blocks = _with_names(blocks)
    return Joined(folders, blocks, _partitions_of_one_study(blocks))


def _check_baseline(merged: Comparison, group: Sequence[ComparisonFolder]) -> None:
    """Raise `UnalikeError` if folders that make one comparison lack its baseline."""
    labels = [method["label"] for method in merged.facts.methods]
    if merged.facts.baseline not in labels:
        given = wording.listing(folder.given for folder in group)
        raise UnalikeError(
            f"found no {merged.facts.baseline!r} in {given}, which has {wording.listing(labels)}; the baseline must be in every "
            "folder: choose one of these, leave the folder out, or run the method on its clients"
        )


def _group_compatible(folders: Sequence[ComparisonFolder]) -> list[list[ComparisonFolder]]:
    """The folders in groups in which each may be combined with every other."""
    groups: list[list[ComparisonFolder]] = []
    for folder in folders:
        for group in groups:
            if all(other.combines_with(folder) for other in group):
                group.append(folder)
                break
        else:
            groups.append([folder])
    return groups


def _partitions_of_one_study(blocks: Sequence[JoinedBlock]) -> list[JoinedBlock]:
    """The largest set of blocks with the same training, one block for each partition; empty below two."""
    studies = []
    for block in blocks:
        first = block.folders[0]
        studies.append([one for one in blocks if one.folders[0].same_training(first)])
    partitions: list[JoinedBlock] = []
    for block in max(studies, key=len):
        if not any(block.folders[0].same_data(other.folders[0]) for other in partitions):
            partitions.append(block)
    return partitions if len(partitions) > 1 else []


def _with_names(blocks: Sequence[JoinedBlock]) -> list[JoinedBlock]:
    """Name each block after its data and partition, with its letters if several blocks have the same name."""
    names = [_name(block.folders[0].comparison) for block in blocks]
    named = []
    for block, name in zip(blocks, names):
        unique = name if names.count(name) == 1 else f"{name} [{block.letters}]"
        named.append(replace(block, name=unique))
    return named


def _name(comparison: Comparison) -> str:
    unfinished = comparison.facts.unfinished
    return f"{comparison.name} (unfinished: {unfinished})" if unfinished else comparison.name


def _scores_by_seed(comparison: Comparison) -> pd.DataFrame:
    """The score of each run by seed (rows) and method (columns), of the models in use."""
    from unalike.statistics.scores import tail_mean

    content = comparison.content()
    return tail_mean(content.rounds, content.deciding_column).unstack("method")


def _labels_of_several_methods(blocks: Sequence[JoinedBlock]) -> dict[str, list[str]]:
    """Label -> its specs, for the labels that have several."""
    specs: dict[str, list[str]] = {}
    for block in blocks:
        for method in block.comparison.facts.methods:
            of_label = specs.setdefault(method["label"], [])
            if method["spec"] not in of_label:
                of_label.append(method["spec"])
    return {label: of_label for label, of_label in specs.items() if len(of_label) > 1}


def _letter(i: int) -> str:
    """A to Z, then A1, B1, ..."""
    letter = string.ascii_uppercase[i % 26]
    return letter if i < 26 else f"{letter}{i // 26}"


def _text(value: object) -> str:
    if value is None:
        return "not said"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
