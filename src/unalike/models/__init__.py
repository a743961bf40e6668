"""Models by name.

Start at `registry.py`, which builds a model from a spec. `check.py` validates options, `adapter.py` takes
modules of other libraries, `checkpoint.py` reads initial weights; every other module is a family of networks.
May import `unalike.core` and `unalike._utils` only.
"""
