"""Statistics of comparisons: scores of methods over seeds and clients, intervals, tests, ranks, verdicts and costs.

`scores.py` gathers the scores of a comparison, `inference.py` compares them, `verdicts.py` says what follows. Scores of samples are
in `metrics`. Imports `metrics`, `core` and `_utils`. Start reading at `inference.py`.
"""
