"""Check of a federation's terms before keys and bundles are made."""

from __future__ import annotations

from collections.abc import Mapping

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.federation.coordinator.remote_stage import check_stage
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.roster import Roster, SampleCounts, placeholders, run_config_of
from unalike.methods.plan import Stage
from unalike.runtime.run_config import Pair
from unalike.training.client_update import trained_names


def check_terms_run(federation: Federation, own: Mapping[str, Pair | None]) -> None:
    """Build the run as its coordinator will, with one sample per split at each site and the coordinator's "test" and "proxy".

    Raises `UnalikeError` for terms that cannot be run.
    """
    one = SampleCounts(train=1, test=1, val=int(federation.val > 0))
    population = placeholders(federation, Roster("", {site.name: one for site in federation.sites}))
    run_config = run_config_of(federation, population, own.get("test"), own.get("proxy"), coordinated=True)
    for step in run_config.outline:
        if isinstance(step, Stage):
            check_stage(step, run_config)
            step.method.check_task(run_config.settings.task)
            model = step.model or run_config.model
            for phase in step.method.phases if step.trained else ():
                trained_names(step.method, phase, model)
            least = tree.nbytes(tree.only(model.params, step.method.sent(model.params, model)))
            if least > federation.message_bytes:
                raise UnalikeError(
                    f"what sites share of the model has {least} bytes and a message may have {federation.message_bytes}: raise "
                    "--message-bytes"
                )
