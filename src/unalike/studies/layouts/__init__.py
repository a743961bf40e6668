"""Layouts: how the stored results of a study become its table or figure.

`layout.py` says what a layout is; `tables.py` makes Markdown. Imports `results.py`. Start reading at `tables.py`.
"""
