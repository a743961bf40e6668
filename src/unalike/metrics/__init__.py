"""What is measured, and what may be concluded from it: metrics, scores, summaries and tests.

Imports `core` and `_utils`.
"""
