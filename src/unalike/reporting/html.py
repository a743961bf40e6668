"""Render the report as one HTML file that needs no server, no network and no other file."""

import contextlib
import os
import zlib
from base64 import b64encode
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from unalike._utils.errors import UnalikeError
from unalike.reporting import panels, risk_panels, tables, wording
from unalike.reporting.charts.palette import looks
from unalike.reporting.client_tables import client_tables
from unalike.reporting.content import ReportContent
from unalike.reporting.findings import findings
from unalike.reporting.together_or_alone import tables_of_answer, together_or_alone


def render(content: ReportContent) -> str:
    """Render the report as one HTML document. The same content gives the same text."""
    return fill("report.html.j2", title=content.title, warnings=content.warnings, **_parts(content))


def fill(template: str, **parts: Any) -> str:
    """Fill a template of the package; style, script and Plotly are put into the page."""
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_asset),
    )
    environment.filters["several"] = wording.several
    assets = {
        "style": _inline("style.css"),
        "script": _inline("report.js"),
        "plotly": _packed_plotly,
    }
    return environment.get_template(template).render(**assets, **parts)


def write_text(text: str, path: str | os.PathLike[str]) -> Path:
    """Write a file atomically: a reader never sees half of it. Returns its path.

    Raises `UnalikeError` if the folder does not exist or is not writable, or if the disk is full.
    """
    target = Path(path)
    draft = target.parent / f".{target.name}.{os.getpid()}.part"
    try:
        draft.write_text(text, encoding="utf-8", newline="\n")
        os.replace(draft, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        reason = error.strerror or str(error)
        raise UnalikeError(
            f"cannot write the report to {target}: {reason}; give a file in a folder that exists and has room"
        ) from None
    return target


def _parts(content: ReportContent) -> dict[str, Any]:
    """The variables of the template: findings, charts and tables."""
    style = looks(content.labels)
    if content.summary.empty:
        raise UnalikeError(
            f"{content.title}: no round has a score to report; expected clients with test samples, and a protocol for which the "
            "method has a model: 'clients' is the shared model, 'personal' the clients' own"
        )
    protocols = content.protocols_with_tables
    together = together_or_alone(content)
    return {
        "content": content,
        "looks": style,
        "together": together,
        "found": findings(content),
        "panels": {
            "differences": panels.differences(content, style),
            "curves": panels.curves(content, style),
            "clients": panels.distributions(content, style),
            "client_curves": panels.client_curves(content, style),
            "classes": panels.class_scores(content, style),
            "confusions": panels.confusions(content, style),
            "labels": panels.labels(content),
            **risk_panels.risk_panels(content, style),
            "pareto": panels.pareto(content, style),
            "cost": panels.cost(content, style),
            "timeline": panels.timeline(content, style),
        },
        "tables": {
            "scores": [tables.scores(content, protocol, style) for protocol in protocols],
            "tests": [tables.tests(content, protocol, style) for protocol in protocols],
            "targets": [tables.target(content, protocol, style) for protocol in protocols],
            "estimate": tables.estimate(content),
            "effects": [tables.effects(content, protocol, style) for protocol in protocols],
            "clients": client_tables(content) or [tables.single_clients(content, style)],
            "risks": risk_panels.risk_table(content, style),
            "together": [] if together is None else tables_of_answer(content, together),
            "race": tables.race(content, style),
            "partition": tables.names_and_values("The partition of the data", content.partition),
            "costs": tables.costs(content, style),
            "wire": tables.wire(content, style),
            "ends": tables.ends(content, style),
            "methods": tables.methods(content, style),
            "versions": tables.names_and_values("Versions", content.versions),
        },
        "risks": risk_panels.explanation(content),
        "scale": {
            "method": len(content.methods),
            content.client_noun: int(content.clients.groupby("seed")["client"].nunique().max()),
            "seed": len(content.seeds),
            "round": int(content.rounds["round"].max()),
        },
    }


@cache
def _packed_plotly() -> Markup:
    """Plotly's script, compressed by zlib and written in base64: 40 % of its size. The page's script unpacks it."""
    return Markup(b64encode(zlib.compress(get_plotlyjs().encode(), 9)).decode())


def _asset(name: str) -> str:
    return resources.files("unalike.reporting").joinpath(name).read_text(encoding="utf-8")


def _inline(name: str) -> Markup:
    return Markup(_asset(name))
