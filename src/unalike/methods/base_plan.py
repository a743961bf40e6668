"""The base class of everything that `ua.run` can run: of methods, and of plans of several stages."""

from typing import ClassVar


class Plan:
    """A method or a plan of several stages. It declares what a plan can do and needs, with the answers that fit most plans."""

    useful_untrained: ClassVar[bool] = False
    """Whether the plan has results without a round.

    Without it: `rounds=0` is refused.
    """
    needs_products: ClassVar[bool] = False
    """Whether the run records the inner products of updates.

    Without it: only where `record=` asks for them.
    """
    divides: ClassVar[bool] = False
    """Whether it divides the clients into groups by what they train, so that there may be more steps than at first.

    Without it: no run notes where one group is left, and sites decline further steps.
    """
    grouped: ClassVar[bool] = False
    """Whether it ends with a model for each group, and none for all.

    Without it: reports compare one shared model.
    """

    needs_of_task: ClassVar[str] = ""
    """The trait of tasks (`core/tasks/task.py`) without which its stages mean nothing; its parts say what they need themselves.

    Without it: it begins on every task.
    """

    @property
    def why_no_trials(self) -> str:
        """The reason why its hyperparameters may not be chosen by validation samples of the clients. Default: empty, they may."""
        return ""
