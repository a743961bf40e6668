"""The runs that recommendations of methods are learned from, and the judgement of the ways to choose a method on them.

`stored_tasks.py` has the grid of tasks, `task_runs.py` runs them, `natural_tasks.py` adds those of real owners, `regret.py`
judges policies on held-out tasks. The files that `unalike` ships come from here (`studies/collect_tasks.py`). Start reading at
`stored_tasks.py`.
"""
