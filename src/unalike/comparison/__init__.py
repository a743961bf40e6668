"""Comparisons of methods under equal conditions: running them, estimating their cost, joining their results.

`compare.py` prepares an `Experiment` (one cell per method and seed), which runs the cells and returns a `Comparison`.
`cost_estimate.py` estimates the cost from a few rounds, `standings.py` reads a comparison that still runs. The folder `joining`
puts several comparisons side by side, the folder `sweep` runs them over a grid of settings. The facts that a report shows are in
`facts.py`, which also reads those of a single run from its folder; `experiment_facts.py` derives them from an experiment. Imports
`reporting`, `runtime` and below. Start reading at `compare.py`.
"""
