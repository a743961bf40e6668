"""Layouts: how the stored results of a study become its table or figure.

`layout.py` says what a layout is; `tables.py` makes Markdown, `figures.py` makes pictures, which `panels.py` draws. Imports
`results.py` and the charts of reporting. Start reading at `tables.py`.
"""
