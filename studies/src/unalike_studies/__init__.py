"""Studies: the published tables and figures as experiments with claims, and the ledger of what was reproduced.

`study.py` says what a study is, `papers/` holds one file per paper, `run_study.py` runs the cells and `results.py` keeps them,
`verdicts.py` is the rule from numbers to verdicts, `layouts/` draws tables and figures. Imports experiments and everything below.
Start reading at `study.py`, then at a file in `papers/`.
"""
