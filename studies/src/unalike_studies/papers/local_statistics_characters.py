"""Conditioning on local statistics (Brannvall 2025): characters, the third row of table 1, table 4 and figure 1."""

from collections.abc import Iterable, Mapping
from string import ascii_uppercase, digits
from typing import Any

from unalike_studies.cells import CLASS_ACCURACY, Options
from unalike_studies.claim_verdicts import Above, Expectation, Near, Same
from unalike_studies.claims import (
    Claim,
    Quantity,
    bytes_of_client,
    difference,
    gain,
    mean,
    question,
    ratio,
)
from unalike_studies.layouts.figures import ClassScores
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.papers.local_statistics import AS_PRINTED, EPOCHS, PAPER, POOLED, TRAINING
from unalike_studies.published import Printed, printed
from unalike_studies.study import Layout, Scale, Study, Variant

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
HANDWRITING = GLYPHS | {"data": CHARACTERS["data"]}
"""EMNIST with a quarter of the images for each client."""
FEW_GLYPHS = GLYPHS | {"data": "glyphs(train=2000, test=400)"}
SHORT_PASS: dict[str, Any] = POOLED | {"rounds": 30, "evaluate_every": 5}
ON_GLYPHS = (
    "glyphs (distorted printed characters) instead of EMNIST; 600 training images for each client instead of 2,500; mostly 30 "
    "epochs of AdamW on pooled samples instead of 100, 60 rounds of Adam on clients. Of the accuracies only the order carries "
    "over, and less data favors methods that share"
)
ON_HANDWRITING = (
    "600 training images of EMNIST for each client instead of 2,500, from the official test set, which is divided 80/20; mostly "
    "30 epochs of AdamW on pooled samples instead of 100, 60 rounds of Adam on clients. Less data favors methods that share"
)
OTHER_DATA = "glyphs instead of EMNIST, a quarter of the images"

CNN = "conditional CNN"
LONGER_CNN, FEDERATED_CNN = f"{CNN}, 100 epochs", f"{CNN}, FedAvg"
IN_TABLE1 = (
    "global",
    "global, zeros",
    "global, pooled component",
    "client",
    "cluster",
    CNN,
    LONGER_CNN,
    "global, FedAvg",
    FEDERATED_CNN,
)
PRINTED = {"global": "global", "client": "client", "cluster": "cluster", LONGER_CNN: CNN}
"""Label -> the printed row. The paper's models train 100 epochs."""
IN_TABLE4 = ("client", "cluster", CNN, LONGER_CNN, "global")
COMPONENTS = {"global": "0", CNN: "1", "2 components": "2", "4 components": "4"}
"""Label among all methods -> label in the study of components: their number."""


def _methods(
    pooled: dict[str, Any], longer: dict[str, Any], federated: dict[str, Any]
) -> dict[str, str | Variant]:
    """References and conditional models on pooled samples, as in the paper, one of them for longer, and the same federated."""

    def conditional(
        where: str, options: dict[str, Any], statistic: str, components: int = 1
    ) -> Variant:
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
        CNN: conditional("centralised", pooled, "pca"),
        LONGER_CNN: conditional("centralised", pooled | longer, "pca"),
        **{f"{n} components": conditional("centralised", pooled, "pca", n) for n in (2, 4)},
        "global, FedAvg": Variant("fedavg", federated),
        FEDERATED_CNN: conditional("fedavg", federated, "pca"),
    }


NAME = "digits, upper and lower case"
SETTING: dict[str, Options] = {NAME: {}}
CONFUSED = (*"0Oo", *"1Il", *"2Zz", *"5Ss", *"CcUuVvWwXx")
"""Characters that look alike across the three kinds."""
LEGIBLE = (*digits, *ascii_uppercase)
"""Characters whose rows of table 4 are legible in our copy of the paper."""
LARGEST = "XOI"
"""Those of them with the largest printed gains."""
NAMED = "zZ2iI1"
"""Those that the text calls easily confused."""


def _row(method: str, table: str = "1", **setting: Any) -> Printed:
    """The printed accuracy of a method, in all or on one character."""
    return printed("local-statistics", table, method, "EMNIST", **setting)


def _gain(method: str, other: str, character: str = "") -> Quantity:
    """The accuracy of a method less that of another, on one class or in all."""
    column = CLASS_ACCURACY + character if character else "accuracy"
    return gain(method, other, NAME, column, last=1)


def _sent(method: str) -> Quantity:
    """The bytes that a client receives and sends in a round."""
    return bytes_of_client(method, NAME, "bytes_down", "bytes_up")


def _beside_the_model(method: str) -> Quantity:
    """The bytes that a client sends in a round beyond the model, which is what it receives."""
    return difference(
        bytes_of_client(method, NAME, "bytes_up"), bytes_of_client(method, NAME, "bytes_down")
    )


def _mean_gain(characters: Iterable[str]) -> Quantity:
    """The gain of the conditional CNN over the global model, mean over these characters."""
    gains = [_gain(CNN, "global", character) for character in characters]
    return mean(*gains)


def _on(character: str, other: str) -> Printed:
    """The printed gain of the conditional CNN on one character."""
    return _row(CNN, "4", character=character) - _row(other, "4", character=character)


def _on_all(method: str, other: str, text: str, expects: Expectation) -> Claim:
    """A claim about the mean over the legible rows of table 4."""
    gains = [_gain(method, other, character) for character in LEGIBLE]
    printed_gains = [_on(character, other) for character in LEGIBLE]
    return Claim(
        f"{text}, mean of the {len(LEGIBLE)} digits and upper-case letters",
        mean(*gains),
        expects,
        Printed.mean(*printed_gains),
        for_own_method=expects == Above(),
    )


POOLED_COMPONENT = "global, pooled component"
BETTER_THAN_CLIENTS = "The conditional CNN is better than each client alone"
AS_GOOD_AS_ORACLE = "The conditional CNN is as good as the cluster oracle"
NO_STATISTIC = "in place of the statistic the global model is the same"


def _row_gain(other: str) -> Printed:
    return _row(CNN) - _row(other)


ROW_CLAIMS = (
    *(
        Claim(text, _gain(method, other), expects, published, for_own_method=expects == Above())
        for text, method, other, expects, published in (
            (
                "The conditional CNN is better than the global model",
                CNN,
                "global",
                Above(),
                _row_gain("global"),
            ),
            (
                f"{BETTER_THAN_CLIENTS} after 100 epochs",
                LONGER_CNN,
                "client",
                Above(),
                _row_gain("client"),
            ),
            (
                f"{AS_GOOD_AS_ORACLE} after 100 epochs",
                LONGER_CNN,
                "cluster",
                Same(1.0),
                _row_gain("cluster"),
            ),
            (f"With zeros {NO_STATISTIC}", "global, zeros", "global", Same(1.0), None),
            (
                f"With a component of all clients' samples {NO_STATISTIC}",
                POOLED_COMPONENT,
                "global",
                Same(1.0),
                None,
            ),
        )
    ),
    *(
        question(text, _gain(method, other), expects)
        for text, method, other, expects in (
            (f"{BETTER_THAN_CLIENTS} after 30 epochs", CNN, "client", Above()),
            (f"{AS_GOOD_AS_ORACLE} after 30 epochs", CNN, "cluster", Same(1.0)),
            (
                "The conditional CNN of FedAvg is as good as that of pooled samples",
                FEDERATED_CNN,
                CNN,
                Same(1.0),
            ),
            (
                "The conditional CNN of FedAvg is better than its global model",
                FEDERATED_CNN,
                "global, FedAvg",
                Above(),
            ),
        )
    ),
)
COMMUNICATION_CLAIMS = (
    Claim(
        "Beside its model a client of the conditional CNN sends as much as one of FedAvg",
        difference(_beside_the_model(FEDERATED_CNN), _beside_the_model("global, FedAvg")),
        Same(0),
        unit="bytes a client and round",
        scale=1,
        needs_learning=False,
        remark='"no additional information needs to be communicated"',
    ),
    Claim(
        "A client of the conditional CNN receives and sends as much as one of FedAvg",
        ratio(_sent(FEDERATED_CNN), _sent("global, FedAvg")),
        Near(1),
        unit="times the bytes",
        scale=1,
        needs_learning=False,
        remark='"does not increase communication overhead"; the weights that read the statistic are part of the model',
    ),
)
CHARACTER_CLAIMS = (
    *(
        Claim(
            f"The conditional CNN recognizes more of the {character} than the global model",
            _gain(CNN, "global", character),
            Above(),
            _on(character, "global"),
            for_own_method=True,
        )
        for character in LARGEST
    ),
    _on_all(CNN, "global", "The conditional CNN is better than the global model", Above()),
    _on_all(LONGER_CNN, "client", f"{BETTER_THAN_CLIENTS} after 100 epochs", Above()),
    _on_all(LONGER_CNN, "cluster", f"{AS_GOOD_AS_ORACLE} after 100 epochs", Same(1.0)),
    Claim(
        "The global model is worse than the conditional CNN on z, Z, 2 and i, I, 1, mean",
        _mean_gain(NAMED),
        Above(),
        for_own_method=True,
        remark="the text names them as easily confused",
    ),
    question(
        f"The conditional CNN is better than the global model on the {len(CONFUSED)} characters that look alike, on average",
        _mean_gain(CONFUSED),
        Above(),
    ),
    question(
        "The conditional CNN recognizes more of the small o than the global model",
        _gain(CNN, "global", "o"),
        Above(),
        remark="chosen after the results: the character with the largest gain",
    ),
)


def _study(
    name: str,
    title: str,
    labels: Mapping[str, str],
    claims: tuple[Claim, ...],
    *layouts: Layout,
    notes: str = "",
) -> Study:
    """A study of some of the methods: label among all methods -> label in this study."""

    def scale(
        common: dict[str, Any],
        pooled: dict[str, Any],
        longer: dict[str, Any],
        federated: dict[str, Any],
        **more: Any,
    ) -> Scale:
        methods = {}
        for name, variant in _methods(pooled, longer, federated).items():
            if name in labels:
                methods[labels[name]] = variant
        return Scale(methods, SETTING, common, **more)

    once = {"rounds": 1, "evaluate_every": 1}
    return Study(
        name,
        title,
        PAPER,
        {
            "smoke": scale(
                FEW_GLYPHS, once, {}, once, seeds=(0,), reduced="few glyphs and one round"
            ),
            "small": scale(GLYPHS, SHORT_PASS, EPOCHS, {}, reduced=ON_GLYPHS, unlike=OTHER_DATA),
            "handwriting": scale(HANDWRITING, SHORT_PASS, EPOCHS, {}, reduced=ON_HANDWRITING),
            "paper": scale(CHARACTERS, AS_PRINTED, EPOCHS, {}),
        },
        claims,
        layouts,
        "The paper does not state the number of clients, the channels of the CNN, and where the statistic enters it. Global and "
        f"conditional models are trained on pooled samples; clients and clusters by FedAvg. {notes}{TRAINING}",
    )


STUDIES = (
    _study(
        "local-statistics-table1",
        "Characters, divided among clients of digits, of upper and of lower case: accuracy",
        {name: name for name in IN_TABLE1},
        (*ROW_CLAIMS, *COMMUNICATION_CLAIMS),
        MethodTable(
            "Accuracy after the last round, %",
            last=1,
            published={
                (label, NAME): f"{_row(method).value:g}" for label, method in PRINTED.items()
            },
        ),
        notes="This is the third row of table 1; the other two repeat columns of table 2. ",
    ),
    _study(
        "local-statistics-table4",
        "Accuracy on each character (table 4), and on those that look alike (figure 1)",
        {name: name for name in IN_TABLE4},
        CHARACTER_CLAIMS,
        ClassScores(
            "accuracy on each character, %",
            NAME,
            name="table4",
            published={
                (label, c): f"{_row(method, '4', character=c).value:g}"
                for label, method in PRINTED.items()
                for c in LEGIBLE
            },
        ),
        ClassScores("accuracy on characters that look alike, %", NAME, CONFUSED, name="figure1"),
        notes="In our copy of the paper the labels of most lower-case rows of table 4 are damaged; their numbers are left out. ",
    ),
    _study(
        "local-statistics-components",
        "Characters: number of principal components in the client's statistic",
        COMPONENTS,
        (
            Claim(
                "More components than one bring no significant improvement",
                gain("4", "1", NAME, last=1),
                Same(1.0),
            ),
        ),
        MethodTable("Accuracy after the last round, %", last=1),
    ),
)
