"""One run: the round loop, its configuration, its evaluation, its record and its files.

Imports `engine`, `metrics`, `models`, `data` and below. Start reading at `round_loop.py`.
"""
