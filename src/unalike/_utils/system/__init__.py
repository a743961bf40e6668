"""Whatever depends on the operating system: locks on folders, cores and memory, child processes, sockets between processes.

Start reading at `machine.py` and `supervisor.py`.
"""
