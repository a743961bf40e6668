"""The record of a run: its history (one row per round), its folder, and the profile of its time.

Imports `metrics` and below, nothing else of `runtime`. Start reading at `run_directory.py`.
"""
