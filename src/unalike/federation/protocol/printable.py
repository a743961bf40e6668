"""Text from other machines, made safe to print."""


def printable(text: str) -> str:
    """Replace control characters, which a terminal would act on, by spaces."""
    return "".join(c if c.isprintable() else " " for c in text)
