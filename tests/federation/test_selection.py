"""The part that chooses clients of a simulation chooses the sites of a federation."""

from dataclasses import replace

import pytest
import torch
from secure_federation import TERMS
from small_federation import SmallFederation, make_clients, states

from unalike._utils.errors import UnalikeError
from unalike.federation.coordinator.federation_folder import roll_back

SAMPLE_SIZES = ((20, 8), (12, 6), (16, 6), (9, 5))
BY_LOSS = "fedavg + power_of_choice(d=3)"


def chosen(run):
    return run.history.clients["chosen"].fillna("").tolist()


def test_sampler_asks_the_sites_that_it_asks_in_a_simulation_also_after_a_rollback(tmp_path):
    clients = make_clients(SAMPLE_SIZES)
    fed = SmallFederation(
        tmp_path, clients, BY_LOSS, participation=2, rounds=4, quorum=2, keep_every=2
    )
    before = fed.run()
    reasons = chosen(before)
    assert "new" in reasons and any(reason.startswith("loss") for reason in reasons)
    simulated = fed.simulated(participation=0.5)
    assert reasons == chosen(simulated)

    # what the sampler knows of the sites is part of the kept round
    roll_back(fed.out, 2)
    after = fed.run()
    assert chosen(after) == reasons
    [expected] = states(before).values()
    for run in (simulated, after):
        [found] = states(run).values()
        for name, t in expected.items():
            assert torch.equal(found[name], t), name


def test_choice_by_losses_is_refused_beside_secure_aggregation(tmp_path):
    with pytest.raises(UnalikeError, match="power_of_choice asks sites by their losses"):
        SmallFederation(tmp_path, make_clients(SAMPLE_SIZES), BY_LOSS, **TERMS)


def test_oort_measures_the_seconds_of_sites(tmp_path):
    fed = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES), "fedavg + oort", rounds=2)
    known = fed.run()._runner.state.sampler_state
    assert (known["seconds"] > 0).all()


def test_rule_that_asks_too_few_sites_is_refused_before_the_first_round(tmp_path):
    named = "fedavg + named_clients(clients=('site0', 'site1'))"
    fed = SmallFederation(tmp_path / "sum", make_clients(SAMPLE_SIZES), named, **TERMS)
    with pytest.raises(UnalikeError, match=r"named_clients asks 2 of the 4 sites .* expected 3"):
        fed.run()

    # without it the run would go on with rounds in which nobody trains
    fed = SmallFederation(
        tmp_path / "revoked", make_clients(SAMPLE_SIZES), "named_clients(clients=('site0',))"
    )
    first, *others = fed.federation.sites
    fed.federation = replace(fed.federation, sites=(replace(first, revoked=True), *others))
    with pytest.raises(UnalikeError, match="named_clients asks 0 of the 3 sites"):
        fed.run()
