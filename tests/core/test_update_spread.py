"""The sum of stacked updates and how far each is from their mean, from one reading, is what two readings give."""

import importlib
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unalike.core import tree
from unalike.core.update_spread import column_moments, spread, weighted_sum_and_spread
from unalike.loops import crew as compiled_loops


def test_spread_of_three_updates_equals_values_by_hand():
    """(1, 0), (3, 4) and (2, 5) have the mean (2, 3): squared distances 1 + 9, 1 + 1 and 0 + 4."""
    found = spread(
        {"w": torch.tensor([[[1.0, 0]], [[3, 4]], [[2, 5]]]), "b": torch.tensor([1.0, 2, 6])}
    )
    torch.testing.assert_close(
        found, {"w": torch.tensor([10.0, 2, 4]), "b": torch.tensor([4.0, 1, 9])}
    )


@given(
    clients=st.integers(1, 9),
    shape=st.sampled_from([(1,), (3, 5), (2047,), (2048,), (2, 2049), (5000,)]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**16),
)
def test_compiled_sum_and_spread_equal_torch_in_float64(clients, shape, threads, seed):
    """Compiled loops against torch in double precision, clients that hardly differ among them."""
    pytest.importorskip("numba")
    g = torch.Generator().manual_seed(seed)
    common, own = torch.randn(shape, generator=g), torch.randn(clients, *shape, generator=g)
    stacked = {"a": common + 1e-3 * own, "b": own, "small": own.flatten(1)[:, 0]}
    weights = torch.rand(clients, generator=g)
    with pytest.MonkeyPatch.context() as patch, compiled_loops.crew_of(threads):
        patch.setattr("unalike.core.tree.LOOPS_FROM_BYTES", 1)
        total, apart = weighted_sum_and_spread(stacked, weights)
        alone = tree.weighted_sum(stacked, weights)
    assert all(torch.equal(alone[name], t) for name, t in total.items())
    exact = {name: t.double() for name, t in stacked.items()}
    torch.testing.assert_close(
        total,
        tree.map(torch.Tensor.float, tree.weighted_sum(exact, weights.double())),
        rtol=1e-5,
        atol=1e-6,
    )
    torch.testing.assert_close(
        apart, tree.map(torch.Tensor.float, spread(exact)), rtol=1e-3, atol=1e-7
    )


def test_compiled_sum_and_spread_are_bitwise_equal_for_any_thread_count(monkeypatch):
    passes = pytest.importorskip("unalike.loops.column_loops")
    monkeypatch.setattr("unalike.core.tree.LOOPS_FROM_BYTES", 1)
    read, combine = set(), passes.sum_and_spread
    stacked, weights = {"w": torch.randn(5, 2**18 + 77)}, torch.rand(5)
    found = []
    for threads in (1, 2, 3):
        all_here = threading.Barrier(threads)

        def together(*given, threads=threads, all_here=all_here):
            all_here.wait(60)  # who comes when all is done is not waited for
            read.add((threads, threading.get_ident()))
            return combine(*given)

        monkeypatch.setattr(passes, "sum_and_spread", together)
        with compiled_loops.crew_of(threads):
            found.append(weighted_sum_and_spread(stacked, weights))
    assert len(read) == 1 + 2 + 3
    for total, apart in found[1:]:
        assert torch.equal(total["w"], found[0][0]["w"]) and torch.equal(
            apart["w"], found[0][1]["w"]
        )


@pytest.mark.parametrize(
    "module, function",
    [
        ("loops.column_loops", "sum_and_spread"),
        pytest.param("loops.kernels", "train", marks=pytest.mark.exhaustive),
    ],
)
def test_compiled_loops_on_avx512_processor_use_64_byte_vectors(module, function):
    """Processors with vectors of 64 bytes for which the compiler would keep to 32."""
    binding = pytest.importorskip("llvmlite.binding")
    if not binding.get_host_cpu_features().get("avx512f"):
        pytest.skip("this processor has no vectors of 64 bytes")
    loops = getattr(importlib.import_module(f"unalike.{module}"), function)
    loops.recompile()  # what comes from the disk shows no assembly
    assert "zmm" in loops.inspect_asm(loops.signatures[0])


@pytest.mark.parametrize(
    "strange",
    [
        torch.randn(4, 30, dtype=torch.float64),
        torch.randn(30, 4).t(),
        torch.randn(4, 60)[:, ::2],
        torch.randn(4, 30).bfloat16(),
    ],
)
def test_sum_and_spread_of_other_dtype_or_layout_use_torch(strange, monkeypatch):
    """Other precisions, and rows that do not lie one after the other."""
    monkeypatch.setattr("unalike.core.tree.LOOPS_FROM_BYTES", 1)
    monkeypatch.setattr(compiled_loops, "share_out", lambda *_: pytest.fail("read by loops"))
    weights = torch.full((len(strange),), 0.25)
    total, apart = weighted_sum_and_spread({"w": strange}, weights)
    assert torch.equal(total["w"], tree.weighted_sum({"w": strange}, weights)["w"])
    assert torch.equal(apart["w"], spread({"w": strange})["w"])


def test_sum_and_spread_without_numba_equal_torch(monkeypatch):
    monkeypatch.setattr("unalike.core.tree.LOOPS_FROM_BYTES", 1)
    monkeypatch.setattr(compiled_loops, "loops", lambda module: None)
    stacked, weights = {"w": torch.randn(4, 30)}, torch.rand(4)
    total, apart = weighted_sum_and_spread(stacked, weights)
    torch.testing.assert_close(apart, spread(stacked))
    torch.testing.assert_close(total, tree.weighted_sum(stacked, weights))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_sum_and_spread_of_non_finite_update_stay_non_finite(bad, monkeypatch):
    monkeypatch.setattr("unalike.core.tree.LOOPS_FROM_BYTES", 1)
    t = torch.randn(3, 3000)
    t[1, 5] = bad
    total, apart = weighted_sum_and_spread({"w": t}, torch.full((3,), 1 / 3))
    assert (
        not total["w"][5].isfinite()
        and total["w"][6:].isfinite().all()
        and not apart["w"].isfinite().any()
    )


@given(
    clients=st.integers(1, 9),
    size=st.sampled_from([1, 5, 2047, 2048, 2049, 5000]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**16),
)
def test_compiled_moments_of_columns_equal_torch_in_float64(clients, size, threads, seed):
    """Every fifth column is the same in all clients: its mean is exact, and its deviation 0."""
    pytest.importorskip("numba")
    g = torch.Generator().manual_seed(seed)
    u, weights = torch.randn(clients, size, generator=g), torch.rand(clients, generator=g)
    weights, u[:, ::5] = weights / weights.sum(), u[0, ::5].clone()
    with pytest.MonkeyPatch.context() as patch, compiled_loops.crew_of(threads):
        patch.setattr("unalike.core.tree.LOOPS_FROM_BYTES", 1)
        mean, sd, least, most = column_moments(u, weights, tree.column_loops({"": u}))
    wanted = column_moments(u.double(), weights.double())
    assert torch.equal(mean[::5], u[0, ::5]) and not sd[::5].any() and least == 0
    torch.testing.assert_close(mean, wanted[0].float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sd, wanted[1].float(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(most, wanted[3].float(), rtol=1e-5, atol=1e-7)


def test_large_weighted_sum_has_the_gradient_of_its_weights(monkeypatch):
    """A server that learns its weights (FedLAW) differentiates the sum."""
    monkeypatch.setattr("unalike.core.tree.LOOPS_FROM_BYTES", 1)
    stacked, weights = {"w": torch.randn(3, 50)}, torch.rand(3, requires_grad=True)
    tree.weighted_sum(stacked, weights)["w"].sum().backward()
    torch.testing.assert_close(weights.grad, stacked["w"].sum(1))
