"""Plans of several stages and groups: one history, one folder, resumption across the boundary."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch

import unalike as ua
from unalike.methods.plan import Stage, StagedPlan
from unalike.metrics.columns import TIMES

GROUPS = {"left": (0, 1, 2), "right": (3, 4, 5)}


@dataclass(frozen=True)
class Two(StagedPlan):
    """Groups first, then all together; or the other way round."""

    grouped_first: bool = True

    def stages(self, plan_inputs):
        grouped = Stage(
            "grouped", ua.Method.parse("fedavg + ditto"), plan_inputs.rounds // 2, GROUPS
        )
        together = Stage(
            "together", ua.Method.parse("scaffold"), plan_inputs.rounds - plan_inputs.rounds // 2
        )
        states = yield grouped if self.grouped_first else together
        assert set(states) == (set(GROUPS) if self.grouped_first else {"all"})
        yield together if self.grouped_first else grouped


def test_history_of_two_stages_counts_rounds_through(people, small):
    run = small(Two(), people, rounds=5)
    rounds = run.history.rounds
    assert (
        rounds["round"].tolist() == [0, 1, 2, 3, 4, 5]
        and rounds["participants"].tolist() == [0] + [5] * 5
    )
    assert (
        rounds["bytes_up"].iloc[3] > 1.9 * rounds["bytes_up"].iloc[1]
    )  # SCAFFOLD sends twice as much
    assert rounds["personal_accuracy"].notna().tolist() == [True] * 3 + [False] * 3
    assert all(torch.equal(run.params[n], run.personal(0)[n]) for n in run.params)


def test_run_ending_in_groups_has_no_shared_model(people, small, tmp_path):
    run = small(Two(grouped_first=False), people, rounds=4, out=tmp_path)
    for what in (lambda: run.params, run.module):
        with pytest.raises(ua.UnalikeError, match=r"2 models, one per group; use run.personal"):
            what()
    assert (tmp_path / "model-left.safetensors").exists() and (
        tmp_path / "model-right.safetensors"
    ).exists()
    alone = small("ditto", people[:3], rounds=2)
    assert (
        alone.history.rounds["accuracy"].notna().all()
        and run.history.rounds["accuracy"].notna().all()
    )


def test_group_in_a_stage_equals_run_of_its_clients_alone(people, small):
    """The first group holds clients 0 to 2, so its numbers are those of a run of these three."""
    run = small(Two(grouped_first=False), people, rounds=4)
    alone = small("ditto", people[:3], rounds=2)
    for k in range(3):
        for name, value in alone.personal(k).items():
            torch.testing.assert_close(run.personal(k)[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("moment", [1, 3, 4, 5])
def test_resume_after_interrupt_in_any_stage_gives_same_model(
    people, small, alike, tmp_path, first, moment
):
    def interrupt(row, what=""):
        if row["round"] == moment:
            raise KeyboardInterrupt

    options = {"rounds": 6, "participation": 0.6}
    with pytest.raises(KeyboardInterrupt):
        small(Two(first), people, out=tmp_path, progress=interrupt, **options)
    resumed, whole = (
        small(Two(first), people, out=tmp_path, **options),
        small(Two(first), people, **options),
    )
    tables = [r.history.rounds.drop(columns=[*TIMES]) for r in (resumed, whole)]
    assert tables[0].equals(tables[1]) and resumed.history.clients.equals(whole.history.clients)
    for k in range(6):
        assert all(torch.equal(resumed.personal(k)[n], v) for n, v in whole.personal(k).items())
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [e["round"] for e in events if e["event"] == "resumed"] == [moment]


def test_resume_of_finished_plan_gives_same_model_and_history(people, small, tmp_path):
    one, two = (small(Two(), people, rounds=4, out=tmp_path) for _ in range(2))
    assert all(torch.equal(one.params[n], two.params[n]) for n in one.params)
    assert one.history.clients.equals(two.history.clients)


def test_resume_with_more_rounds_after_first_stage_is_refused(people, small, tmp_path):
    """The rounds are split over the stages: more of them is another plan from the first boundary on."""
    small(Two(), people, rounds=4, out=tmp_path)
    with pytest.raises(
        ua.UnalikeError, match="stage 'grouped' ended after 2 rounds in this folder and has 4"
    ):
        small(Two(), people, rounds=8, out=tmp_path)
    assert len(small(Two(), people, rounds=4, out=tmp_path).history) == 5


def test_resume_with_more_rounds_in_first_stage_equals_longer_run(people, small, alike, tmp_path):
    def interrupt(row, what=""):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(Two(), people, rounds=6, out=tmp_path, progress=interrupt)
    alike(small(Two(), people, rounds=8, out=tmp_path), small(Two(), people, rounds=8))
