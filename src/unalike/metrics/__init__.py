"""Scores of test samples: metrics by name, the sums that several processes or sites add up, the columns of a history.

Imports `core` and `_utils`.
"""
