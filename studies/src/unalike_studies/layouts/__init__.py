"""Layouts: how the stored results of a study become its table or figure.

`Layout` in `study.py` says what a layout is; `tables.py` makes Markdown; `figures.py` and others make figures, to which `looks.py`
gives the looks of methods. Imports `results.py` and the charts of reporting. Start reading at `tables.py`.
"""
