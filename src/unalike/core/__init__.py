"""The values that everything else is made of: trees of tensors, models as functions, tasks, local work, and the views that parts get.

Imports `_utils` only. Start reading at `types.py`, then `views.py`.
"""
