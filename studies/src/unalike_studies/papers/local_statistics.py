"""Conditioning on local statistics (Brannvall 2025): synthetic clusters and characters."""

from __future__ import annotations

from typing import Any

from unalike_studies.cells import CLASS_ACCURACY, Options
from unalike_studies.claim_verdicts import Above, Below, Expectation, Near, Same
from unalike_studies.claims import NOT_AT_HAND, Claim, Quantity, difference, gain, mean, question, score
from unalike_studies.layouts.figures import ClassScores
from unalike_studies.layouts.sweeps import Sweep
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.study import Layout, Scale, Study, Variant

PAPER = (
    "Brannvall: Conditioning on Local Statistics for Scalable Heterogeneous Federated Learning, arXiv:2503.00378, 2025"
)


def adam(lr: float) -> str:
    """Adam on the server, which with `FULL_BATCH` works on gradients of all samples of all clients."""
    return f"fedadam(lr={lr}, tau=1e-8, b2=0.999, bias_correction=True)"


ADAM = adam(0.05)
FULL_BATCH: dict[str, Any] = {"rounds": 1200, "evaluate_every": 100, "work": {"batch_size": None, "lr": 0.1}}
POOLED: dict[str, Any] = {
    "work": {"optimizer": "adamw", "lr": 0.001, "weight_decay": 0.001, "batch_size": 100, "keep_optimizer_state": True}
}
"""The paper's training: AdamW on the pooled samples, each with the statistic of its client. A round is an epoch."""
EPOCHS = {"rounds": 100, "evaluate_every": 10}
AS_PRINTED: dict[str, Any] = POOLED | EPOCHS
SHORT_PASS: dict[str, Any] = POOLED | {"rounds": 30, "evaluate_every": 5}
SHORT: dict[str, Any] = {"rounds": 30, "evaluate_every": 5, "work": POOLED["work"] | {"lr": 0.01}}
KINDS = ("linear", "ensemble", "MLP")
ENSEMBLE = {"model": "conditional_ensemble"}


def references() -> dict[str, Variant]:
    """One model for all clients, for each client and for each true cluster, solved to convergence by full-batch training."""
    linear = FULL_BATCH | {"model": "linear"}
    return {
        "global": Variant(ADAM, linear),
        "client": Variant("local_only", linear | {"protocol": "personal"}),
        "cluster": Variant(f"cluster_oracle(method='{ADAM}')", linear),
    }


def _methods(statistic: str, pooled: dict[str, Any]) -> dict[str, str | Variant]:
    """References and the three conditional models."""
    zeros = f"centralised + conditional(statistic='zeros', like='{statistic}')"
    conditional = {
        f"conditional {kind}": Variant(
            f"centralised + conditional(statistic='{statistic}')", pooled | {"model": f"conditional_{kind.lower()}"}
        )
        for kind in KINDS
    }
    return {**references(), "global, zeros": Variant(zeros, pooled | ENSEMBLE), **conditional}


CONDITIONED = "conditional(statistic='covariance')"
COMMON = {"partition": "natural(cluster='cluster')"}
LINEAR: dict[str, Options] = {
    f"{n} clusters": {"data": f"linear_clusters(clusters={n}, seed={{seed}})"} for n in (3, 8)
}
LOGISTIC: dict[str, Options] = {
    f"{n} clusters": {"data": f"logistic_clusters(clusters={n}, seed={{seed}})"} for n in (3, 8)
}
CLUSTERS = {"3 clusters": 3.0, "8 clusters": 8.0}
SMOKE = "10 clients a cluster, 5 rounds: shows that the study runs, nothing else"
REDUCED = (
    "30 epochs of AdamW with a learning rate of 0.01 instead of 100 with 0.001; the references are trained to convergence by "
    "full-batch steps"
)
NUMBERS = (
    "The numbers of the tables come from our notes; no copy of the paper was at hand when the study was written. The paper "
    "prints AdamW with a learning rate of 0.001 for 100 epochs, and not whether a client or the pooled samples are meant: here it "
    "is pooled samples, and local-statistics-federated tries both"
)


def _tiny(settings: dict[str, Options]) -> dict[str, Options]:
    return {name: {"data": o["data"].replace("(clusters", "(clients=10, clusters")} for name, o in settings.items()}


RMSE = {
    ("global", "3 clusters"): "14.901",
    ("global", "8 clusters"): "17.655",
    ("client", "3 clusters"): "0.106",
    ("cluster", "3 clusters"): "0.1",
}


def rmse_claim(text: str, quantity: Quantity, expects: Expectation, published: str = NOT_AT_HAND, **more: Any) -> Claim:
    """A claim about an rmse."""
    return Claim(text, quantity, expects, published, "rmse", scale=1, **more)


def rmse_gain(method: str, baseline: str, setting: str) -> Quantity:
    """The rmse of a method after the last round less that of a baseline."""
    return gain(method, baseline, setting, "rmse", last=1)


RMSE_CLAIMS = (
    rmse_claim(
        "One linear model for all clients reaches the published rmse, 3 clusters",
        score("global", "3 clusters", "rmse", last=1),
        Near(14.901, 2.5),
        "14.901",
        remark="the draw of the three coefficient vectors decides it: its expectation is 14.9",
    ),
    rmse_claim(
        "One linear model for all clients reaches the published rmse, 8 clusters",
        score("global", "8 clusters", "rmse", last=1),
        Near(17.655, 2.0),
        "17.655",
        remark="the draw of the eight coefficient vectors decides it: its expectation is 17.1; a draw deviates by about 1",
    ),
    rmse_claim(
        "One linear model for each true cluster reaches the published rmse",
        score("cluster", "3 clusters", "rmse", last=1),
        Near(0.1, 0.002),
        "0.1",
    ),
    rmse_claim(
        "Least squares on one client's samples reaches the published rmse",
        score("client", "3 clusters", "rmse", last=1),
        Near(0.106, 0.002),
        "0.106",
    ),
    *(
        rmse_claim(
            f"The conditional ensemble is as good as the cluster oracle, {setting}",
            rmse_gain("conditional ensemble", "cluster", setting),
            Same(0.01),
        )
        for setting in LINEAR
    ),
    *(
        rmse_claim(
            f"The conditional {kind} is better than the global model, {setting}",
            rmse_gain(f"conditional {kind}", "global", setting),
            Below(),
        )
        for setting in LINEAR
        for kind in KINDS
    ),
    rmse_claim(
        "Without the statistic (zeros) the ensemble is no better than the global model, 3 clusters",
        rmse_gain("global, zeros", "global", "3 clusters"),
        Same(0.1),
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


def _scales(statistic: str, settings: dict[str, Options]) -> dict[str, Scale]:
    tiny = {"rounds": 5, "evaluate_every": 5, "work": POOLED["work"]}
    smoke = {
        label: Variant(v.spec, {**v.options, **tiny})
        for label, v in _methods(statistic, SHORT).items()
        if isinstance(v, Variant)
    }
    return {
        "smoke": Scale(smoke, _tiny(settings), COMMON, seeds=(0,), reduced=SMOKE),
        "small": Scale(_methods(statistic, SHORT), settings, COMMON, reduced=REDUCED),
        "paper": Scale(_methods(statistic, AS_PRINTED), settings, COMMON, seeds=tuple(range(5))),
    }


CHARACTERS: dict[str, Any] = {
    "data": "emnist(split='byclass')",
    "partition": "clusters(groups=(10, 26, 26), size=3333)",
    "clients": 12,
    "model": "cnn",
    "rounds": 20,
    "evaluate_every": 5,
    "work": {"batch_size": 50, "lr": 0.05},
    "class_accuracy": True,
}
"""2,500 training images for each client."""
GLYPHS = CHARACTERS | {
    "data": "glyphs(train=24000, test=4000)",
    "partition": "clusters(groups=(10, 26, 26), size=800)",
    "rounds": 60,
    "evaluate_every": 10,
    "work": {"batch_size": 50, "optimizer": "adam", "lr": 0.003},
}
"""With SGD at 0.05 for 20 rounds, models of all clients reach an accuracy of 0.12, those of clusters 0.6: too early to compare."""
FEW_GLYPHS = GLYPHS | {"data": "glyphs(train=2000, test=400)"}
ON_GLYPHS = (
    "glyphs (distorted printed characters) instead of EMNIST; 600 training images for each client instead of 2,500; mostly 30 "
    "epochs of AdamW on pooled samples instead of 100, 60 rounds of Adam on clients. Of the accuracies only the order carries "
    "over, and less data favors methods that share"
)

CONDITIONAL_CNN = "conditional CNN"
LONGER_CNN, FEDERATED_CNN = f"{CONDITIONAL_CNN}, 100 epochs", f"{CONDITIONAL_CNN}, FedAvg"
IN_TABLE3 = (
    *("global", "global, zeros", "global, pooled component", "client", "cluster", CONDITIONAL_CNN, LONGER_CNN),
    *("global, FedAvg", FEDERATED_CNN),
)
IN_TABLE4 = {"global": "0", CONDITIONAL_CNN: "1", "2 components": "2", "4 components": "4"}
"""Label among all methods -> label in table 4: the number of components."""


def _character_methods(
    pooled: dict[str, Any], longer: dict[str, Any], federated: dict[str, Any]
) -> dict[str, str | Variant]:
    """References and conditional models on pooled samples, as in the paper, one of them for longer, and the same federated."""

    def conditional(where: str, options: dict[str, Any], statistic: str, components: int = 1) -> Variant:
        like = ", like='pca'" if statistic == "zeros" else ""
        model = {"model": f"conditional_cnn(components={components})"}
        part = f"conditional(statistic='{statistic}', components={components}{like})"
        return Variant(f"{where} + {part}", options | model)

    return {
        "global": Variant("centralised", pooled),
        "global, zeros": conditional("centralised", pooled, "zeros"),
        "global, pooled component": conditional("centralised", pooled, "pooled_pca"),
        "client": Variant("local_only", federated | {"protocol": "personal"}),
        "cluster": Variant("cluster_oracle(method='fedavg')", federated),
        CONDITIONAL_CNN: conditional("centralised", pooled, "pca"),
        LONGER_CNN: conditional("centralised", pooled | longer, "pca"),
        **{f"{n} components": conditional("centralised", pooled, "pca", n) for n in (2, 4)},
        "global, FedAvg": Variant("fedavg", federated),
        FEDERATED_CNN: conditional("fedavg", federated, "pca"),
    }


CHARACTER_SETTING: dict[str, Options] = {"digits, upper and lower case": {}}
NAME = "digits, upper and lower case"
CONFUSED = (*"0Oo", *"1Il", *"2Zz", *"5Ss", *"CcUuVvWwXx")
"""Characters that look alike across the three kinds."""


def _class_gain(character: str) -> Quantity:
    """The accuracy of the conditional CNN on one class less that of the global model."""
    return gain(CONDITIONAL_CNN, "global", NAME, CLASS_ACCURACY + character, last=1)


CHARACTER_CLAIMS = tuple(
    Claim(text, gain(method, other, NAME, last=1), expects)
    for text, method, other, expects in (
        ("The conditional CNN is better than the global model", CONDITIONAL_CNN, "global", Above()),
        ("The conditional CNN is better than each client alone", CONDITIONAL_CNN, "client", Above()),
        ("The conditional CNN is as good as the cluster oracle after 100 epochs", LONGER_CNN, "cluster", Same(1.0)),
        (
            "The gain comes from the statistic: with zeros in its place there is none over the global model",
            "global, zeros",
            "global",
            Same(1.0),
        ),
    )
) + tuple(
    question(text, gain(method, other, NAME, last=1), expects)
    for text, method, other, expects in (
        ("The conditional CNN is as good as the cluster oracle after 30 epochs", CONDITIONAL_CNN, "cluster", Same(1.0)),
        (
            "With a component of all clients' samples in place of the client's own there is no gain over the global model",
            "global, pooled component",
            "global",
            Same(1.0),
        ),
        (
            "The conditional CNN of FedAvg is as good as that of pooled samples",
            FEDERATED_CNN,
            CONDITIONAL_CNN,
            Same(1.0),
        ),
        ("The conditional CNN of FedAvg is better than its global model", FEDERATED_CNN, "global, FedAvg", Above()),
    )
)
CONFUSED_CLAIMS = (
    question(
        f"The conditional CNN is better than the global model on the {len(CONFUSED)} characters that look alike, on average",
        mean(*(_class_gain(character) for character in CONFUSED)),
        Above(),
    ),
    question(
        "The conditional CNN recognizes more of the small o than the global model",
        _class_gain("o"),
        Above(),
        remark="chosen after the results: the character with the largest gain",
    ),
)


def _characters(name: str, title: str, labels: dict[str, str], claims: tuple[Claim, ...], *layouts: Layout) -> Study:
    """A study of some of the methods: label among all methods -> label in this study."""

    def scale(
        common: dict[str, Any], pooled: dict[str, Any], longer: dict[str, Any], federated: dict[str, Any], **more: Any
    ) -> Scale:
        methods = _character_methods(pooled, longer, federated)
        return Scale({labels[n]: v for n, v in methods.items() if n in labels}, CHARACTER_SETTING, common, **more)

    once = {"rounds": 1, "evaluate_every": 1}
    return Study(
        name,
        title,
        PAPER,
        {
            "smoke": scale(FEW_GLYPHS, once, {}, once, seeds=(0,), reduced="few glyphs and one round"),
            "small": scale(GLYPHS, SHORT_PASS, EPOCHS, {}, reduced=ON_GLYPHS),
            "paper": scale(CHARACTERS, AS_PRINTED, EPOCHS, {}),
        },
        claims,
        layouts,
        "Global and conditional models are trained on pooled samples, as in the paper; clients and clusters by FedAvg. "
        + NUMBERS,
    )


STUDIES = (
    _characters(
        "local-statistics-table3",
        "Characters, divided among clients of digits, of upper and of lower case: accuracy",
        {name: name for name in IN_TABLE3},
        CHARACTER_CLAIMS,
        MethodTable("Accuracy after the last round, %", last=1),
    ),
    _characters(
        "local-statistics-table4",
        "Characters: number of principal components in the client's statistic",
        IN_TABLE4,
        (
            Claim(
                "More components than one change little",
                gain("4", "1", NAME, last=1),
                Same(1.0),
                remark="our reading of the paper; the gain of one component over none is a claim of local-statistics-table3",
            ),
        ),
        MethodTable("Accuracy after the last round, %", last=1),
    ),
    _characters(
        "local-statistics-figure1",
        "Characters that look alike across the three kinds: accuracy on each",
        {name: name for name in ("global", "cluster", CONDITIONAL_CNN)},
        CONFUSED_CLAIMS,
        ClassScores("accuracy, %", NAME, CONFUSED),
    ),
    Study(
        "local-statistics-table1",
        "Linear regression on clusters of clients: rmse of global, client, cluster and conditional models",
        PAPER,
        _scales("covariance", LINEAR),
        RMSE_CLAIMS,
        (
            MethodTable("Rmse after the last round", "rmse", last=1, scale=1, digits=4, published=RMSE),
            Sweep("rmse after the last round", "number of clusters", CLUSTERS, "rmse", last=1, scale=1, log=True),
        ),
        NUMBERS,
    ),
    Study(
        "local-statistics-table2",
        "Logistic regression on clusters of clients: accuracy of global, client, cluster and conditional models",
        PAPER,
        _scales("covariance", LOGISTIC),
        ACCURACY_CLAIMS,
        (
            MethodTable(
                "Accuracy after the last round, %",
                last=1,
                published={("conditional ensemble", "3 clusters"): "98.9"},
            ),
            Sweep("accuracy after the last round, %", "number of clusters", CLUSTERS, last=1),
        ),
        NUMBERS,
    ),
)
