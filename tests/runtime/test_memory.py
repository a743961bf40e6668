"""A run that nobody holds any more is freed at once."""

import gc
import weakref

import pytest
import torch

import unalike as ua


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize(
    "method", ["fedavg", "scaffold", "ditto", "fedlws", "fine_tuned", "ifca(clusters=2)"]
)
def test_finished_run_is_freed_without_garbage_collection(method, executor):
    """A circle of references would keep its clients' samples until Python happens to look for circles."""

    def references():
        samples = torch.randn(8, 4), torch.arange(8) % 3
        clients = [ua.ClientData(train=samples, test=samples) for _ in range(3)]
        run = ua.run(method, clients, model="linear", rounds=2, executor=executor, seed=0)
        return [
            weakref.ref(run),
            weakref.ref(run.run_config),
            weakref.ref(run.run_config.population),
        ]

    references()  # caches are filled
    gc.collect()
    gc.disable()
    try:
        assert [reference() for reference in references()] == [None, None, None]
    finally:
        gc.enable()
