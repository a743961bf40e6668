"""Client states: versions, rows, files."""

import numpy as np
import pytest
import torch
from every_method import SIZES
from simulation import Clients, Simulation, mlp, same

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.training.client.client_states import ClientStates


def memory_of(value, size=1000):
    return {"part": {"w": torch.full((size,), float(value)), "n": torch.tensor(value)}}


def stacked_memories(*values):
    return {"part": tree.stack([memory_of(value)["part"] for value in values])}


def test_client_states_beyond_budget_are_stored_in_files_and_read_back_equal(tmp_path):
    """Ten clients of 4 kB with room for three rows, of which one is the initial memory: every value is what it was."""
    client_states = ClientStates(memory_of(-1), tmp_path, budget=12500)
    for k in range(10):
        client_states.put(k, 0, memory_of(k), None)
    blocks = client_states._table._blocks
    assert blocks[1].first == 3 and client_states._table.rows > 10
    for k in (9, 0, 5, 5, 2, 0):
        assert same(client_states.get(k, 0), memory_of(k))
    assert same(client_states.get(3, None), memory_of(-1))
    assert same(client_states.stacked([9, 0, 3, 11], {9: 0, 0: 0}), stacked_memories(9, 0, -1, -1))


def test_client_states_stacked_equal_single_ones(tmp_path):
    """Whoever put them, and in whatever order they are asked for; those that only a file holds are read from there."""
    client_states = ClientStates(memory_of(-1), tmp_path)
    client_states.put_stacked([5, 0, 70], 3, stacked_memories(5, 0, 70), {})
    client_states.put(2, 3, memory_of(2), None)
    accepted = {5: 3, 0: 3, 70: 3, 2: 3}
    client_states.save(accepted)
    later = ClientStates(memory_of(-1), tmp_path)
    later.use_versions(accepted)
    later.put(5, 4, memory_of(50), accepted=3)
    for held, now in ((client_states, accepted), (later, accepted), (later, accepted | {5: 4})):
        ids = [70, 1, 5, 2, 0]
        singles = [held.get(k, now.get(k)) for k in ids]
        values = [70, -1, 50 if now[5] == 4 else 5, 2, 0]
        assert all(same(m, memory_of(v)) for m, v in zip(singles, values, strict=True))
        assert same(held.stacked(ids, now), stacked_memories(*values))
    assert ClientStates({}).stacked([1, 2], {1: 0}) == {} == ClientStates({}).get(1, 0)


def test_client_states_keep_their_types(tmp_path):
    initial = {
        "a": {"flag": torch.tensor([True, False]), "none": torch.zeros(0, 3), "n": torch.tensor(7)},
        "b": {
            "w": torch.randn(3, 2, 2, dtype=torch.float64),
            "h": torch.randn(5).bfloat16(),
            "c": torch.randn(2, 3).t(),
        },
    }
    for budget in (10**9, 1):
        client_states = ClientStates(initial, tmp_path, budget)
        client_states.put(4, 0, initial, None)
        client_states.put_stacked(
            [1],
            0,
            {name: tree.map(lambda t: t.expand(1, *t.shape), d) for name, d in initial.items()},
            {},
        )
        for found in (client_states.get(4, 0), client_states.get(1, 0)):
            assert same(found, initial) and all(
                t.is_contiguous() for d in found.values() for t in d.values()
            )


@pytest.mark.parametrize(
    ("initial", "made", "what"),
    [
        (
            {},
            {"part": {"w": torch.zeros(2)}},
            r"part gives clients nothing as w .* and float32 \[2\] after it",
        ),
        (
            memory_of(0),
            {"part": {"w": torch.zeros(1000)}},
            r"int64 \[\] as n before their first round and nothing after",
        ),
        (
            memory_of(0),
            memory_of(0, size=999),
            r"float32 \[1000\] as w .* and float32 \[999\] after it.*client_init",
        ),
        (
            memory_of(0),
            {"part": memory_of(0)["part"] | {"n": torch.tensor(0.5)}},
            r"int64 \[\] as n .* float32 \[\]",
        ),
    ],
    ids=["never begun", "lost", "other shape", "other type"],
)
def test_client_states_unlike_initial_one_are_refused(initial, made, what):
    """Dropped without a word, a part would be trained as if its clients remembered nothing."""
    with pytest.raises(UnalikeError, match=what):
        ClientStates(initial).put(0, 0, made, None)


def test_client_states_read_are_copies(tmp_path):
    """Neither what was put nor what was handed out is tied to what is kept."""
    for budget in (10**9, 1):
        client_states = ClientStates(memory_of(-1), tmp_path, budget)
        given = memory_of(1)
        client_states.put(0, 0, given, None)
        given["part"]["w"].zero_()
        single, several = client_states.get(0, 0), client_states.stacked([0, 1], {0: 0})
        for round in (1, 2, 3):  # over the row of round 0
            client_states.put(0, round, memory_of(10 + round), accepted=round - 1)
        assert same(single, memory_of(1)) and same(several, stacked_memories(1, -1))
        client_states.get(0, 3)["part"]["w"].zero_()
        assert same(client_states.get(0, 3), memory_of(13)) and same(
            client_states.get(9, None), memory_of(-1)
        )


def test_client_states_grow_by_blocks_and_reuse_free_rows(tmp_path, monkeypatch):
    """No block is ever moved or grows, and a second version of everybody is all the room that rounds without end need."""
    monkeypatch.setattr("unalike.training.client.state_table.MIN_BLOCK_BYTES", 10 * 4008)
    client_states, clients = (
        ClientStates(memory_of(-1), tmp_path, budget=60 * 4008),
        list(range(100)),
    )
    blocks, accepted = [], {}
    for round in range(6):
        client_states.put_stacked(
            clients, round, stacked_memories(*(100 * round + k for k in clients)), accepted
        )
        found = [block.columns["part/w"] for block in client_states._table._blocks]
        assert [t.data_ptr() for t in found[: len(blocks)]] == [t.data_ptr() for t in blocks]
        blocks, accepted = found, dict.fromkeys(clients, round)
        assert same(
            client_states.stacked(clients[::-1], accepted),
            stacked_memories(*(100 * round + k for k in clients[::-1])),
        )
    assert 201 <= client_states._table.rows < 260 and client_states._index._used == 201


def test_client_states_random_sequence_follows_version_rule(tmp_path):
    """Against a dict per client: what is accepted, pinned or new stays; rounds are refused, repeated, pinned and asked for."""
    rng = np.random.default_rng(0)
    for budget in (10**9, 5 * 4008):
        client_states, kept, accepted, pinned = (
            ClientStates(memory_of(-1), tmp_path, budget),
            {},
            {},
            {},
        )
        for round in range(40):
            ids = rng.choice(12, 5, replace=False).tolist()
            for attempt in range(rng.integers(1, 3)):
                values = rng.integers(0, 1000, len(ids)).tolist()
                if attempt:
                    for k, v in zip(ids, values, strict=True):
                        client_states.put(k, round, memory_of(v), accepted.get(k))
                else:
                    client_states.put_stacked(ids, round, stacked_memories(*values), accepted)
                for k, v in zip(ids, values, strict=True):
                    stands = {accepted.get(k), pinned.get(k)}
                    kept[k] = {r: old for r, old in kept.get(k, {}).items() if r in stands} | {
                        round: v
                    }
            accepted |= dict.fromkeys([k for k in ids if rng.random() < 0.7], round)
            if rng.random() < 0.2:
                pinned = dict(accepted)
                client_states.pin_versions(pinned)
            for stands in (accepted, pinned):
                ids = [k for k in range(12) if stands.get(k) is None or stands[k] in kept[k]]
                values = [kept[k][stands[k]] if k in stands else -1 for k in ids]
                assert same(client_states.stacked(ids, stands), stacked_memories(*values))
                assert ids == list(range(12)) or stands is not accepted
        assert client_states._index._used <= 1 + 3 * 12


def test_client_states_put_after_refused_round_keep_accepted_version(tmp_path):
    for budget in (10**9, 1):
        client_states = ClientStates(memory_of(-1), tmp_path / str(budget), budget)
        client_states.put(0, 0, memory_of(10), None)
        client_states.put(0, 1, memory_of(11), accepted=0)
        assert same(client_states.get(0, 0), memory_of(10)) and same(
            client_states.get(0, 1), memory_of(11)
        )
        client_states.put(0, 2, memory_of(12), accepted=0)  # round 1 was refused
        assert same(client_states.get(0, 0), memory_of(10)) and same(
            client_states.get(0, 2), memory_of(12)
        )


def test_client_states_put_twice_in_one_round_hold_second_value(tmp_path):
    client_states = ClientStates(memory_of(-1), tmp_path, budget=1)
    client_states.put(0, 1, memory_of(1), None)
    client_states.put(1, 1, memory_of(5), None)
    client_states.put(0, 1, memory_of(2), None)
    client_states.put(1, 1, memory_of(5), None)
    assert same(client_states.get(0, 1), memory_of(2))


def test_client_states_saved_and_adopted_equal_accepted_versions(tmp_path):
    client_states = ClientStates(memory_of(-1), tmp_path)
    for k in range(3):
        client_states.put(k, 4, memory_of(k), None)
    client_states.save({0: 4, 1: 4})
    client_states.put(0, 5, memory_of(50), accepted=4)
    client_states.save({0: 5, 1: 4})
    client_states.drop_other_versions({0: 5, 1: 4})
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 2
    later = ClientStates(memory_of(-1), tmp_path)
    later.use_versions({0: 5, 1: 4})
    assert same(later.get(0, 5), memory_of(50)) and same(later.get(1, 4), memory_of(1))
    with pytest.raises(UnalikeError, match="cannot read"):
        later.get(2, 4)


def test_simulation_with_client_states_on_disk_equals_simulation_in_memory(tmp_path):
    sims = [
        Simulation("moon + apfl", mlp(norm=True), Clients.random(SIZES), batch_size=4)
        for _ in range(2)
    ]
    sims[1].executor.client_pool.client_states._table.budget = 1
    for sim in sims:
        for present in ([0, 1, 2, 3], [1, 2], [0, 1, 3]):
            sim.round(present)
    assert same(sims[0].params, sims[1].params) and all(
        same(sims[0].memory(k), sims[1].memory(k)) for k in range(4)
    )


def test_client_state_of_batched_executor_holds_its_own_storage():
    sim = Simulation("ditto", mlp(), Clients.random(SIZES), executor="batched", batch_size=4)
    sim.round()
    w = sim.memory(0)["proximal_model"]["body.weight"]
    assert w.untyped_storage().nbytes() == w.numel() * 4
