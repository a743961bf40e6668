"""Flags that the class of a part needs: a hook without its flag would never be called, or would read values that nobody set."""

from typing import NamedTuple

from unalike._utils.errors import UnalikeError
from unalike.methods.hook_names import names_read, own_classes


class NeededFlag(NamedTuple):
    """A flag that goes with a name.

    Attributes:
        name: A hook that the class defines, or an attribute that its code reads.
        flags: The flags of which one is enough.
        line: The line to write in the class.
        otherwise: What would happen without it.
    """

    name: str
    flags: tuple[str, ...]
    line: str
    otherwise: str


OF_HOOKS = (
    NeededFlag("project", ("trains",), "trains = True", "it would never be called"),
    NeededFlag(
        "kept_buffers", ("keeps_model", "trains"), "keeps_model = True", "it would never be called"
    ),
)
"""The flags that hooks need."""
OF_READS = (
    NeededFlag(
        "own_output",
        ("keeps_model", "trains"),
        "keeps_model = True",
        "the client's own model would have the buffers of the shared one",
    ),
    NeededFlag(
        "lr_at",
        ("needs_rate",),
        "def needs_rate(self, method): return True",
        "ua.aggregate would take its default for the clients' learning rate",
    ),
    NeededFlag(
        "solver_weights",
        ("needs_steps",),
        "needs_steps = True",
        "ua.aggregate would count one step for each client",
    ),
    NeededFlag(
        "steps",
        ("needs_steps",),
        "needs_steps = True",
        "ua.aggregate would count one step for each client",
    ),
)
"""The flags that reading an attribute needs; `steps` is that of `cohort`."""


def check_flags(cls: type, base: type) -> None:
    """Raise `UnalikeError` for a class below `base` with a hook, or a look at an attribute, that needs a flag which it lacks."""
    classes = own_classes(cls, base)
    defined = {name for c in classes for name in vars(c)}
    for needed in OF_HOOKS:
        if needed.name in defined:
            _check_flag(cls, base, needed, f"has `{needed.name}`")

    read = {name for c in classes for name in names_read(c)}
    of_cohort = {name for c in classes for name in names_read(c, argument="cohort")}
    of_server = {name for c in classes for name in names_read(c, argument="server")}
    fields = {name for c in classes for name in vars(c).get("__annotations__", {})} | defined
    for needed in OF_READS:
        names = read
        if needed.name == "steps":
            # clients count steps too, and a field may have the name
            names = of_cohort - fields
        elif needed.name == "lr_at":
            # clients know their learning rate
            names = of_server
        if needed.name in names:
            _check_flag(cls, base, needed, f"reads `{needed.name}`")


def _check_flag(cls: type, base: type, needed: NeededFlag, what: str) -> None:
    for flag in needed.flags:
        if getattr(cls, flag) is not getattr(base, flag):
            return
    raise UnalikeError(
        f"{cls.__name__} {what} without {' or '.join(needed.flags)}, so that {needed.otherwise}; write {needed.line} in the class"
    )
