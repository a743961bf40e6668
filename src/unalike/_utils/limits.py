"""The page of limits: every error that refuses what is not here names its section there."""

from enum import StrEnum


class Limit(StrEnum):
    """A section of the page of limits, as an error names it."""

    KINDS = "docs/how_to/limits.md#other-kinds-of-federated-learning"
    INPUTS = "docs/how_to/limits.md#inputs-tasks-and-networks"
    FEDERATION = "docs/how_to/limits.md#in-a-federation"
