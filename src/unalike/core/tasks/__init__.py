"""Tasks: the loss, the predictions and the metrics that go with a kind of labels. One class is one task.

It imports other files of `core`. Start in `task.py`, which declares what a task says to those who ask; `classification.py` and
`regression.py` are the tasks, `registry.py` finds them by name or by labels.
"""
