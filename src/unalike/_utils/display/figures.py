"""Figures by name: what a run, a history or clients show of themselves. `reporting` draws them, above all that is drawn."""

from unalike._utils.registry import Registry

figures = Registry("figure", home="unalike.reporting.figures")
"""Name -> a function that draws it; `reporting` is imported at the first figure."""
