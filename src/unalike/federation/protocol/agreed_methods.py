"""Notes on the methods that a federation agrees on together."""

from unalike.federation.protocol.federation_file import Federation
from unalike.methods.plan import method_of, plan


def notes_on_methods(federation: Federation) -> list[str]:
    """A sentence where methods without noise may be run beside private ones: what they send is counted nowhere."""
    private = []
    others = []
    for method in dict.fromkeys((federation.method, *federation.also)):
        # a method whose releases are counted
        if method_of(plan(method)).releases_once:
            private.append(method)
        else:
            others.append(method)
    if not private or not others:
        return []
    return [
        f"note: {', '.join(others)} may be run beside {', '.join(private)}, and no epsilon covers what it sends about the "
        "same samples; where that is not meant, make a federation without it (--also)"
    ]
