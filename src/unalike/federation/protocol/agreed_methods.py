"""Notes on what a federation agrees on: methods beside private ones, and public samples."""

from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.public_samples import PUBLIC_FILE
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


def notes_on_public(federation: Federation) -> list[str]:
    """A sentence on the public samples that the terms name."""
    public = federation.public
    if public is None:
        return []
    return [
        f"note: every site sends what its own model predicts for {public.samples} public samples: {PUBLIC_FILE} in its bundle, "
        f"SHA-256 {public.sha256}"
    ]
