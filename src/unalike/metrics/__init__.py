"""Metrics of test samples, summaries of comparisons, and statistical tests.

Imports `core` and `_utils`.
"""
