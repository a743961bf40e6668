"""Trackers that follow runs: TensorBoard, MLflow, Weights & Biases, or a user's own.

Imports `_utils` only; each library of a tracker is an extra and is imported when a run begins. Start reading at `tracker.py`.
"""
