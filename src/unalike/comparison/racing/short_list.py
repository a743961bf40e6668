"""The methods of a race: one for each family of remedies, and the references."""

import warnings
from collections.abc import Callable, Iterable, Mapping

from unalike._utils.errors import UnalikeError

SHORT_LIST: Mapping[str, str] = {
    "fedavg": "the baseline: the mean of the clients' models",
    "local_only": "trained alone by rounds: no federation",
    "local_finetune": "personal models by fine-tuning the shared one",
    "feddyn(alpha=0.1)": "a proximal term with a correction of the local objectives",
    "centralised": "trained on pooled data by rounds",
    "ifca(clusters=2)": "clusters of clients with a model each",
    "scaffold": "control variates against the drift of the clients",
    "ditto(lam=0.1)": "own models beside the shared one",
    "fedadagrad": "an adaptive optimizer on the server",
    "fedper": "personal heads on a shared body",
    "fednova": "averages normalized by the local steps",
}
"""Method -> its family in words.

The order is that in which methods are left out if the budget is too small for all, the last one first. It is the order in which a
method adds most to the best of those before it, over the stored tasks of the study of `docs/explanation/which_method.md`; `fedper`
was not among them, and `fednova` was best on two of ten data sets with real owners. FedProx was hardly ever the best: `feddyn`
stands for its family.
"""
NEVER_DROPPED = ("fedavg", "local_only", "centralised")
"""What every other method is judged against: it has a score under every seed of the race."""


def runnable_methods(
    methods: Iterable[str], check: Callable[[str], object]
) -> tuple[list[str], dict[str, str]]:
    """The methods that `check` accepts, and method -> the reason why it does not accept it.

    A method may not suit a model, a task or an option: without hidden layers there is no head to personalize. A race goes on
    without it. Raises the error of the first method, because a race without its baseline decides nothing.
    """
    accepted: list[str] = []
    reasons: dict[str, str] = {}
    for method in methods:
        try:
            # the runs themselves give these warnings again
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(method)
        except UnalikeError as error:
            if not accepted:
                raise
            reasons[method] = str(error)
        else:
            accepted.append(method)
    return accepted, reasons
