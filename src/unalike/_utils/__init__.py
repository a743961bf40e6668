"""Helpers without knowledge of federated learning: errors, seeds, spec text, registries, locks, files.

Imports nothing of ours from other folders. Start reading at `errors.py` and `seeds.py`.
"""
