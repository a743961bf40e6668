"""Parts that would do nothing without a word: misspelt hooks, hooks of other roles, forgotten flags, losses without a gradient."""

from typing import ClassVar

import pytest
import torch

import unalike as ua
from unalike.core import tree
from unalike.methods.flag_checks import check_flags
from unalike.methods.hook_names import check_hook_names
from unalike.methods.part import Part
from unalike.methods.parts.moreau_envelope import MoreauEnvelope
from unalike.methods.roles import Correction, Objective, Personalizer, ServerStep, Weighting


def made(name, roles, **body):
    """A class of a part, without `@ua.part`, so that no other test meets it."""
    return type(name, roles, {"__module__": __name__, **body})


def hook(self, *args):
    return {}


@pytest.mark.parametrize(
    ("name", "role", "meant"),
    [
        ("boradcast", Objective, "broadcast"),
        ("Finish", Objective, "finish"),
        ("clientInit", Objective, "client_init"),
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


def reads_own_output(self, client, batch):
    return client.own_output(batch).logits.mean()


def reads_rate(self, server, update, cohort):
    return tree.scale(update, server.settings.work.lr_at(server.round)), server.state


def reads_steps(self, cohort, weights):
    return weights * cohort.steps


def reads_field(self, cohort, weights):
    return weights * self.steps


NEEDS_FLAG = {
    "project": (Objective, {"project": hook}, {"trains": True}),
    "kept_buffers": (Objective, {"kept_buffers": hook}, {"keeps_model": True}),
    "own_output": (Objective, {"loss": reads_own_output}, {"keeps_model": True}),
    "lr_at": (ServerStep, {"step": reads_rate}, {"needs_rate": lambda self, method: True}),
    "steps": (Weighting, {"weigh": reads_steps}, {"needs_steps": True}),
}


@pytest.mark.parametrize("name", NEEDS_FLAG)
def test_class_without_the_flag_that_it_needs_is_refused(name):
    role, body, flag = NEEDS_FLAG[name]
    with pytest.raises(
        ua.UnalikeError, match=f"Own .*`{name}` without {next(iter(flag))}.*write .*"
    ):
        check_flags(made("Own", (role,), **body), Part)
    check_flags(made("Own", (role,), **body, **flag), Part)
    # a base of one's own may have the hook, and the class the flag
    check_flags(made("Own", (made("Base", (role,), **body),), **flag), Part)


def test_field_of_the_name_steps_needs_no_flag():
    check_flags(made("Own", (Weighting,), weigh=reads_field, steps=3), Part)


def second_gradient(part, client, grads, batch):
    return client.gradient(at=client.params)


def test_gradient_that_would_undo_corrections_is_refused():
    own = ua.part(made("Later", (Correction,), correct=second_gradient, rank=2))
    with pytest.raises(ua.UnalikeError, match=r"later asks for another gradient.*rank.*-1"):
        ua.run(
            ua.Method.parse("scaffold") + own(),
            clients(),
            rounds=1,
            model="linear",
            executor="loop",
        )
    # alone it undoes nothing
    ua.run(ua.Method(own()), clients(), rounds=1, model="linear", executor="loop", progress=False)


def weighed_by_fact(part, cohort, weights):
    return weights * cohort.shared["size"]["n"]


def size(part, data, settings):
    return {"size": {"n": torch.ones(())}}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"facts": size}, r"weigh looks for the name 'size'.*`shares` names"),
        ({"shares": ("size",)}, r"shares the fact 'size', and its method has the facts \[\]"),
    ],
)
def test_fact_that_nobody_shares_is_named(body, error):
    with pytest.raises(ua.UnalikeError, match=error):
        run((Weighting,), weigh=weighed_by_fact, **body)
    run((Weighting,), weigh=weighed_by_fact, facts=size, shares=("size",))


def zero(part, params):
    return {"h": torch.zeros(())}


def kept(part, client):
    return {"h": client.state["h"] + 1}, {}


def summed(part, update, message, importance):
    return {"h": importance}


def test_states_of_both_sides_beside_an_upload_need_sums_sent():
    body = {"server_init": zero, "client_init": zero, "finish": kept, "fold": summed}
    body["loss"] = constant
    own = ua.part(made("BothSides", (Objective,), **body))
    method = ua.Method.parse("quantize") + own()
    with pytest.raises(ua.UnalikeError, match=r"both_sides.*quantize.*write sums_sent = True"):
        ua.run(method, clients(), rounds=1, model="linear", executor="loop", progress=False)


def test_aggregate_asks_for_the_messages_that_the_server_half_reads():
    w = {"w": torch.ones(1)}
    with pytest.raises(ua.UnalikeError, match=r"client_dp needs messages="):
        ua.aggregate("client_dp(quantile=0.5)", w, [w, w])
    ua.aggregate("client_dp", w, [w, w])


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


@pytest.mark.parametrize(
    ("role", "name", "wrong", "right"),
    [
        (
            Objective,
            "loss",
            lambda self, batch: 0,
            r"loss\(self, batch\).* write def loss\(self, client, batch\)",
        ),
        (Correction, "correct", lambda self, client, g: g, r"write def correct\(self, client, "),
        (ServerStep, "broadcast", lambda self: {}, r"write def broadcast\(self, server\)"),
    ],
)
def test_hook_with_other_arguments_than_its_role_declares_is_refused(role, name, wrong, right):
    with pytest.raises(ua.UnalikeError, match=right):
        ua.part(made("Own", (role,), **{name: wrong}))


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
    return ua.run(
        ua.Method(own()), clients(), rounds=2, model="linear", executor="loop", progress=False
    )


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
