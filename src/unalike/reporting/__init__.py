"""The HTML report of a comparison, its figures, and tables for papers.

`content.py` holds the tables and facts of a report, `findings.py` its sentences, `panels.py` its charts, `tables.py` its tables.
`charts/figure.py` says what a figure is, `table.py` what a table is, `pages.py` how a result finds its page. Imports `runtime`,
`metrics` and below. Start reading at `html.py`.
"""

from unalike.reporting.content import MethodResult, ReportContent
from unalike.reporting.html import render, write_text

__all__ = ["MethodResult", "ReportContent", "render", "write_text"]
