"""FedPake + LWS inside a plain Flower strategy: `ua.aggregate` takes the place of the mean.

Needs `pip install 'unalike[flower]'`; pass the strategy to your own Flower ServerApp.
"""

from collections import OrderedDict

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

import unalike as ua


class Unalike(FedAvg):
    """Flower's FedAvg with the aggregation of any unalike method that needs nothing but the clients' models."""

    def __init__(self, spec: str = "fedpake + lws", **options):
        super().__init__(**options)
        self.spec, self.state, self.current = spec, None, None

    def configure_train(self, server_round, arrays, config, grid):
        self.current = arrays.to_torch_state_dict()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = [r for r in replies if not r.has_error()]
        _, metrics = super().aggregate_train(server_round, replies)
        sent = [next(iter(r.content.array_records.values())).to_torch_state_dict() for r in replies]
        counts = [
            next(iter(r.content.metric_records.values()))[self.weighted_by_key] for r in replies
        ]
        new, self.state = ua.aggregate(
            self.spec, self.current, sent, num_examples=counts, state=self.state
        )
        return ArrayRecord(OrderedDict(new)), metrics
