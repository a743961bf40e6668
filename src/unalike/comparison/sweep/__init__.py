"""Comparisons over a grid of settings: the grid, its runs, its result and its page. Start reading at `sweep.py`."""
