"""Whether the best method for some clients can be known from runs on other data: stored runs, and the judgement of policies.

`stored_tasks.py` has the grid of tasks, `task_runs.py` runs them, `natural_tasks.py` adds those of real owners. `stored_runs.py`
reads the runs, `forecast.py` predicts gains from tasks that are alike, `regret.py` judges policies on held-out tasks, and
`judgement.py` reads what it found. `studies/collect_tasks.py` makes both files again. Start reading at `stored_tasks.py`.
"""
