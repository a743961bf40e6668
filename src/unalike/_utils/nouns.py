"""The plural of a noun."""


def several(noun: str) -> str:
    """The plural of a noun: `clients`, `cities`, `classes`, `branches`."""
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "z", "ch", "sh")) else f"{noun}s"
