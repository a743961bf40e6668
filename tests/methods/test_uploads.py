"""What is sent: numbers by hand, error feedback against numpy, bytes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, mlp, plane, same

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.work import Work
from unalike.methods.method import Method
from unalike.methods.parts.compression import HalfPrecision, PowerSGD, Quantize, RandomMask, TopK
from unalike.training.server.updates import decode_updates
from unalike.training.wire import NUMBERS_BYTES, wire

NOBODY = SimpleNamespace(state={}, round=0)


def stacked(t):
    return {n: v[None] for n, v in t.items()}


def test_topk_encode_and_decode_equal_hand_numbers():
    u = {"w": torch.tensor([[1.0, -5.0], [0.5, 2.0]]), "b": torch.tensor([3.0])}
    sent, kept = TopK(fraction=0.5).encode(NOBODY, u)
    assert sent["w"].tolist() == [-5.0, 2.0] and sent["w:places"].tolist() == [1, 3] and kept == {}
    assert sent["b"].tolist() == [3.0] and "b:places" not in sent  # the whole tensor, as it is
    back = tree.row(TopK(fraction=0.5).decode(stacked(sent), u, 0), 0)
    assert back["w"].tolist() == [[0.0, -5.0], [0.0, 2.0]] and back["b"].tolist() == [3.0]
    # 0.1 * 30 is a little more than 3 in floats; at least one entry is sent
    assert [
        arrived(TopK(fraction=f), {"w": torch.ones(30)})[2]["w"].numel() for f in (0.1, 0.001)
    ] == [3, 1]


def test_topk_decode_place_out_of_range_is_clamped():
    like = {"w": torch.zeros(4)}
    sent = {"w": torch.tensor([[1.0]]), "w:places": torch.tensor([[99]], dtype=torch.int32)}
    assert TopK().decode(sent, like, 0)["w"].tolist() == [[0.0, 0.0, 0.0, 1.0]]


def test_quantize_encode_and_decode_equal_hand_numbers():
    """s = 1/127: 1 -> 127, -0.5 -> -63.5 -> -64 (to even), 0.003 -> 0.381 -> 0; zeros stay zeros."""
    u = {"w": torch.tensor([1.0, -0.5, 0.003]), "zero": torch.zeros(2)}
    sent, _ = Quantize().encode(NOBODY, u)
    assert sent["w"].dtype == torch.int8 and sent["w"].tolist() == [127, -64, 0]
    back = tree.row(Quantize().decode(stacked(sent), u, 0), 0)
    torch.testing.assert_close(back["w"], torch.tensor([1.0, -64 / 127, 0.0]))
    assert back["zero"].tolist() == [0.0, 0.0]
    sixteen, _ = Quantize(bits=16).encode(NOBODY, u)
    assert sixteen["w"].tolist() == [32767, -16384, 98]  # 0.003 * 32767 = 98.3
    assert Quantize(bits=32).encode(NOBODY, u)[0] is u


def test_quantize_stochastic_rounding_is_unbiased():
    """u = 0.3 s: 1 in 30% of the draws; 20000 draws to 4 standard deviations (0.0032)."""
    u = torch.full((20001,), 0.3 / 127)
    u[0] = 1.0
    with torch.random.fork_rng():
        torch.manual_seed(0)
        q = Quantize(stochastic=True).encode(NOBODY, {"w": u})[0]["w"]
    assert q[0] == 127 and set(q[1:].tolist()) == {0, 1}
    assert q[1:].double().mean() == pytest.approx(0.3, abs=0.013)


def test_quantize_stochastic_largest_entries_keep_sign():
    """In float32 one draw of a thousand takes 32767 + U for 32768, which 16 bits do not hold."""
    u = {"w": torch.ones(20000), "v": -torch.ones(20000)}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        q, _ = Quantize(bits=16, stochastic=True).encode(NOBODY, u)
    assert set(q["w"].tolist()) == {32767} and set(q["v"].tolist()) <= {-32767, -32766}


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_quantize_stochastic_repeats_by_seed_and_differs_between_clients(executor):
    x = np.random.default_rng(0).normal(size=(6, 4))
    clients = Clients.of((x, [0, 1, 2, 0, 1, 2]), (x, [0, 1, 2, 0, 1, 2]))
    work = {"batch_size": None, "lr": 0.1}
    before = torch.get_rng_state()
    a, b = (
        Simulation("quantize(stochastic=True)", mlp(), clients, executor=executor, **work).round()
        for _ in range(2)
    )
    assert same(a.update, b.update) and torch.equal(before, torch.get_rng_state())
    assert not torch.equal(
        a.update["body.weight"][0], a.update["body.weight"][1]
    )  # the same data, other draws


def test_topk_error_feedback_three_rounds_equal_numpy():
    """Three rounds of full-batch steps on y = w x, of two entries one is sent: v = u + e, e = v - sent(v)."""
    rng = np.random.default_rng(1)
    data = [(rng.normal(size=(5, 2)), rng.normal(size=5)) for _ in range(3)]
    clients = Clients.of(*data, dtype=torch.float64)
    sims = [
        Simulation(
            "topk(fraction=0.5, error_feedback=True)",
            plane(0.5, -0.2).double(),
            clients,
            task="regression",
            batch_size=None,
            lr=0.1,
            executor=executor,
        )
        for executor in ("loop", "batched")
    ]
    w, e = plane(0.5, -0.2).head.weight.detach().numpy()[0].astype(float), np.zeros((3, 2))
    for present in ([0, 1, 2], [0, 2], [0, 1, 2]):
        sent = {}
        for k in present:
            x, y = data[k]
            v = -0.1 * 2 * x.T @ (x @ w - y) / 5 + e[k]
            sent[k] = np.where(np.abs(v) == np.abs(v).max(), v, 0)
            e[k] = v - sent[k]
        w = w + np.mean(list(sent.values()), 0)
        for sim in sims:
            sim.round(present)
            np.testing.assert_allclose(
                sim.params["head.weight"].numpy()[0], w, rtol=1e-6
            )  # plane is float32 first
            for k in range(3):
                found = sim.memory(k)["topk"]["head.weight"][0].numpy()
                np.testing.assert_allclose(found, e[k], rtol=1e-6, atol=1e-9)


def test_topk_error_feedback_sends_small_entries_eventually():
    """One client whose second gradient is a tenth of the first or little more: without feedback it is never sent."""
    clients = Clients.of((np.array([[1.0, 0.0], [0.0, 0.1]]), np.array([0.0, 1.0])))
    moved = {}
    for feedback in (False, True):
        spec = f"topk(fraction=0.5, error_feedback={feedback})"
        sim = Simulation(
            spec, plane(1.0, 0.0), clients, task="regression", batch_size=None, lr=0.01
        )
        for _ in range(60):
            sim.round()
        moved[feedback] = float(sim.params["head.weight"][0, 1])
    assert moved[False] == 0 and moved[True] > 0.01


def test_upload_parts_in_any_order_are_chained_by_rank():
    names = [
        u.name
        for u in Method.parse("quantize + topk + clip").parts
        if u.name in ("clip", "topk", "quantize")
    ]
    assert names == ["clip", "topk", "quantize"]
    sim = Simulation(
        "quantize + topk(fraction=0.4) + clip(norm=0.01)", mlp(), Clients.random((5, 8)), lr=0.5
    )
    plain = Simulation("fedavg", mlp(), Clients.random((5, 8)), lr=0.5).round()
    cohort = sim.round()
    assert cohort.update["body.weight"].dtype == torch.int8 and cohort.update[
        "body.weight"
    ].shape == (2, 8)
    back = decode_updates(sim.method, cohort.update, sim.state)
    for k in range(2):
        u = tree.row(plain.update, k)
        factor = min(1.0, 0.01 / float(tree.norm(u)))
        for n, t in u.items():
            v = (factor * t).flatten().numpy()
            top = np.argsort(-np.abs(v))[: int(np.ceil(0.4 * len(v)))]
            expected, scale = np.zeros_like(v), np.abs(v[top]).max() / 127
            expected[top] = np.round(v[top] / scale) * scale
            # one step of the grid where float32 rounds the other way
            np.testing.assert_allclose(back[n][k].flatten().numpy(), expected, atol=1.01 * scale)


UP = {  # mlp: tensors of 20, 5, 15 and 3 entries
    "fedavg": 43 * 4,
    "quantize": 43 + 4 * 4,
    "quantize(bits=16)": 43 * 2 + 4 * 4,
    "quantize(bits=32)": 43 * 4,
    "topk(fraction=0.1)": (2 + 1 + 2 + 1) * 8,
    "topk(fraction=0.1) + quantize": (2 + 1 + 2 + 1) * 5 + 4 * 4,
    "topk(fraction=1)": 43 * 4,
    "topk(error_feedback=True)": (2 + 1 + 2 + 1) * 8,
    "random_mask(fraction=0.1)": (2 + 1 + 2 + 1) * 4,
}


@pytest.mark.parametrize("spec", UP)
def test_wire_upload_parts_count_bytes(spec):
    items = wire(Method.parse(spec), Model(mlp()))
    assert sum(i.bytes for i in items if i.direction == "up") == UP[spec] + NUMBERS_BYTES
    assert sum(i.bytes for i in items if i.direction == "down") == 43 * 4


def test_wire_stochastic_quantize_draws_no_random_numbers():
    before = torch.get_rng_state()
    wire(Method.parse("quantize(stochastic=True)"), Model(mlp()))
    assert torch.equal(before, torch.get_rng_state())


def arrived(part, u, state=None, round=0):
    """What the server reads, and the new client state."""
    sent, kept = part.encode(SimpleNamespace(state={} if state is None else state, round=round), u)
    return tree.row(part.decode(stacked(sent), u, round), 0), kept, sent


@pytest.mark.parametrize(
    "part",
    [
        TopK(fraction=0.3, error_feedback=True),
        Quantize(error_feedback=True),
        Quantize(stochastic=True, norm="l2", error_feedback=True),
        HalfPrecision(error_feedback=True),
        PowerSGD(components=1),
        RandomMask(fraction=0.3),
    ],
    ids=lambda p: p.name,
)
def test_error_feedback_keeps_what_was_lost_for_the_next_update(part):
    """Over rounds: the sum of what arrived and the last error are the sum of the updates."""
    torch.manual_seed(0)
    u = {"w": torch.randn(6, 5), "b": torch.randn(6)}
    kept, total = part.client_init(u), tree.zeros(u)
    for round in range(4):
        back, kept, _ = arrived(part, u, kept, round)
        total = tree.add(total, back)
    for name in u:
        torch.testing.assert_close(total[name] + kept[name], 4 * u[name])


@pytest.mark.parametrize(
    ("part", "share"),
    [(TopK(fraction=0.3), 0.7), (PowerSGD(components=2, error_feedback=False), 1.0)],
)
def test_sparsifiers_contract_the_error(part, share):
    """||u - C(u)||^2 <= share ||u||^2: top-k by its fraction, a projection always."""
    for seed in range(5):
        u = {"w": torch.randn(12, 10, generator=torch.Generator().manual_seed(seed))}
        back, _, _ = arrived(part, u, part.client_init(u))
        assert tree.norm(tree.sub(u, back)) ** 2 <= share * tree.norm(u) ** 2 + 1e-6


def test_qsgd_is_unbiased_and_within_the_variance_bound():
    """Alistarh et al. 2017, lemma 3.1: E ||Q(u) - u||^2 <= min(n / s^2, sqrt(n) / s) ||u||^2, s = 127 levels."""
    part, u = Quantize(stochastic=True, norm="l2"), {"w": torch.linspace(-1, 2, 50)}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = torch.stack([arrived(part, u)[0]["w"] for _ in range(2000)])
    step = torch.linalg.vector_norm(u["w"]) / 127
    torch.testing.assert_close(draws.mean(0), u["w"], rtol=0, atol=4 * float(step) / 2 / 2000**0.5)
    assert (draws - u["w"]).square().sum(1).mean() <= 50 / 127**2 * u["w"].square().sum()


def test_half_precision_keeps_its_bits_and_bounds_large_numbers():
    u = {"w": torch.tensor([1.0, 1 + 2**-7, 1 + 2**-9, 1e6]), "n": torch.tensor([3])}
    back, _, sent = arrived(HalfPrecision(), u)
    assert sent["w"].dtype == torch.bfloat16 and back["w"].dtype == torch.float32
    assert back["w"][:3].tolist() == [1.0, 1 + 2**-7, 1.0] and sent["n"].dtype == torch.int64
    assert arrived(HalfPrecision(format="float16"), u)[0]["w"].tolist() == [
        1.0,
        1 + 2**-7,
        1 + 2**-9,
        65504.0,
    ]


def test_random_mask_keeps_the_same_places_of_all_clients_and_other_ones_in_each_round():
    part, u = (
        RandomMask(fraction=0.25, error_feedback=False),
        {"w": torch.arange(1.0, 41.0).view(8, 5)},
    )
    kept = [arrived(part, u, round=r)[0]["w"] for r in (0, 0, 1)]
    assert torch.equal(kept[0], kept[1]) and not torch.equal(kept[0], kept[2])
    assert int(kept[0].count_nonzero()) == 10 and torch.equal(
        kept[0], torch.where(kept[0] != 0, u["w"], 0.0)
    )
    everywhere = sum(
        (arrived(part, {"w": torch.ones(8, 5)}, round=r)[0]["w"] for r in range(400)),
        torch.zeros(8, 5),
    )
    assert (
        float((everywhere - 100).abs().max()) < 4.5 * (400 * 0.25 * 0.75) ** 0.5
    )  # 40 places, 4.5 deviations


@pytest.mark.parametrize(
    "part", [RandomMask(fraction=0.3), HalfPrecision(format="float16")], ids=lambda p: p.name
)
def test_sum_of_additive_encodings_decodes_to_the_sum(part):
    g = torch.Generator().manual_seed(0)
    updates = [{"w": torch.randn(6, 5, generator=g)} for _ in range(3)]
    sent = [arrived(part, u, part.client_init(u), 7)[2] for u in updates]
    each = [arrived(part, u, part.client_init(u), 7)[0]["w"] for u in updates]
    total = {n: sum(s[n].float() for s in sent)[None] for n in sent[0]}
    torch.testing.assert_close(part.decode(total, updates[0], 7)["w"][0], sum(each))
    assert part.additive


def test_powersgd_of_a_matrix_within_its_rank_is_exact_and_finds_the_largest_directions():
    g = torch.Generator().manual_seed(1)
    left, right = (torch.linalg.qr(torch.randn(n, 3, generator=g)).Q for n in (9, 8))
    part = PowerSGD(components=2, error_feedback=False)
    low = {
        "w": left[:, :2] @ torch.diag(torch.tensor([3.0, 2.0])) @ right[:, :2].T,
        "b": torch.ones(9),
    }
    back, kept, sent = arrived(part, low, part.client_init(low))
    torch.testing.assert_close(back["w"], low["w"])
    assert back["b"].tolist() == [1.0] * 9 and {n: list(t.shape) for n, t in sent.items()} == {
        "w:left": [9, 2],
        "w:right": [8, 2],
        "b": [9],
    }
    one = {
        "w": left[:, :1] @ right[:, :1].T,
        "b": torch.ones(9),
    }  # a direction is missing: it is 0 and starts anew
    back, again, sent = arrived(part, one, part.client_init(one))
    torch.testing.assert_close(back["w"], one["w"])
    assert not sent["w:left"][:, 1].any() and torch.equal(
        again["w:start"][:, 1], part.client_init(one)["w:start"][:, 1]
    )
    full, kept = (
        {"w": left @ torch.diag(torch.tensor([3.0, 1.0, 0.1])) @ right.T},
        part.client_init(low),
    )
    for _ in range(20):  # the warm start is a power iteration
        back, kept, _ = arrived(part, full, kept)
    assert tree.norm(tree.sub(full, back)) == pytest.approx(0.1, rel=1e-3)


def test_powersgd_sends_small_matrices_whole_and_convolutions_by_output_channel():
    u = {"small": torch.randn(3, 5), "conv": torch.randn(8, 4, 3, 3)}
    back, _, sent = arrived(PowerSGD(), u, PowerSGD().client_init(u))
    assert sent["small"] is u["small"] or torch.equal(sent["small"], u["small"])
    assert (
        sent["conv:left"].shape == (8, 2)
        and sent["conv:right"].shape == (36, 2)
        and back["conv"].shape == (8, 4, 3, 3)
    )


@pytest.mark.parametrize(
    "spec",
    [
        "topk(fraction=0.5) + quantize",
        "powersgd(components=1) + half_precision",
        "quantize + half_precision",
    ],
)
def test_chained_compressors_decode_and_their_bytes_are_counted(spec):
    method, model = Method.parse(spec), mlp(8, 16)
    sim = Simulation(method, model, Clients.random((5, 6), dim=8), lr=0.1)
    cohort = sim.round()
    sent = sum(i.bytes for i in wire(method, model) if i.direction == "up") - NUMBERS_BYTES
    assert (
        sent
        == tree.nbytes(tree.row(cohort.update, 0))
        < 4 * sum(w.numel() for w in sim.params.values())
    )
    assert all(t.isfinite().all() for t in sim.params.values())


def test_second_sparsifier_and_error_of_a_part_of_an_update_are_refused():
    with pytest.raises(UnalikeError, match="room for one"):
        Method.parse("topk + powersgd")
    with pytest.raises(UnalikeError, match="give error_feedback=True to topk alone"):
        Method.parse("topk + quantize(error_feedback=True)").check(Work())
    Method.parse("topk(error_feedback=True) + quantize").check(Work())
