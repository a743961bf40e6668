"""Processes, folders and commands of a federation that is up."""
