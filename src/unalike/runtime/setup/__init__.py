"""The settings of a run, checked before its first round: options, model, privacy, attackers, stop rules, the run config.

Start reading at `run_config.py`.
"""
