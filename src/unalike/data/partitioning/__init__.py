"""Division of a data set's samples among clients, and measures of how heterogeneous the clients then are.

Start at `partition.py`. A scheme (`label_schemes`, `mixture_schemes`, `origin_schemes`) draws sample indices,
`feature_skew` changes the samples, and `apply_plan` makes the population of a plan.
Importing this package registers the schemes. May import the modules of `unalike.data`, not its sources.
"""

from unalike.data.partitioning import label_schemes, mixture_schemes, origin_schemes

__all__ = ["label_schemes", "mixture_schemes", "origin_schemes"]
