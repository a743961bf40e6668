"""What others say, shown in a terminal."""


def printable(text: str) -> str:
    """The text with a space in the place of whatever a terminal would act on."""
    return "".join(c if c.isprintable() else " " for c in text)
