"""Cores and memory of this machine, as the process may use them."""

import sys

import psutil


def cores() -> int:
    """The number of cores that this process may use."""
    process = psutil.Process()
    allowed = (
        len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count()
    )  # macOS has no affinity
    return allowed or 1


def idle_cores() -> int:
    """The number of cores that other programs leave to this process, measured for a fifth of a second."""
    idle = sum(core.idle for core in psutil.cpu_times_percent(0.2, percpu=True)) / 100
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
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
