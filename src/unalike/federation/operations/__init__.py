"""Operation of a federation: the coordinator's folder, its processes, the operator's commands, a federation on one machine.

Imports everything in `federation/`. Start reading at `run_coordinator.py`.
"""
