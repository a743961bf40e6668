"""The tensors of a request to train: what a stage sends in every round, and what it sends once."""

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.codec import Malformed
from unalike.core.inputs import Inputs
from unalike.core.types import Batch, Broadcast, Tree
from unalike.core.views import StageSettings
from unalike.federation.protocol.public_samples import samples_of_tensors, tensors_of_samples
from unalike.methods.plan import Stage


def round_tensors(stage: Stage, settings: StageSettings, broadcast: Broadcast) -> Tree:
    """The tensors that a site is sent in every round: the shared ones, and messages."""
    part_trees = {}

    shared_params = stage.method.shared_names(broadcast.params, settings.model)
    part_trees["params"] = tree.only(broadcast.params, shared_params)

    part_trees["buffers"] = tree.only(broadcast.buffers, stage.received_buffers(settings))

    for part, message in broadcast.messages.items():
        part_trees[f"messages.{part}"] = message
    return tree.pack(part_trees)


def fixed_tensors(stage: Stage, settings: StageSettings, params: Tree, buffers: Tree) -> Tree:
    """The tensors that stay the same in a stage: public samples; if it has a start of its own, all that is not shared."""
    part_trees = {}
    if stage.start is not None:
        part_trees["fixed.params"] = _unshared(stage, settings, params)
        part_trees["fixed.buffers"] = _unshared(stage, settings, buffers)
    if stage.shared is not None:
        part_trees["shared"] = tensors_of_samples((stage.shared.x, stage.shared.y))
    return tree.pack(part_trees)


def received_samples(tensors: Tree, like: Inputs) -> Batch:
    """Public samples of a request, whose inputs are a tree as those of the site are, `like`. Raises `Malformed` for others."""
    try:
        return Batch(*samples_of_tensors(tensors, like))
    except UnalikeError as error:
        raise Malformed(f"public samples: {error}") from None


def _unshared(stage: Stage, settings: StageSettings, values: Tree) -> Tree:
    """The parameters or buffers that clients do not train together."""
    unshared = {}
    for name, value in values.items():
        if not stage.method.shares(name, settings.model):
            unshared[name] = value
    return unshared
