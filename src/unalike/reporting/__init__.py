"""The HTML report of a comparison, its figures, and tables for papers.

Imports `metrics` and below. Start reading at `html.py`.
"""

from unalike.reporting.content import MethodResult, ReportContent
from unalike.reporting.html import render, write, write_text

__all__ = ["MethodResult", "ReportContent", "render", "write", "write_text"]
