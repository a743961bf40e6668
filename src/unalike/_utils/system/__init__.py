"""Whatever depends on the operating system: locks on folders, cores and memory. Standard library only."""
