"""Recommendation of methods for clients: learned from stored runs of many methods on many divisions of data.

`stored_tasks.py` has the grid of tasks, `task_runs.py` runs one of them, `stored_runs.py` reads the runs that the package ships,
`forecast.py` predicts gains, `regret.py` judges the forecasts on held-out tasks. Imports `diagnosis`, `runtime` and below. Start
reading at `recommend.py`.
"""
