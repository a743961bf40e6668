"""A study: a published table or figure as methods x settings x seeds at three scales, with the paper's claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from unalike._utils.errors import unknown
from unalike_studies.cells import Options, StudyCell, merge_options
from unalike_studies.claims import Claim
from unalike_studies.results import Results

if TYPE_CHECKING:
    from unalike.reporting.charts.figure import Figure


class Layout(Protocol):
    """A table or figure of stored results. Every layout gives a table."""

    @property
    def title(self) -> str:
        """The heading."""

    def table(self, results: Results) -> list[list[str]]:
        """The rows of a table as text, its heading first."""


@runtime_checkable
class DrawnLayout(Layout, Protocol):
    """A layout that is also drawn."""

    @property
    def name(self) -> str:
        """The name of the figure's files."""

    def figure(self, results: Results) -> Figure:
        """The figure."""


@dataclass(frozen=True)
class Variant:
    """A method of a study with options of its own, such as another model than the study's other methods have.

    Attributes:
        spec: spec text.
        options: options of its own.
        elsewhere: setting -> the spec text there, where it is another one.
    """

    spec: str
    options: Options = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """The cells of a study at one scale.

    Attributes:
        methods: label -> spec text, or a variant.
        settings: label -> the options that make this setting, such as its partition.
        common: options that all cells share; see `cells.OPTIONS`.
        seeds: the seeds.
        left_out: (method, setting) pairs that have no cell.
        reduced: differences from the paper's setting, and why they may matter; empty if there are none.
        unlike: those of the differences that were shown to change results: what speaks against the paper speaks against it here.
    """

    methods: Mapping[str, str | Variant]
    settings: Mapping[str, Options]
    common: Options
    seeds: tuple[int, ...] = (0, 1, 2)
    left_out: frozenset[tuple[str, str]] = frozenset()
    reduced: str = ""
    unlike: str = ""

    @property
    def cells(self) -> list[StudyCell]:
        """The cells, seed by seed."""
        cells = []
        for seed in self.seeds:
            for setting in self.settings:
                for method in self.methods:
                    if (method, setting) not in self.left_out:
                        cells.append(self._cell(method, setting, seed))
        return cells

    def _cell(self, method: str, setting: str, seed: int) -> StudyCell:
        variant = self.methods[method]
        if isinstance(variant, str):
            variant = Variant(variant)
        spec = variant.elsewhere.get(setting, variant.spec)
        options = merge_options(self.common, self.settings[setting], variant.options)
        return StudyCell(method, setting, seed, spec, options)


@dataclass(frozen=True)
class Study:
    """One table or figure of a paper.

    Attributes:
        name: PAPER-TABLE or PAPER-FIGURE, such as "fedmix-figure4".
        title: the content of the table or figure, in one line.
        paper: authors, year, and where the numbers were read.
        scales: "smoke", "small" and "paper" -> cells.
        claims: statements of the paper that the cells can support or contradict.
        layouts: the tables and figures to make of the results.
        notes: facts that a reader of the results must know.
        instead: setting -> column -> the column that layouts show in its place.
    """

    name: str
    title: str
    paper: str
    scales: Mapping[str, Scale]
    claims: tuple[Claim, ...]
    layouts: tuple[Layout, ...]
    notes: str = ""
    instead: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def scale(self, name: str) -> Scale:
        """The scale of this name. Raises `UnalikeError` for another."""
        if name not in self.scales:
            raise unknown(f"scale of {self.name}", name, self.scales)
        return self.scales[name]


Fields = Mapping[str, Any]
"""Fields of a `Scale` that are other than its template's; the entry `more` has options that are added to the common ones."""
NO_FIELDS: Fields = MappingProxyType({})


@dataclass(frozen=True)
class StudyTemplate:
    """The common part of the studies of a paper: the paper, three scales without methods, and the usual tables and figures."""

    paper: str
    scales: Mapping[str, Scale]
    layouts: tuple[Layout, ...] = ()

    def study(
        self,
        name: str,
        title: str,
        methods: Mapping[str, str | Variant],
        settings: Mapping[str, Options] | None = None,
        claims: Iterable[Claim] = (),
        layouts: tuple[Layout, ...] | None = None,
        notes: str = "",
        *,
        more: Options = NO_FIELDS,
        smoke: Fields = NO_FIELDS,
        small: Fields = NO_FIELDS,
        paper: Fields = NO_FIELDS,
        **shared: Any,
    ) -> Study:
        """A study with these methods at all scales, and these settings at `small` and `paper`; the template's unless given.

        `more` are options that all scales add; `smoke`, `small` and `paper` have what is other at one scale, and `shared` the
        fields that are other at all of them.
        """
        # The smoke scale keeps the template's settings, which are small enough to run in a moment.
        full_settings = {} if settings is None else {"settings": settings}
        by_scale = {
            "smoke": smoke,
            "small": {**full_settings, **small},
            "paper": {**full_settings, **paper},
        }
        shared["methods"] = methods
        scales = {}
        for scale_name, usual in self.scales.items():
            fields = {**shared, **by_scale[scale_name]}
            scales[scale_name] = _change_scale(usual, fields, more)
        if layouts is None:
            layouts = self.layouts
        return Study(name, title, self.paper, scales, tuple(claims), layouts, notes)


def _change_scale(scale: Scale, fields: Fields, more: Options) -> Scale:
    """The scale with other fields, and with options added."""
    rest = {name: value for name, value in fields.items() if name != "more"}
    changed = replace(scale, **rest)
    more_here = fields.get("more", {})
    return replace(changed, common={**changed.common, **more, **more_here})
