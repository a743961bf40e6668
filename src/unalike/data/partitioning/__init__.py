"""Division of a data set's samples among clients, and measures of how heterogeneous the clients then are.

Start at `partition.py`. A scheme (`label_schemes`, `mixture_schemes`, `origin_schemes`) draws sample indices,
`feature_skew` changes the samples, and `apply_plan` makes the population of a plan.
The registry of `scheme.py` finds the schemes in any file of this folder. May import the modules of `unalike.data`, not its sources.
"""
