"""The plural of a noun, and the nouns that may own rows."""

_NOUNS = """
agency airline airport author bank block branch brand bus camera car carrier center centre city class client clinic
cohort commune community company continent country county court customer dealer department device district division
doctor domain donor driver employee employer factory family farm field firm forest group hospital hotel house household
industry institution island judge lab laboratory lake library location machine manager member municipality museum nation
nurse occupation office organisation organization origin owner parish participant patient person pharmacy phone
physician plant player plot population port practice product province publisher pupil recording region restaurant river
room route scanner school sector seller sensor session ship shop site source speaker state station status store street
student study subject supplier surgeon teacher team therapist town truck unit university user vehicle vendor venue
village ward worker writer year zip zone
"""
OWNERS = frozenset(_NOUNS.split())
"""Names of columns that are English nouns, so that they have a plural."""


def several(noun: str) -> str:
    """The plural of a noun: `clients`, `cities`, `classes`, `branches`."""
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "z", "ch", "sh")) else f"{noun}s"
