"""Text from other machines, as it may be printed: without control characters, and as one value."""

import json
from typing import Any


def printable(text: str) -> str:
    """Text from another machine with spaces in place of control characters, which a terminal would act on."""
    return "".join(c if c.isprintable() else " " for c in text)


CONTROL_CODES = [*range(0x20), *range(0x7F, 0xA0)]
"""Code points that a terminal acts on."""
_TO_SPACES = dict.fromkeys(CONTROL_CODES, " ")


def without_controls(text: str) -> str:
    """Text of data, such as the name of a class, with spaces in place of control characters."""
    return text.translate(_TO_SPACES)


def all_printable(value: Any) -> Any:
    """The same for every text in a value of dicts and lists."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(name)): all_printable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [all_printable(inner) for inner in value]
    return value


def one_word(value: Any) -> str:
    """A value as one word of a line: in quotes where it has spaces, `=` or quotes, so that `a=b c=d` stays one value."""
    text = printable(str(value))
    if text and not set(text) & set(" ='\""):
        return text
    return json.dumps(text, ensure_ascii=False)
