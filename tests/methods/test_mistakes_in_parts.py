"""Parts that would do nothing without a word: misspelt hooks, hooks of other roles, forgotten flags, losses without a gradient."""

from typing import ClassVar

import pytest
import torch

import unalike as ua
from unalike.methods.hook_names import check_hook_names
from unalike.methods.part import Part
from unalike.methods.parts.moreau_envelope import MoreauEnvelope
from unalike.methods.roles import Correction, Objective, Personalizer, ServerStep


def made(name, roles, **body):
    """A class of a part, without `@ua.part`, so that no other test meets it."""
    return type(name, roles, {"__module__": __name__, **body})


def hook(self, *args):
    return {}


@pytest.mark.parametrize(
    ("name", "role", "meant"),
    [
        ("boradcast", Objective, "broadcast"),
        ("broadcasts", Objective, "broadcast"),
        ("finnish", Correction, "finish"),
        ("client_initt", Objective, "client_init"),
        ("server_innit", ServerStep, "server_init"),
        ("adress", ServerStep, "address"),
        ("absorbe", ServerStep, "absorb"),
        ("keep_buffers", Personalizer, "kept_buffers"),
        ("need_data", Objective, "needs_data"),
    ],
)
def test_misspelt_hook_is_refused(name, role, meant):
    value = True if name == "need_data" else hook
    with pytest.raises(ua.UnalikeError, match=f"Own has `{name}`.*did you mean `{meant}`"):
        check_hook_names(made("Own", (role,), **{name: value}), Part)


def test_misspelt_hook_of_an_own_base_class_is_refused():
    base = made("Base", (Objective,), finishh=hook)
    with pytest.raises(ua.UnalikeError, match=r"`finishh`.*did you mean `finish`"):
        check_hook_names(made("Own", (base,), loss=hook), Part)


def test_class_is_refused_as_it_is_made():
    with pytest.raises(ua.UnalikeError, match="did you mean `broadcast`"):
        ua.part(made("Silent", (Objective,), boradcast=hook, loss=hook))


@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [
        ("correct", Objective, "Correction"),
        ("step", Correction, "ServerStep"),
        ("weigh", ServerStep, "Weighting"),
    ],
)
def test_hook_of_a_role_that_the_class_lacks_is_refused(name, has, lacks):
    with pytest.raises(ua.UnalikeError, match=f"`{name}`, a hook of the role {lacks}"):
        check_hook_names(made("Own", (has,), **{name: hook}), Part)


class Helpers(Objective):
    """Functions, fields and flags of one's own, some with names that are near to those of hooks."""

    steps: int = 3
    folds: ClassVar[int] = 4
    RATE = 0.1
    penalty = 2

    def loss(self, client, batch):
        return self.losses(client, batch) * self.weight * self.folds

    def losses(self, client, batch):
        return [self.corrected(b) for b in batch]

    @staticmethod
    def corrected(batch):
        return batch

    @property
    def weight(self):
        return 1

    def _broadcasts(self):
        return 0

    def distance(self, a, b):
        return 0


def test_helpers_are_no_misspelt_hooks():
    check_hook_names(Helpers, Part)
    check_hook_names(MoreauEnvelope, Part)


def clients():
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(10) % 2
    return [ua.ClientData(train=(x[k::3], y), test=(x[:4], y[:4])) for k in range(3)]


def run(roles, **body):
    own = ua.part(made("DoesNothing", roles, **body))
    return ua.run(ua.Method(own()), clients(), rounds=2, model="linear", progress=False)


def of_all(part, client):
    return client.state, {"g": client.full_gradient(client.params)["head.weight"]}


def of_whole(part, client):
    return client.state, {"n": sum(batch.y.sum() for batch in client.data.whole)}


def is_empty(part, client):
    return client.state, {"n": torch.ones(1)} if client.data.whole else {}


@pytest.mark.parametrize("finish", [of_all, of_whole, is_empty])
def test_part_that_reads_all_samples_without_saying_so_is_refused(finish):
    def loss(part, client, batch):
        return client.out(batch).logits.mean() * 0

    with pytest.raises(
        ua.UnalikeError, match=r"does_nothing reads all local samples.*needs_data = True"
    ):
        run((Objective,), loss=loss, finish=finish)
    # it finds nothing either where another part says it
    own = ua.part(made("DoesNothing", (Objective,), loss=loss, finish=finish))
    with pytest.raises(ua.UnalikeError, match="does_nothing reads all local samples"):
        ua.run(ua.Method.parse("pfedme") + own(), clients(), rounds=1, model="linear")


def test_part_that_says_so_reads_all_samples():
    def loss(part, client, batch):
        return client.out(batch).logits.mean() * 0

    run((Objective,), loss=loss, finish=of_all, needs_data=True)


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_mean_of_values_with_more_than_one_dimension_is_refused(executor):
    def loss(part, client, batch):
        return batch.mean(client.out(batch).logits.square())

    own = ua.part(made("TwoDimensions", (Objective,), loss=loss))
    with pytest.raises(ua.UnalikeError, match=r"batch\.mean was given values of shape \[.*\[B\]"):
        ua.run(ua.Method(own()), clients(), rounds=1, model="linear", executor=executor)


def detached(part, client, batch):
    return client.out(batch).logits.detach().square().mean()


def counted(part, client, batch):
    return torch.tensor(float((client.out(batch).logits.argmax(1) == batch.y).sum()))


def constant(part, client, batch):
    return batch.mean(batch.x.square().sum(1))


@pytest.mark.parametrize("loss", [detached, counted, constant])
def test_loss_without_a_gradient_is_noted(loss):
    [note] = [note for note in run((Objective,), loss=loss).notes if "has no gradient, so" in note]
    assert note.startswith("the loss of does_nothing() has no gradient, so that it changes nothing")


@pytest.mark.parametrize("method", ["fedprox", "moon", "ditto", "pfedme", "feddyn", "fedgen"])
def test_losses_of_the_catalogue_have_gradients(method):
    run = ua.run(method, clients(), rounds=1, model="mlp", progress=False)
    assert not [note for note in run.notes if "has no gradient, so" in note]
