"""Comparisons of methods under equal conditions: running them, estimating their cost, joining their results.

`compare.py` prepares an `Experiment` (one cell per method and seed), which runs the cells and returns a `Comparison`.
`cost_estimate.py` estimates the cost from a few rounds, `standings.py` reads a comparison that still runs. The folder `racing`
lets a short list of methods race, `joining` puts several comparisons side by side, `sweep` runs them over a grid of settings. What
a report shows beside its tables is in `comparison_json.py`; it is derived from the cells of an experiment
(`comparison_json_of_cells.py`) or from the folder of a single run (`run_as_comparison.py`). Imports `reporting`, `runtime` and
below. Start reading at `compare.py`.
"""
