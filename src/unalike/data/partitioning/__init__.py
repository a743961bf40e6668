"""How samples are divided among clients, and how unlike the clients then are. Importing it registers the schemes."""

from unalike.data.partitioning import label_schemes, mixture_schemes, origin_schemes

__all__ = ["label_schemes", "mixture_schemes", "origin_schemes"]
