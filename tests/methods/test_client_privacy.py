"""Client-level differential privacy: numbers by hand, the sensitivity of the sum, the noise, and the adaptive bound."""

from dataclasses import dataclass, replace

import pytest
import torch
from every_method import METHODS, SIZES, federation
from simulation import Clients, Simulation, advance, mlp

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.privacy import ReleaseSampling
from unalike.methods.method import Method
from unalike.methods.roles import ServerStep
from unalike.training.server import server_update
from unalike.training.server.updates import decode_updates

WORK = {"epochs": 1, "batch_size": 4, "lr": 0.1}


def simulation(spec, sampling=None, secret=False, sizes=SIZES):
    sim = Simulation(spec, mlp(), Clients.random(sizes), **WORK)
    sim.settings = replace(sim.settings, sampling=sampling, secret_noise=secret)
    pool = sim.executor.client_pool
    object.__setattr__(pool, "settings", sim.settings)
    return sim


def about(deviation, count):
    """A deviation that was measured on so many normal numbers, within four standard errors."""
    return pytest.approx(deviation, rel=4 / (2 * count) ** 0.5)


def moved(sim, cohort):
    after = advance(sim.method, sim.settings, sim.state, cohort)
    return tree.flatten(tree.sub(after.params, sim.state.params))


def test_update_is_the_sum_of_clipped_updates_over_the_expected_number():
    sim = simulation(
        "client_dp(noise_multiplier=0, clip=0.05)", ReleaseSampling(4, 2.5, "poisson", 10)
    )
    plain = simulation("uniform").run()
    cohort = sim.run()
    rows = [tree.flatten(tree.row(plain.stacked.update, k)) for k in range(4)]
    clipped = [u * min(1, 0.05 / float(u.norm())) for u in rows]
    assert any(float(u.norm()) > 0.05 for u in rows)
    torch.testing.assert_close(moved(sim, cohort), sum(clipped) / 2.5, rtol=1e-4, atol=1e-7)


def test_without_noise_and_bound_it_is_the_unweighted_mean():
    private, plain = simulation("client_dp(noise_multiplier=0, clip=1e9)"), simulation("uniform")
    torch.testing.assert_close(moved(private, private.run()), moved(plain, plain.run()))


def _accepted(name):
    try:
        private = METHODS[name].swap("client_dp(noise_multiplier=0, clip=0.03)")
    except UnalikeError:
        return None
    sim = federation(private)
    return sim if not private.privacy.leaks(private, sim.settings) else None


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [n for n in METHODS if "client_dp" not in n])
def test_no_client_moves_the_sum_by_more_than_the_bound(name):
    """Of adjacent data sets, one has zeros for a client's contribution: the sums differ by that contribution."""
    sim = _accepted(name)
    if sim is None:
        pytest.skip("refused; tests/contract/test_private_methods.py says why")
    cohort = sim.run()
    decoded = decode_updates(sim.method, cohort.stacked.update, sim.state)
    norms = [float(tree.norm(tree.row(decoded, k))) for k in range(len(SIZES))]
    assert max(norms, default=0) <= 0.03 * (1 + 1e-5)
    assert cohort.stacked.loss.abs().sum() == 0  # it has no noise


def test_noise_has_the_deviation_of_the_mechanism_in_every_round_anew():
    sim = simulation("client_dp(noise_multiplier=2, clip=0.5)", ReleaseSampling(4, 4, "all", 10, 4))
    still = simulation(
        "client_dp(noise_multiplier=0, clip=0.5)", ReleaseSampling(4, 4, "all", 10, 4)
    )
    noise = [moved(sim, sim.run()) - moved(still, still.run())]
    sim.state, still.state = (s.state._replace(round=1) for s in (sim, still))
    noise.append(moved(sim, sim.run()) - moved(still, still.run()))
    for drawn in noise:
        assert float(drawn.std()) == about(2 * 0.5 / 4, len(drawn))
    assert abs(float(torch.corrcoef(torch.stack(noise))[0, 1])) < 4 / len(noise[0]) ** 0.5


def test_noise_follows_the_seed_in_a_simulation_and_never_in_a_federation():
    sampling = ReleaseSampling(4, 4, "all", 10, 4)
    for where in ("server", "site"):
        spec = f"client_dp(noise_multiplier=1, where={where!r})"
        again = [simulation(spec, sampling) for _ in range(2)]
        assert torch.equal(*(moved(s, s.run()) for s in again))
        secret = [simulation(spec, sampling, secret=True) for _ in range(2)]
        assert not torch.equal(*(moved(s, s.run()) for s in secret))


def test_shares_of_sites_add_up_to_the_noise_of_the_server():
    sampling = ReleaseSampling(40, 40, "all", 1, 40)
    noisy = simulation(
        "client_dp(noise_multiplier=3, clip=0.1, where='site')", sampling, sizes=[3] * 40
    )
    still = simulation(
        "client_dp(noise_multiplier=0, clip=0.1, where='site')", sampling, sizes=[3] * 40
    )
    a, b = noisy.run(), still.run()
    shares = torch.stack(
        [tree.flatten(tree.row(tree.sub(a.stacked.update, b.stacked.update), k)) for k in range(40)]
    )
    assert float(shares.std()) == about(3 * 0.1 / 40**0.5, shares.numel())
    assert float(shares.sum(0).std()) == about(3 * 0.1, shares.shape[1])
    torch.testing.assert_close(
        moved(noisy, a) - moved(still, b), shares.sum(0) / 40, rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("executor", ["loop", "by hand", "batched"])
def test_bound_follows_the_quantile_of_norms(executor):
    sim = Simulation(
        "client_dp(noise_multiplier=0, clip=10.0, quantile=0.25, clip_lr=0.5)",
        mlp(),
        Clients.random(SIZES),
        executor=executor,
        **WORK,
    )
    sim.round()
    assert float(sim.state.part_states["client_dp"]["clip"]) == pytest.approx(
        10 * torch.e ** (-0.5 * (1 - 0.25)), rel=1e-5
    )
    for _ in range(40):
        sim.round()
    plain = simulation("uniform")
    plain.state = plain.state._replace(params=sim.params, round=sim.state.round)
    norms = sorted(float(tree.norm(tree.row(plain.run().stacked.update, k))) for k in range(4))
    assert norms[0] * 0.6 < float(sim.state.part_states["client_dp"]["clip"]) < norms[2]


def test_noise_of_the_adaptive_bound_is_paid_for_by_the_sum():
    """1/z^2 = 1/z_sum^2 + 1/(2 s)^2 (Andrew et al. 2021, theorem 1), for a large cohort and for a small one."""
    part = Method.parse("client_dp(noise_multiplier=1.5, quantile=0.5)").privacy
    sim = simulation("client_dp")
    for expected, deviation in ((400, 20.0), (4, 1.5)):
        settings = replace(sim.settings, sampling=ReleaseSampling(1000, expected, "poisson", 1))
        assert part._deviation_of_count(1.5, settings, expected) == deviation
        total = part._multiplier_of_sum(1.5, settings, expected) ** -2 + (2 * deviation) ** -2
        assert total == pytest.approx(1.5**-2)


def test_round_without_clients_has_the_same_noise():
    sim = simulation(
        "client_dp(noise_multiplier=2) + server_momentum", ReleaseSampling(4, 1, "poisson", 10)
    )
    after = server_update.advance(sim.method, sim.settings, sim.state, None, sim.members)
    change = tree.flatten(tree.sub(after.params, sim.state.params))
    assert after.round == 1 and float(change.std()) == about(2, len(change))


@pytest.mark.parametrize(
    "spec, seen",
    [("client_dp", []), ("dp_sgd", [*SIZES]), ("fedavg", [*SIZES])],
    ids=["client", "sample", "plain"],
)
def test_server_steps_see_no_cohort_where_clients_are_hidden(spec, seen):
    """They would tell who took part: the draw of the cohort amplifies epsilon only while nobody knows it."""
    shown = []

    @dataclass(frozen=True)
    class Curious(ServerStep):
        name = "curious"

        def step(self, server, update, cohort):
            shown.extend(cohort.sizes.tolist())
            assert len(cohort.ids) == len(cohort.steps) == len(seen)
            return update, server.state

    sim = Simulation(Method.parse(spec) + Curious(), mlp(), Clients.random(SIZES), **WORK)
    sim.round()
    assert shown == seen


def test_two_ways_to_say_the_noise_are_refused():
    with pytest.raises(UnalikeError, match="expected one of them"):
        simulation("client_dp(epsilon=3, noise_multiplier=1)")
    with pytest.raises(UnalikeError, match="noise_multiplier, which sites agree to"):
        simulation("client_dp(epsilon=3, where='site')")
    with pytest.raises(
        UnalikeError, match="epsilon is known for a sum with equal, fixed weights alone"
    ):
        Method.parse("fednova + client_dp")
