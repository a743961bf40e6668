"""Losses, optimizers and schedules in whole runs: plain torch, executors, records, and mistakes of users."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

import unalike as ua
from unalike.methods.roles import Objective, TaskObjective

CLASSES = 3
SIZES = (9, 4, 17)


def clients():
    gen = torch.Generator().manual_seed(1)
    return [
        ua.ClientData(
            (torch.randn(n, 5, generator=gen), torch.arange(n) % CLASSES),
            (torch.randn(6, 5, generator=gen), torch.arange(6) % 3),
        )
        for n in SIZES
    ]


def net():
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, CLASSES))


def fedavg_by_hand(loss, make, rates):
    """Full-batch local training with a fresh optimizer of torch in every round; the server takes the mean by sizes."""
    data = [(c.train[0], c.train[1]) for c in clients()]
    start = ua.run("fedavg", clients(), model=net, rounds=0, progress=False).module().state_dict()
    for lr in rates:
        mean = {n: torch.zeros_like(w) for n, w in start.items()}
        for x, y in data:
            module = net()
            module.load_state_dict(start)
            optimizer = make(module.parameters(), lr=lr)
            for _ in range(3):
                optimizer.zero_grad()
                loss(module(x), y).backward()
                optimizer.step()
            mean = {n: m + len(y) / sum(SIZES) * module.state_dict()[n] for n, m in mean.items()}
        start = mean
    return start


def trained(executor="loop", rounds=4, method="fedavg", **work):
    work = ua.Work(epochs=3, batch_size=None, **({"lr": 0.05} | work))
    run = ua.run(
        method, clients(), model=net, rounds=rounds, work=work, executor=executor, progress=False
    )
    return run.module().state_dict()


def close(a, b):
    for name, w in b.items():
        torch.testing.assert_close(a[name], w, rtol=1e-4, atol=1e-5)


def focal(z, y):
    p = z.softmax(1).gather(1, y[:, None])[:, 0]
    return ((1 - p) ** 2 * F.cross_entropy(z, y, reduction="none")).mean()


COSINE = [0.05, 0.0426776695, 0.025, 0.0073223305]
CASES = {
    "focal": ({"loss": "focal(gamma=2)"}, (focal, torch.optim.SGD, [0.05] * 4)),
    "function": ({"loss": focal}, (focal, torch.optim.SGD, [0.05] * 4)),
    "smoothing": (
        {"loss": "cross_entropy(label_smoothing=0.2)"},
        (partial(F.cross_entropy, label_smoothing=0.2), torch.optim.SGD, [0.05] * 4),
    ),
    "nesterov": (
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        (
            F.cross_entropy,
            partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.1),
            [0.05] * 4,
        ),
    ),
    "betas": (
        {"optimizer": "adam(betas=(0.5, 0.9))"},
        (F.cross_entropy, partial(torch.optim.Adam, betas=(0.5, 0.9)), [0.05] * 4),
    ),
    "factory": (
        {"optimizer": torch.optim.RMSprop},
        (F.cross_entropy, torch.optim.RMSprop, [0.05] * 4),
    ),
    "cosine": ({"schedule": "cosine"}, (F.cross_entropy, torch.optim.SGD, COSINE)),
    "warm-up": (
        {"schedule": "step(every=1, factor=0.5, warmup=1)"},
        (F.cross_entropy, torch.optim.SGD, [0.025, 0.05, 0.025, 0.0125]),
    ),
    "rates": (
        {"schedule": lambda r: 1 / (1 + r)},
        (F.cross_entropy, torch.optim.SGD, [0.05, 0.025, 0.05 / 3, 0.0125]),
    ),
}


@pytest.mark.parametrize("executor", ["loop", "batched", "auto"])
@pytest.mark.parametrize("case", CASES)
def test_run_equals_plain_torch(case, executor):
    """A function as loss counts padding, and an optimizer of torch steps one client after another: stacking is refused."""
    work, by_hand = CASES[case]
    if executor == "batched" and case in ("function", "factory"):
        with pytest.raises(
            ua.UnalikeError,
            match=r"padding would count in the loss <focal |optimizer is a function of a program",
        ):
            trained(executor, **work)
        return
    close(trained(executor, **work), fedavg_by_hand(*by_hand))


def test_loss_for_each_sample_leaves_padding_out():
    per_sample = partial(F.cross_entropy, reduction="none")
    close(trained("batched", loss=per_sample), trained("loop"))


@pytest.mark.parametrize(
    "method", ["ditto", "local_finetune", "fedrep", "pfedme(rate=0.1)", "fedsgd", "centralised"]
)
def test_loss_reaches_personal_models_and_stages(method):
    """Twice the loss is twice the learning rate, of everything that is trained."""

    def scores(lr, **loss):
        work = ua.Work(epochs=2, batch_size=4, lr=lr, **loss)
        run = ua.run(
            method,
            clients(),
            model=net,
            rounds=2,
            work=work,
            protocol=("clients", "personal"),
            progress=False,
        )
        return run.history.client_rows

    twice = "cross_entropy(class_weights=(2, 2, 2))"
    ours, plain = scores(0.05, loss=twice), scores(0.05)
    assert [r["loss"] for r in ours] != [r["loss"] for r in plain]
    if "pfedme" not in method:
        assert [r["loss"] for r in ours] == pytest.approx(
            [r["loss"] for r in scores(0.1)], rel=1e-4, nan_ok=True
        )


def test_keyword_of_run_is_the_loss_of_the_work(tmp_path):
    options = {"model": net, "rounds": 2, "progress": False}
    run = ua.run("fedavg", clients(), loss="focal(gamma=1)", out=tmp_path / "a", **options)
    assert run.run_config.work == ua.Work(loss="focal(gamma=1)")
    again = ua.run(
        "fedavg", clients(), work=ua.Work(loss="focal(gamma=1)"), out=tmp_path / "a", **options
    )
    assert again.history.rows[-1] == run.history.rows[-1]
    with pytest.raises(
        ua.UnalikeError,
        match=r"found loss='huber' beside work=ua.Work\(loss='focal'\); give one of them",
    ):
        ua.run("fedavg", clients(), loss="huber", work=ua.Work(loss="focal"), **options)
    table = ua.compare(["fedavg", "ditto"], clients(), loss="focal(gamma=1)", seeds=1, **options)
    assert (
        "--loss 'focal(gamma=1)'" in table.facts.command
        or 'loss = "focal(gamma=1)"' in table.facts.config
    )


@pytest.mark.parametrize("keyword", ["criterion", "loss_fn", "loss_function"])
def test_keyword_of_other_libraries_suggests_loss(keyword):
    with pytest.raises(ua.UnalikeError, match="did you mean 'loss'"):
        ua.run("fedavg", clients(), **{keyword: "focal"})


def test_run_goes_on_with_the_same_function_only(tmp_path):
    def loss_of(gamma):
        return lambda z, y: F.cross_entropy(z, y) * gamma

    def run(gamma, rounds):
        work = ua.Work(loss=loss_of(gamma), schedule=lambda r: 0.5**r)
        return ua.run(
            "fedavg",
            clients(),
            model=net,
            rounds=rounds,
            work=work,
            out=tmp_path / "a",
            progress=False,
        )

    run(2.0, 2)
    assert run(2.0, 3).history.last["round"] == 3
    with pytest.raises(ua.UnalikeError, match=r"work.loss is '<.*loss_of.*> there|work.loss is"):
        run(3.0, 3)
    opened = ua.open_run(tmp_path / "a", model=net)
    assert opened.history.last["round"] == 3 and opened.run_config.work.record["loss"].startswith(
        "<"
    )
    with pytest.raises(ua.UnalikeError, match="is a function of the program that made the run"):
        opened.run_config.work.lr_at(1)


def test_comparison_with_a_function_says_that_a_program_made_it():
    table = ua.compare(
        ["fedavg"], clients(), model=net, loss=focal, seeds=1, rounds=1, progress=False
    )
    assert "a function of local training came from a program" in table.facts.command


@pytest.mark.parametrize(
    "loss, says",
    [
        (lambda z, y: z, r"gives a tensor of shape \[2, 3\]; expected a scalar"),
        (
            lambda z, y: F.cross_entropy(z.detach(), y),
            "has no gradient; expected operations of torch",
        ),
        (
            torch.nn.CrossEntropyLoss(torch.ones(2)),
            r"fails on outputs of shape \[2, 3\] and labels of shape \[2\]: weight tensor",
        ),
        (
            "cross_entropy(class_weights=(1, 2))",
            "found 2 class weights; expected 3, one for each class",
        ),
        ("huber", "loss='huber': found a task of classification; expected regression"),
    ],
)
def test_loss_that_cannot_be_minimized_is_refused_before_training(loss, says):
    with pytest.raises(ua.UnalikeError, match=says):
        ua.compare(
            ["fedavg", "ditto"], clients(), model=net, loss=loss, seeds=1, rounds=1, progress=False
        )


def test_method_with_a_loss_of_its_own_is_refused_before_training():
    with pytest.raises(
        ua.UnalikeError,
        match=r"balanced_softmax brings the loss .* loss='focal' would not be minimized",
    ):
        ua.compare(
            ["fedavg", "balanced_softmax"],
            clients(),
            model=net,
            loss="focal",
            seeds=1,
            rounds=1,
            progress=False,
        )


def test_term_that_is_no_scalar_names_the_part():
    @ua.part  # here, so that tests of the whole catalogue do not collect it
    class PerSampleTerm(Objective):
        """A mistake: no mean over the samples."""

        def loss(self, client, batch):
            return client.out(batch).logits.sum(1)

    with pytest.raises(
        ua.UnalikeError,
        match=r"per_sample_term.loss gives a tensor of shape \[9\]; expected a scalar",
    ):
        trained(method="per_sample_term", rounds=1)


def test_error_in_a_loss_names_the_part():
    @ua.part
    class Asserting(TaskObjective):
        """A mistake that torch answers without a word."""

        def loss(self, client, batch):
            raise AssertionError

    with pytest.raises(AssertionError) as found:
        trained(method="asserting", rounds=1)
    assert found.value.__notes__ == ["in the loss of the part asserting"]


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        (
            {"losss": 0},
            "mistaken has no `loss`, which its role asks for; write `loss` instead of `losss`",
        ),
        ({"other": 0}, r"mistaken has no `loss`.*write def loss\(self"),
        (
            {"loss": lambda part, client, batch: client.state["h"]},
            "mistaken.loss looks for the name 'h'.*client_init or server_init",
        ),
        (
            {
                "loss": lambda part, client, batch: object.__getattribute__(part, "__setattr__")(
                    "k", 1
                )
            },
            "mistaken.loss sets an attribute.*a part is frozen",
        ),
    ],
)
def test_mistake_in_a_hook_names_the_part_and_the_remedy(hooks, message):
    mistaken = ua.part(type("Mistaken", (Objective,), {"__module__": __name__, **hooks}))
    with pytest.raises(ua.UnalikeError, match=message):
        trained(method=ua.Method(mistaken()), rounds=1)


def test_field_of_a_part_without_its_type_is_hinted_at():
    @ua.part
    class Untyped(Objective):
        mu = 0.1
        rank = 1

        def loss(self, client, batch):
            return self.mu * client.out(batch).logits.mean()

    for make in (lambda: Untyped(mu=0.2), lambda: ua.Method.parse("untyped(mu=0.2)")):
        with pytest.raises(
            ua.UnalikeError, match=r"a field is written with its type: mu: float = 0.1"
        ):
            make()


def test_batch_size_above_all_clients_is_noted():
    found = [
        ua.run(
            "fedavg", clients(), model=net, rounds=1, work=ua.Work(batch_size=n), progress=False
        ).notes
        for n in (18, 17, 32, None)
    ]
    assert [
        any("above the 17 training samples of the largest client" in n for n in notes)
        for notes in found
    ] == [*(True, False, False, False)]


class NoPart(TaskObjective):
    def loss(self, client, batch):
        return client.task_loss(client.out(batch), batch)


def test_class_without_part_is_refused():
    with pytest.raises(
        ua.UnalikeError,
        match=r"found NoPart, a subclass of Part without a name of its own; write @ua.part",
    ):
        ua.run(NoPart(), clients(), model=net, rounds=1)


def test_module_with_other_initial_weights_is_told_apart_with_the_remedy(tmp_path):
    """A module is made anew in each process; a function gives the weights of the seed."""
    options = {"rounds": 1, "progress": False}
    with pytest.warns(
        UserWarning,
        match=r"another process cannot go on; give a function .*torch.manual_seed\(0\) before",
    ):
        ua.run("fedavg", clients(), model=net(), out=tmp_path / "run", **options)
    with pytest.raises(
        ua.UnalikeError, match=r"initial weights differ: .*model=Net instead of model=Net\(\)"
    ):
        ua.run("fedavg", clients(), model=net(), out=tmp_path / "run", **options)
    table = ua.compare(
        ["fedavg"], clients(), model=net(), seeds=2, out=tmp_path / "table", **options
    )
    assert any(
        "all seeds start from the weights of the given module" in note for note in table.facts.notes
    )
    with pytest.raises(
        ua.UnalikeError,
        match=r"holds this run from other initial weights.*model=Net instead of model=Net\(\)",
    ):
        ua.compare(["fedavg"], clients(), model=net(), seeds=2, out=tmp_path / "table", **options)
    for _ in range(2):
        ua.compare(["fedavg"], clients(), model=net, seeds=2, out=tmp_path / "made", **options)
    assert len([*(tmp_path / "made" / "cells").iterdir()]) == 2
