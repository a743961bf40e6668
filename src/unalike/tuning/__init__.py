"""Tuning of methods under the same budget, and their comparison before and after it.

`tune.py` is `ua.tune`. `trials.py` runs the trials with `trial_runner.py`, which asks `sampler.py` (Optuna) for values, and
`tuning_score.py` for scores. `tuning.py` has the results, `page.py` draws them. Imports
`comparison`, `reporting`, `runtime` and below. Start reading at `tune.py`.
"""
