"""The values that everything else is made of: trees, models as functions, tasks, local work, and the views that parts see.

Imports `_utils` only. Start reading at `types.py`, then `views.py`.
"""
