"""Methods as sums of parts: what a part is, how parts combine, plans of several stages, and the catalogue of published methods.

Imports `core` and `_utils`. Start reading at `part.py`, then `method.py`.
"""
