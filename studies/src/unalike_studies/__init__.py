"""Studies: the published tables and figures as experiments with claims, and the ledger of what was reproduced.

`study.py` says what a study is, `papers/` holds one file per paper, `run_study.py` runs the cells, `result_files.py` stores their
results, `claim_verdicts.py` is the rule from numbers to verdicts, `layouts/` makes tables and figures. The package
imports anything of `unalike`, and nothing there imports it. Start reading at `study.py`, then at a file in `papers/`.
"""
