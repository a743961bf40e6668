"""The diagnosis of clients: the kinds of heterogeneity in their data, each as numbers with intervals and a scale.

One file measures one kind: `labels.py`, `sizes.py`, `features.py`, `concepts.py`, `clusters.py`, and with a few rounds of
training `training.py`; `from_counts/` measures where clients keep their samples. `findings.py` says in sentences what the numbers
show; `charts.py` and `page.py` draw them. May import `reporting` and everything below it. Start reading at `diagnose.py`.
"""
