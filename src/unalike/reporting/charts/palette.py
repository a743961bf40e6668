"""The look of each method, the same in every chart: color, dash and marker."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, count
from types import MappingProxyType

from markupsafe import Markup

# Okabe and Ito's color-blind safe set without black and yellow, which are invisible on
# one of the two backgrounds, and with a blue that is visible on both.
COLORS = ("#1A80BB", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
BLUE = COLORS[0]
ORANGE = COLORS[1]
PINK = COLORS[3]
AMBER = COLORS[4]
LIGHT_BLUE = COLORS[5]
GREY = COLORS[6]
# Five dashes and seven colors: no pair repeats within 35 methods.
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")
_SHAPES = {
    "circle": "M15 1a4 4 0 1 0 .01 0z",
    "square": "M11.5 1.5h7v7h-7z",
    "diamond": "M15 .3L19.7 5L15 9.7L10.3 5z",
    "triangle-up": "M15 .8L19.3 8.6H10.7z",
    "cross": "M13.5 .8h3v2.7h2.7v3h-2.7v2.7h-3v-2.7h-2.7v-3h2.7z",
    "x": "M11.3 3.2L13.2 1.3L15 3.1L16.8 1.3L18.7 3.2L16.9 5L18.7 6.8L16.8 8.7L15 6.9L13.2 8.7L11.3 6.8L13.1 5z",
    "star": "M15 .2L16.3 3.6L19.8 3.7L17 5.9L18 9.4L15 7.4L12 9.4L13 5.9L10.2 3.7L13.7 3.6z",
    "triangle-down": "M15 9.2L19.3 1.4H10.7z",
}
_STROKES = {"solid": "", "dash": "7 4", "dot": "2 3", "dashdot": "8 3 2 3", "longdash": "12 4"}


@dataclass(frozen=True)
class Look:
    """Color, dash and marker of one method; `key` identifies it in the charts and in the legend."""

    key: str
    color: str
    dash: str
    marker: str

    def faded(self, opacity: float) -> str:
        """The color as `rgba(...)` with this opacity."""
        red = int(self.color[1:3], 16)
        green = int(self.color[3:5], 16)
        blue = int(self.color[5:7], 16)
        return f"rgba({red},{green},{blue},{opacity})"

    @property
    def strokes(self) -> str:
        """The dash as SVG writes it: lengths of strokes and gaps, in pixels; empty for a solid line."""
        return _STROKES[self.dash]

    def swatch(self) -> Markup:
        """A short piece of the method's line with its marker, as SVG for the legend."""
        return Markup(
            '<svg class="swatch" viewBox="0 0 30 10" width="30" height="10" aria-hidden="true">'
            '<line x1="1" x2="29" y1="5" y2="5" stroke="{}" stroke-width="2.5" stroke-dasharray="{}"/>'
            '<path d="{}" fill="{}"/></svg>'
        ).format(self.color, self.strokes, _SHAPES[self.marker], self.color)


Looks = Mapping[str, Look]
"""Method -> its look."""


def look_of_color(color: str, marker: str = "circle") -> Look:
    """The look of what is no method: a color and a marker."""
    return Look("", color, "solid", marker)


BLUE_CIRCLE = look_of_color(BLUE)
"""The look of what has none of its own."""


def looks(labels: list[str], places: Mapping[str, int] = MappingProxyType({})) -> dict[str, Look]:
    """Label -> look. Without `places` a look depends only on the position in the list: the same list gives the same looks.

    Labels in `places` have the look of their place in every figure; the others take the first looks with a free color.
    """
    taken = {places[label] for label in labels if label in places}
    # places whose color nobody has come first, then all others
    used_colors = {place % len(COLORS) for place in taken}
    free = [place for place in range(len(COLORS)) if place not in used_colors]
    others = (place for place in count() if place not in taken and place not in free)
    next_places = chain(free, others)
    return {
        label: _look(places[label] if label in places else next(next_places)) for label in labels
    }


def _look(place: int) -> Look:
    """The look at a place of the palette."""
    return Look(
        key=f"m{place}",
        color=COLORS[place % len(COLORS)],
        dash=DASHES[place % len(DASHES)],
        marker=MARKERS[place % len(MARKERS)],
    )
