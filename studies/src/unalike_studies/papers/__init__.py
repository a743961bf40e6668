"""The studies of each paper, one file per paper: methods, settings, published numbers and claims.

Imports `study.py`, `claims.py`, `claim_verdicts.py` and the layouts. A file lists its studies in `STUDIES`;
`catalogue.py` collects them. Start reading at `niid_bench.py`.
"""
