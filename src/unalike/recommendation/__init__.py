"""Recommendation of methods for clients: learned from stored runs of many methods on many divisions of data.

`stored_runs.py` reads the runs that the package ships, `forecast.py` predicts gains, `judgement.py` says how good forecasts were on
held-out tasks. Both files are made by the package `unalike_studies.recommendation`. Imports `diagnosis`, `runtime` and below. Start
reading at `recommend.py`.
"""
