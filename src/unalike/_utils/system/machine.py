"""Cores and memory of this machine, as the process may use them."""

import sys

import psutil

MEASURING_SECONDS = 0.2
"""Time for which the load of the cores is measured."""


def cores() -> int:
    """The number of cores that this process may use."""
    process = psutil.Process()
    # macOS has no affinity
    if hasattr(process, "cpu_affinity"):
        allowed = len(process.cpu_affinity())
    else:
        allowed = psutil.cpu_count()
    return allowed or 1


def idle_cores() -> int:
    """The number of cores that other programs leave to this process, measured for a fifth of a second."""
    loads = psutil.cpu_times_percent(MEASURING_SECONDS, percpu=True)
    idle = sum(core.idle for core in loads) / 100
    return min(cores(), round(idle))


def memory_mb() -> float:
    """Physical memory in MB."""
    return float(psutil.virtual_memory().total / 1e6)


def peak_memory_mb() -> float:
    """Peak memory of this process so far, in MB."""
    if sys.platform == "win32":
        return float(psutil.Process().memory_info().peak_wset / 1e6)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, Linux units of 1024 bytes
    peak_bytes = peak if sys.platform == "darwin" else peak * 1024
    return peak_bytes / 1e6
