"""The plural of a noun, and the nouns that may own rows."""

_NOUNS = """
agency bank branch bus car center centre city class client clinic company country county customer department device
district doctor domain donor driver family farm group hospital house household institution lab laboratory machine
municipality office owner participant patient pharmacy phone plant practice province recording region restaurant room
scanner school sensor shop site speaker state station status store street student study subject supplier teacher team
town unit university user vehicle village ward worker writer year zip zone
"""
OWNERS = frozenset(_NOUNS.split())
"""Names of columns that are English nouns, so that they have a plural."""


def several(noun: str) -> str:
    """The plural of a noun: `clients`, `cities`, `classes`, `branches`."""
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "z", "ch", "sh")) else f"{noun}s"
