"""Conditioning on local statistics (Brannvall 2025): synthetic clusters and characters."""

from __future__ import annotations

from unalike.studies.claims import Claim, difference, gain, score
from unalike.studies.layouts.tables import MethodTable
from unalike.studies.study import Scale, Study, Variant
from unalike.studies.verdicts import Below, Near, Same

PAPER = (
    "Brannvall: Conditioning on Local Statistics for Scalable Heterogeneous Federated Learning, arXiv:2503.00378, 2025"
)
ADAM = "fedadam(lr=0.05, tau=1e-8, b2=0.999, bias_correction=True)"
"""Adam on the server over full-batch gradients of all clients: FedAvg's form of full-batch Adam on the pooled samples."""

OWN = {"protocol": "personal"}


def _methods(statistic: str) -> dict[str, Variant]:
    conditional = f"{ADAM} + conditional(statistic='{statistic}')"
    return {
        "global": Variant(ADAM, {"model": "linear"}),
        "global, zeros": Variant(
            f"{ADAM} + conditional(statistic='zeros', like='{statistic}')", {"model": "conditional_ensemble"}
        ),
        "client": Variant("local_only", {"model": "linear", **OWN}),
        "cluster": Variant(f"cluster_oracle(method='{ADAM}')", {"model": "linear"}),
        "conditional linear": Variant(conditional, {"model": "conditional_linear"}),
        "conditional ensemble": Variant(conditional, {"model": "conditional_ensemble"}),
        "conditional MLP": Variant(conditional, {"model": "conditional_mlp"}),
    }


FEDERATED = {
    "FedAvg": Variant(
        "fedavg + conditional(statistic='covariance')",
        {"model": "conditional_ensemble", "work": {"epochs": 1, "batch_size": 20, "lr": 0.001}},
    ),
    "FedSGD": Variant(
        "fedsgd + conditional(statistic='covariance')", {"model": "conditional_ensemble", "work": {"lr": 0.01}}
    ),
    "FedAdam": Variant(f"{ADAM} + conditional(statistic='covariance')", {"model": "conditional_ensemble"}),
}

COMMON = {
    "partition": "natural(cluster='cluster')",
    "rounds": 1200,
    "evaluate_every": 100,
    "work": {"batch_size": None, "lr": 0.1},
}
LINEAR = {f"{n} clusters": {"data": f"linear_clusters(clusters={n}, seed={{seed}})"} for n in (3, 8)}
LOGISTIC = {f"{n} clusters": {"data": f"logistic_clusters(clusters={n}, seed={{seed}})"} for n in (3, 8)}
TINY = {"rounds": 20, "evaluate_every": 10}
SMOKE = "10 clients a cluster and 20 rounds: shows that the study runs, nothing else"
TRAINING = (
    "The paper states AdamW with a learning rate of 0.001 for 100 epochs; its numbers are not reached with that (see the study's "
    "notes), so that training here is full-batch Adam on the server, 1200 rounds"
)


def _tiny(settings: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return {name: {"data": o["data"].replace("(clusters", "(clients=10, clusters")} for name, o in settings.items()}


RMSE = {
    ("global", "3 clusters"): "14.901",
    ("global", "8 clusters"): "17.655",
    ("client", "3 clusters"): "0.106",
    ("cluster", "3 clusters"): "0.1",
}
RMSE_CLAIMS = (
    Claim(
        "The global model's rmse is that of predicting 0 for all but the mean cluster, 3 clusters",
        score("global", "3 clusters", "rmse", last=1),
        Near(14.901, 2.5),
        "14.901",
        "rmse",
        scale=1,
        remark="the draw of the three coefficient vectors decides it: its expectation is 14.9",
    ),
    Claim(
        "Least squares on one client's samples reaches the published rmse",
        score("client", "3 clusters", "rmse", last=1),
        Near(0.106, 0.002),
        "0.106",
        "rmse",
        scale=1,
    ),
    Claim(
        "The conditional ensemble is as good as the cluster oracle, 3 clusters",
        gain("conditional ensemble", "cluster", "3 clusters", "rmse", last=1),
        Same(0.01),
        unit="rmse",
        scale=1,
    ),
    Claim(
        "The conditional ensemble is as good as the cluster oracle, 8 clusters",
        gain("conditional ensemble", "cluster", "8 clusters", "rmse", last=1),
        Same(0.01),
        unit="rmse",
        scale=1,
    ),
    *(
        Claim(
            f"The {method} is better than the global model, {setting}",
            gain(method, "global", setting, "rmse", last=1),
            Below(),
            unit="rmse",
            scale=1,
        )
        for setting in LINEAR
        for method in ("conditional linear", "conditional ensemble", "conditional MLP")
    ),
    Claim(
        "Without the statistic (zeros) the ensemble is no better than the global model, 3 clusters",
        gain("global, zeros", "global", "3 clusters", "rmse", last=1),
        Same(0.1),
        unit="rmse",
        scale=1,
    ),
)
ACCURACY_CLAIMS = (
    Claim(
        "The conditional ensemble reaches the published accuracy, 3 clusters",
        score("conditional ensemble", "3 clusters", last=1),
        Near(98.9, 1.0),
        "98.9",
        "accuracy, %",
    ),
    *(
        Claim(
            f"The conditional ensemble is as good as the cluster oracle, {setting}",
            gain("conditional ensemble", "cluster", setting, last=1),
            Same(1.0),
        )
        for setting in LOGISTIC
    ),
    *(
        Claim(
            f"The conditional ensemble is better than each client alone, {setting}",
            difference(score("client", setting, last=1), score("conditional ensemble", setting, last=1)),
            Below(),
        )
        for setting in LOGISTIC
    ),
)

STUDIES = (
    Study(
        "local-statistics-table1",
        "Linear regression on clusters of clients: rmse of global, client, cluster and conditional models",
        PAPER,
        {
            "smoke": Scale(_methods("covariance"), _tiny(LINEAR), COMMON | TINY, seeds=(0,), reduced=SMOKE),
            "small": Scale(_methods("covariance"), LINEAR, COMMON, seeds=tuple(range(5)), reduced=TRAINING),
            "paper": Scale(_methods("covariance"), LINEAR, COMMON, seeds=tuple(range(5)), reduced=TRAINING),
        },
        RMSE_CLAIMS,
        (MethodTable("Rmse after the last round", "rmse", last=1, scale=1, digits=4, published=RMSE),),
    ),
    Study(
        "local-statistics-table2",
        "Logistic regression on clusters of clients: accuracy of global, client, cluster and conditional models",
        PAPER,
        {
            "smoke": Scale(_methods("covariance"), _tiny(LOGISTIC), COMMON | TINY, seeds=(0,), reduced=SMOKE),
            "small": Scale(_methods("covariance"), LOGISTIC, COMMON, seeds=tuple(range(5)), reduced=TRAINING),
            "paper": Scale(_methods("covariance"), LOGISTIC, COMMON, seeds=tuple(range(5)), reduced=TRAINING),
        },
        ACCURACY_CLAIMS,
        (
            MethodTable(
                "Accuracy after the last round, %",
                last=1,
                published={("conditional ensemble", "3 clusters"): "98.9"},
            ),
        ),
    ),
)
