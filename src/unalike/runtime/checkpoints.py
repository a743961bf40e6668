"""The steps of a plan in a run's checkpoints: stages by their state dicts, client queries by their answers."""

from __future__ import annotations

import time

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.types import Tree
from unalike.methods.plan import Answers
from unalike.runtime.backend import StageBackend
from unalike.runtime.best_round import BestRound
from unalike.runtime.records.run_directory import RunDirectory
from unalike.runtime.stage_state import Facts

StateDict = tuple[Tree, list[Facts]]
"""The value of `StageBackend.state_dict`."""


class Checkpoints:
    """Reads the last checkpoint of a folder, takes in the state of stages as rounds are complete, and writes the next one.

    Args:
        directory: the folder of the run; None: nothing is written.
        saved: tensors and facts of the checkpoint that the run goes on from.
    """

    def __init__(self, directory: RunDirectory | None, saved: tuple[Tree, Facts] | None):
        self._directory, self._saved = directory, saved
        self._stages: dict[int, tuple[StageBackend, StateDict]] = {}
        self._answers: dict[int, tuple[str, Answers]] = {}
        self._facts: Facts = {}
        self._is_written, self._written_at = True, time.monotonic()

    # what the last checkpoint holds

    def holds(self, index: int) -> bool:
        """Whether the checkpoint that the run goes on from holds the step."""
        return self._step(index) is not None

    def ends_in(self, index: int) -> bool:
        """Whether the last row of the history that was read back belongs to the step."""
        return self._saved is not None and index == len(self._saved[1]["stages"]) - 1

    def restore(self, index: int, clients: StageBackend, best: BestRound | None) -> None:
        """Restore a stage from the checkpoint."""
        state_dict, state = self._step(index), clients.state
        if state_dict is None:
            return
        clients.load_state_dict(*state_dict)
        if best is not None and best.stage == index:
            state.pin_client_states(best.groups)
        state.adopt_client_states()
        if state.done > state.stage.rounds or (self.holds(index + 1) and not state.over):
            raise UnalikeError(
                f"stage {state.stage.name!r} ended after {state.done} rounds in this folder and has {state.stage.rounds} when "
                "the rounds of this run are split over the stages; ask for as many as before, or choose another folder"
            )
        self._stages[index] = clients, clients.state_dict()

    def restore_answers(self, index: int, name: str) -> Answers | None:
        """The answers to the client query `name`, if the checkpoint holds them."""
        step = self._step(index)
        if step is None:
            return None
        answers = Answers(tuple(step[1][0]["clients"]), step[0])
        self.take_answers(index, name, answers)
        return answers

    def _step(self, index: int) -> StateDict | None:
        if self._saved is None or index >= len(self._saved[1]["stages"]):
            return None
        return tree.under(self._saved[0], f"{index}/"), self._saved[1]["stages"][index]

    # what the next one will hold

    @property
    def answers(self) -> dict[str, Answers]:
        """The answers to client queries so far, by the name of the step."""
        return dict(named for _, named in sorted(self._answers.items()))

    def take_answers(self, index: int, name: str, answers: Answers) -> None:
        """Add the answers to a client query; they are written with the next round."""
        self._answers[index] = name, answers

    def take_stage(self, index: int, clients: StageBackend, facts: Facts) -> None:
        """Add the current state of a stage, with `facts` about the run."""
        if self._directory is None:
            clients.state.prune_client_states()
            return
        self._stages[index] = clients, clients.state_dict()
        self._facts, self._is_written = facts, False

    @property
    def is_due(self) -> bool:
        """Whether there is something to write."""
        return self._directory is not None and not self._is_written

    @property
    def seconds_since_last(self) -> float:
        """Seconds since the last checkpoint."""
        return time.monotonic() - self._written_at

    def save_client_states(self) -> None:
        """Write the client states that the next checkpoint names: they come first, so that it never names a missing file."""
        for clients, (_, groups) in self._stages.values():
            clients.state.save_client_states(groups)

    def write(self, best: BestRound | None) -> None:
        """Write the checkpoint, and delete client states that it does not need."""
        assert self._directory is not None
        steps: dict[int, StateDict] = {index: state_dict for index, (_, state_dict) in self._stages.items()}
        last = max(steps)  # a query after it is asked again: no round follows it yet
        steps |= {i: (a.tree, [{"clients": list(a.clients)}]) for i, (_, a) in self._answers.items() if i < last}
        tensors = {f"{i}/{path}": t for i, (tensors, _) in sorted(steps.items()) for path, t in tensors.items()}
        facts = self._facts | {"stages": [groups for _, (_, groups) in sorted(steps.items())]}
        if best is not None:
            tensors |= {f"best/{path}": t for path, t in best.tensors.items()}
            facts["best"] = best.facts
        self._directory.save_checkpoint(facts["round"], tensors, facts)
        for clients, (_, groups) in self._stages.values():
            clients.state.prune_client_states(groups)
        self._is_written, self._written_at = True, time.monotonic()
