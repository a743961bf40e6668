"""What a run takes as a model, and what it gives back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import unalike as ua


class WithNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.body = nn.Linear(6, 5)
        self.register_buffer("unused", torch.tensor([3.0]))
        self.head = nn.Linear(5, 4)

    def forward(self, x):
        return self.head(torch.relu(self.body(self.norm(x))))


class Headless(nn.Module):
    """No linear layer at all, so no features."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(6, 4) * 0.1)

    def forward(self, x):
        return x @ self.w


def test_run_params_follow_state_dict_order_with_buffers(people, small):
    run = small("fedavg", people, model=WithNorm())
    assert list(run.params) == list(WithNorm().state_dict())
    assert run.params["norm.num_batches_tracked"].dtype == torch.int64
    assert (
        run.params["norm.num_batches_tracked"].item() == 3 * 4
    )  # the largest client makes four steps a round
    WithNorm().load_state_dict(run.params)


def test_run_module_accuracy_equals_history_accuracy(people, small):
    for spec in ("fedavg", "scaffold", "fedlws"):
        run = small(spec, people, model=WithNorm())
        module = run.module().eval()
        x, y = (torch.cat([c.test[i] for c in people]) for i in (0, 1))
        with torch.no_grad():
            assert (module(x).argmax(1) == y).float().mean().item() == pytest.approx(
                run.history.rounds["accuracy"].iloc[-1]
            )


@pytest.mark.parametrize("buffers", ["average", "local", "first"])
def test_run_leaves_given_module_unchanged(people, small, buffers):
    module = WithNorm()
    before = copy.deepcopy(module.state_dict())
    run = small("ditto", people, model=module, buffers=buffers)
    assert all(torch.equal(module.state_dict()[n], before[n]) for n in before)
    assert not torch.equal(run.params["head.weight"], before["head.weight"])
    assert (
        small("fedavg", people, model=module, rounds=0)
        .params["head.weight"]
        .equal(before["head.weight"])
    )


def test_model_factory_with_same_seed_gives_same_initial_weights(people, small):
    a, b, c = (small("fedavg", people, model=WithNorm, seed=s, rounds=0).params for s in (0, 0, 1))
    assert torch.equal(a["body.weight"], b["body.weight"]) and not torch.equal(
        a["body.weight"], c["body.weight"]
    )


def test_model_without_head_runs_fedavg_and_is_refused_by_moon(people, small):
    assert list(small("fedavg", people, model=Headless()).params) == ["w"]
    with pytest.raises(ua.UnalikeError, match="give the module an attribute `head`"):
        small("moon", people, model=Headless())


class OutOfOrder(nn.Module):
    """The layer that makes the logits is registered first; others have no use, or none for the logits."""

    def __init__(self):
        super().__init__()
        self.out, self.body, self.auxiliary, self.unused = (
            nn.Linear(5, 4),
            *(nn.Linear(6, 5) for _ in range(3)),
        )

    def forward(self, x):
        logits = self.out(torch.relu(self.body(x)))
        self.auxiliary(x)
        return logits


def test_head_is_the_layer_that_makes_the_logits_wherever_it_is_registered(people, small):
    found, named = OutOfOrder(), OutOfOrder()
    named.load_state_dict(found.state_dict())
    named.head = named.out
    ours, theirs = (small("fedper", people, model=module) for module in (found, named))
    assert torch.equal(ours.params["out.weight"], found.out.weight)  # the head is never sent
    assert not torch.equal(ours.params["body.weight"], found.body.weight)
    assert torch.equal(ours.params["body.weight"], theirs.params["body.weight"])
    assert list(ours.params) == list(found.state_dict()) and not hasattr(found, "head")
    assert torch.equal(ours.personal(1)["out.weight"], theirs.personal(1)["out.weight"])


def test_personal_model_by_name_equals_by_number(people, small):
    run = small("ditto", people, model=WithNorm())
    assert all(torch.equal(run.personal(1)[n], run.personal("site1")[n]) for n in run.params)
    assert list(run.personal(1)) == list(run.params)
    assert not torch.equal(run.personal(0)["head.weight"], run.personal(1)["head.weight"])
    for wrong, message in ((6, "expected 0..5"), ("sitte1", "did you mean 'site1'")):
        with pytest.raises(ua.UnalikeError, match=message):
            run.personal(wrong)


@pytest.mark.parametrize("spec", ["fedavg", "scaffold", "centralised"])
def test_personal_model_without_personaliser_equals_shared_model(people, small, spec):
    run = small(spec, people)
    assert all(torch.equal(run.personal(k)[n], run.params[n]) for k in range(6) for n in run.params)


@pytest.mark.parametrize("spec", ["ditto", "apfl", "local_only"])
def test_history_personal_accuracy_equals_that_of_personal_models(people, small, spec):
    run = small(spec, people, model=WithNorm())
    table = run.history.clients.query("round == 3").set_index("client")["personal_accuracy"]
    for k, client in enumerate(people):
        module = WithNorm()
        module.load_state_dict(run.personal(k))
        right = module.eval()(client.test[0]).argmax(1) == client.test[1]
        assert table[k] == pytest.approx(right.float().mean().item())


@pytest.mark.parametrize("buffers", ["average", "local", "first"])
def test_evaluation_with_fixed_body_equals_loss_of_personal_model(people, small, buffers):
    """The body's statistics are those that the run began with; with `local` ones, the client's."""
    run = small("fixed(select='body')", people, model=WithNorm(), buffers=buffers)
    table = run.history.clients.query("round == 3").set_index("client")["loss"]
    for k, client in enumerate(people):
        module = WithNorm()
        module.load_state_dict(run.personal(k))
        with torch.no_grad():
            loss = nn.functional.cross_entropy(
                module.eval()(torch.as_tensor(client.test[0])), torch.as_tensor(client.test[1])
            )
        assert table[k] == pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.parametrize("spec", ["fedavg", "scaffold", "ditto", "feddyn", "fedpake"])
def test_run_with_batched_executor_equals_loop(people, small, spec):
    loop, batched = (small(spec, people, executor=e, rounds=4) for e in ("loop", "batched"))
    for name in loop.params:
        torch.testing.assert_close(loop.params[name], batched.params[name], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            loop.personal(0)[name], batched.personal(0)[name], rtol=1e-5, atol=1e-5
        )
    pairs = zip(loop.history.rounds["loss"], batched.history.rounds["loss"])
    assert all(a == pytest.approx(b, rel=1e-4) for a, b in pairs)


@pytest.mark.parametrize("activation", [torch.relu, torch.nn.ReLU()], ids=["function", "module"])
def test_model_with_tied_weights_stays_tied_in_all_executors(people, activation):
    """One tensor under two names: it is averaged once, both names hold it, and a module loads it."""

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(6, 6, bias=False)
            self.second = torch.nn.Linear(6, 6, bias=False)
            self.second.weight = self.first.weight
            self.activation, self.head = activation, torch.nn.Linear(6, 4)

        def forward(self, x):
            return self.head(self.second(self.activation(self.first(x))))

    module = Tied()
    runs = [
        ua.run("scaffold", people, model=module, rounds=2, executor=e, work=ua.Work(lr=0.1))
        for e in ("loop", "batched", "auto")
    ]
    for run in runs:
        assert list(run.params) == list(module.state_dict())
        assert torch.equal(run.params["first.weight"], run.params["second.weight"])
        module.load_state_dict(run.params)
        torch.testing.assert_close(run.params, runs[0].params, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("executor", ["loop", "batched", "auto"])
def test_model_with_frozen_integer_parameter_keeps_it(people, small, executor):
    class Ordered(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.order = torch.nn.Parameter(torch.tensor([3, 1, 0, 2]), requires_grad=False)
            self.head = torch.nn.Linear(6, 4)

        def forward(self, x):
            return self.head(x)[:, self.order]

    run = small("fedavg", people, model=Ordered(), rounds=2, executor=executor)
    assert torch.equal(run.params["order"], torch.tensor([3, 1, 0, 2]))


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_model_with_sparse_embedding_equals_dense_one(kind, executor):
    torch.manual_seed(0)
    x, y = torch.randint(9, (3, 12, 4)), torch.arange(12) % 3
    clients = [ua.ClientData(train=(rows, y)) for rows in x]
    tail = [] if kind is nn.EmbeddingBag else [nn.Flatten()]
    tables = [
        kind(9, 4, sparse=sparse, _weight=torch.linspace(-1, 1, 36).view(9, 4))
        for sparse in (False, True)
    ]
    head = nn.Linear(4 if kind is nn.EmbeddingBag else 16, 3)
    runs = [
        ua.run(
            "fedavg",
            clients,
            model=nn.Sequential(t, *tail, head),
            rounds=2,
            executor=executor,
            work=work,
        )
        for t in tables
        for work in [ua.Work(batch_size=5, lr=0.1, momentum=0.9, weight_decay=0.1)]
    ]
    torch.testing.assert_close(runs[0].params, runs[1].params, rtol=0, atol=0)


@pytest.mark.parametrize("text", ["normalize", "flip", "crop"])
def test_image_transform_on_tabular_data_is_refused(people, small, text):
    with pytest.raises(ua.UnalikeError, match=f"transform='{text}' is for images"):
        small("fedavg", people, transform=text)


@pytest.mark.parametrize("spec", ["fedavg", "ditto"])
def test_augmentation_with_batched_executor_equals_loop(spec):
    """Crops and flips are drawn per client and round; evaluation normalizes only."""
    clients = ua.partition(ua.load("digits"), "quantity", clients=4, seed=1)
    options = {"model": "cnn(channels=(4, 4, 4), hidden=8)", "rounds": 2, "work": ua.Work(lr=0.05)}
    text = "normalize(mean=0.3, std=0.4) + crop(padding=1) + flip"
    loop, batched = (
        ua.run(spec, clients, executor=e, transform=text, **options) for e in ("loop", "batched")
    )
    for name, value in loop.params.items():
        torch.testing.assert_close(value, batched.params[name], rtol=1e-3, atol=1e-5)
    plain = ua.run(
        spec, clients, executor="loop", transform="normalize(mean=0.3, std=0.4)", **options
    )
    assert not torch.equal(plain.params["head.weight"], loop.params["head.weight"])
    assert plain.history.rounds["accuracy"][0] == loop.history.rounds["accuracy"][0]


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        (torch.inference_mode, "nothing can be trained inside of torch.inference_mode"),
        (
            lambda: torch.autocast("cpu", torch.bfloat16),
            "write precision='bf16' for faster training",
        ),
    ],
)
def test_run_inside_inference_mode_or_autocast_is_refused(people, small, mode, told):
    with mode(), pytest.raises(ua.UnalikeError, match=told):
        small("fedavg", people)
