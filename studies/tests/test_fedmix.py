"""The FedMix studies: at the small scale, clients make the paper's numbers of steps and get the samples that they ask for."""

import warnings

import numpy as np
import pytest

import unalike as ua
from unalike.core.work import share_of_steps
from unalike.data.dataset import Dataset
from unalike.methods.plan import steps_of
from unalike.runtime.stages.local_backend import LocalBackend
from unalike_studies.catalogue import study

SIZES = {"zipf_more": 1498, "even_more": 1488, "even_less": 124}


@pytest.fixture(scope="module")
def balanced():
    """As many samples of each class as the small scale has glyphs, without features to speak of."""
    y = np.tile(np.arange(62), (70000 + 12000) // 62)
    return Dataset("balanced", (np.zeros((len(y), 1), np.float32), y))


@pytest.mark.parametrize("name", [f"fedmix-figure{number}" for number in range(3, 8)])
def test_small_scale_gives_clients_what_they_ask_for(name, balanced):
    for options in study(name).scale("small").settings.values():
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # too few samples are a warning
            clients = ua.partition(balanced, options["partition"])
        assert set(clients.sizes) == {
            size for kind, size in SIZES.items() if kind in options["partition"]
        }


def test_clients_with_lower_case_make_few_steps():
    scale = study("fedmix-work").scale("small")
    [cell] = [c for c in scale.cells if str(c) == "FedNova, few steps, other data, seed 0"]
    run_config = cell.prepare()
    backend = LocalBackend(run_config)
    stage = backend.stage(next(steps_of(run_config.plan, run_config.plan_inputs)), 0, None)
    [group] = stage.state.groups.values()
    shares = group.client_pool.shares(range(12), 0)
    steps = [share_of_steps(38, share) for share in shares]
    assert group.client_pool.steps(187) == 38 and steps == 8 * [38] + 4 * [3]


def test_small_scale_has_the_steps_of_the_paper():
    paper, small = (
        study("fedmix-figure7").scale(scale).common["work"]["batch_size"]
        for scale in ("paper", "small")
    )
    steps = {kind: -(-size // small) for kind, size in SIZES.items()}
    assert steps["zipf_more"] == steps["even_more"] == -(-5973 // paper) == -(-5952 // paper) == 60
