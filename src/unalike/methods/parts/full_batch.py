"""FedSGD: one full-batch step as local work."""

from __future__ import annotations

from unalike.core.work import Work
from unalike.methods.method import alias
from unalike.methods.part import part
from unalike.methods.roles import LocalWork


@alias("fedsgd", "One full-batch gradient step per round (McMahan et al. 2017).")
@part
class FullBatchStep(LocalWork):
    """One plain gradient step on the client's whole data: w+ = w - lr sum_k p_k grad F_k(w) (FedSGD, McMahan et al. 2017)."""

    def work(self, work: Work) -> Work:
        return Work(batch_size=None, lr=work.lr, schedule=work.schedule)
