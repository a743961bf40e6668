"""Races: a comparison whose methods are a short list, and which drops a method as soon as it can no longer win.

`short_list.py` has the methods, `race_budget.py` reads how much may be spent, `drop_rule.py` is the statistics of one look, and
`race.py` keeps account of what has been spent and dropped. Imports `reporting`, `statistics`, `runtime` and below. Start reading at
`race.py`; `Experiment` in `comparison/experiment.py` runs the cells.
"""
