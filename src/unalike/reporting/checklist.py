"""The items of TRIPOD+AI (Collins et al., BMJ 2024;385:e078378) in our words, answered as far as a comparison or run knows.

What no folder holds, such as approvals and the setting of care, is left to the authors.
"""

import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unalike.reporting import wording
from unalike.reporting.content import ReportContent
from unalike.reporting.html import fill
from unalike.reporting.table import Table, words
from unalike.statistics.client_scores import POOLED

UNANSWERED = "To be filled by you."
READING = (
    "Numbers are those of TRIPOD+AI; what they ask for is said in our words. Read the statement itself before you submit: "
    "Collins et al., BMJ 2024;385:e078378.",
    "Answers come from the stored facts. Check each, and complete it: they know the table and the training, not the patients.",
)
"""How to use the checklist."""

Answer = Callable[[ReportContent], str]
"""The content of a report -> what it says on an item; empty if it says nothing."""


def _nothing(content: ReportContent) -> str:
    return ""


@dataclass(frozen=True)
class Item:
    """An item: its number, what it asks for, and the answer from the stored facts."""

    number: str
    asks: str
    answer: Answer = _nothing


def _config(content: ReportContent) -> dict[str, Any]:
    return tomllib.loads(content.config)


def _listed(value: Any) -> str:
    """A value of the configuration, or several, as text."""
    return wording.listing(value) if isinstance(value, list) and value else str(value or "")


def _source(content: ReportContent) -> str:
    config = _config(content)
    table = f"The table {config['data']}" if "data" in config else "Data that a program gave"
    return f"{table}, divided among {_sites(content)}. Say where the rows come from, and which are of development or evaluation."


def _sites(content: ReportContent) -> str:
    count = int(content.clients.groupby("seed")["client"].nunique().max())
    return wording.plural(count, content.client_noun)


def _dates(content: ReportContent) -> str:
    column = _config(content).get("split_by")
    return f"Rows are divided by {column}; give the first and the last day." if column else ""


def _centres(content: ReportContent) -> str:
    names = [str(name) for name in content.clients["client"].unique()]
    return f"{_sites(content)}: {wording.few(names, content.client_noun)}."


def _is_table(content: ReportContent) -> bool:
    return "target" in _config(content)


def _preparation(content: ReportContent) -> str:
    if not _is_table(content):
        return ""
    dropped = _listed(_config(content).get("drop"))
    left_out = f" Left out: {dropped}." if dropped else ""
    how = "Numbers were scaled to mean 0 and deviation 1, categories became indicator columns, by a fixed 80 % of all rows."
    return how + left_out


def _outcome(content: ReportContent) -> str:
    target = _config(content).get("target")
    if target is None:
        return ""
    classes = "" if content.label_counts is None else _listed([*map(str, content.label_counts)])
    values = f", with the classes {classes}" if classes else ""
    columns = [target] if isinstance(target, str) else target
    noun = "column" if len(columns) == 1 else "columns"
    return f"The {noun} {_listed(columns)}{values}. Say how and when it was assessed."


def _sizes(content: ReportContent) -> str:
    counts = content.clients.groupby(["method", "seed"])[["n_train", "n_test"]].sum().mean()
    text = f"{counts['n_train']:,.0f} training and {counts['n_test']:,.0f} test rows"
    positives = _positives(content)
    return f"{text}, of the test rows {positives:,.0f} with the outcome" if positives else text


def _positives(content: ReportContent) -> float:
    """Test rows of the second class in a seed; 0 where there are not two classes."""
    if "n_positive" not in content.clients:
        return 0.0
    mean = content.clients.groupby(["method", "seed"])["n_positive"].sum().mean()
    return 0.0 if math.isnan(mean) else float(mean)


def _sample_size(content: ReportContent) -> str:
    return f"{_sizes(content)}. Say how this number was arrived at, and whether it is enough."


def _missing(content: ReportContent) -> str:
    if not _is_table(content):
        return ""
    rows = "left out" if _config(content).get("labelled_only") else "refused"
    return (
        "A missing number was replaced by the median and marked by an indicator column; a missing category is one of its own. Rows "
        f"without the outcome were {rows}."
    )


def _division(content: ReportContent) -> str:
    folds = content.sampling.folds
    how = f"{folds}-fold cross-validation" if folds else "a division into training and test rows"
    unit = _config(content).get("unit")
    whole = f"; rows of one {unit} were never divided" if unit else ""
    return f"Within each {content.client_noun} {how}, repeated with {wording.plural(len(content.seeds), 'seed')}{whole}."


def _model(content: ReportContent) -> str:
    config = _config(content)
    names = wording.listing(content.labels)
    return (
        f"The model {config.get('model')}, trained by {names}; local training: {_work(config)}. The report lists all settings, and "
        "which of them were not tuned."
    )


def _work(config: dict[str, Any]) -> str:
    names = ("rounds", "epochs", "batch_size", "optimizer", "lr")
    return ", ".join(f"{name} {config[name]}" for name in names if name in config)


def _heterogeneity(content: ReportContent) -> str:
    noun = content.client_noun
    several = wording.several(noun)
    return f"Scores by {noun} are in the section on single {several}, and how the data differ in that on the data."


def _measures(content: ReportContent) -> str:
    risks = (
        "; calibration, ROC curves and net benefit of the risks"
        if content.risks is not None
        else ""
    )
    return f"{content.metric.title} decides{risks}. {content.about}"


def _imbalance(content: ReportContent) -> str:
    counts = content.label_counts
    if counts is None:
        return ""
    by_class = counts.sum()
    shares = by_class / by_class.sum()
    text = ", ".join(f"{name} {wording.share(share)}" for name, share in shares.items())
    return f"Training rows by class: {text}. No class was weighted or sampled more often, unless the method says so."


def _output(content: ReportContent) -> str:
    if _positives(content):
        return (
            "The probability of each class. Say at which threshold you act, and why; `unalike evaluate --threshold` gives "
            "sensitivity and specificity there."
        )
    return "" if content.label_counts is None else "The probability of each class."


def _code(content: ReportContent) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in content.versions.items())
    return f"{versions}. Repeated by: {content.command}"


def _characteristics(content: ReportContent) -> str:
    return f"{_sizes(content)}. `unalike diagnose` compares the columns between sites."


def _specification(content: ReportContent) -> str:
    return (
        "`unalike export` writes the model with its encoding, and an example that predicts; of the method newton, "
        "`unalike coefficients` writes the formula."
    )


def _performance(content: ReportContent) -> str:
    table = content.scores_of(content.deciding_protocol)
    name = content.decision.leader
    rows = table[table["method"] == name]
    if rows.empty:
        return ""
    score = content.metric.text(float(rows[content.metric.name].iloc[0]))
    return (
        f"{name}: {content.metric.word} {score}; the report has differences with intervals. "
        "Subgroups with intervals: `unalike evaluate --by COLUMN`."
    )


def _performance_by_site(content: ReportContent) -> str:
    scores = content.client_scores
    if scores.empty:
        return ""
    metric = content.metric_of_clients
    own = scores[(scores["method"] == content.decision.leader) & (scores["client"] != POOLED)]
    known = own["score"].dropna()
    if known.empty:
        return ""
    return f"From {metric.text(known.min())} to {metric.text(known.max())} between {wording.several(content.client_noun)}."


def _limits(content: ReportContent) -> str:
    notes = " ".join(content.warnings)
    return f"Notes of the run: {notes}" if notes else ""


ITEMS = (
    Item(
        "1",
        "Title: that a prediction model is developed or evaluated, for whom, and which outcome.",
    ),
    Item("2", "Abstract: by the checklist for abstracts of TRIPOD+AI."),
    Item("3a", "Why the model is needed, and what models exist."),
    Item("3b", "Who is to be predicted for, where in care, and who uses the prediction."),
    Item("3c", "Known inequalities of health between groups."),
    Item("4", "Objectives: development, evaluation, or both."),
    Item(
        "5a",
        "Sources of data for development and evaluation, and how representative they are.",
        _source,
    ),
    Item("5b", "Dates: start and end of recruitment and of follow-up.", _dates),
    Item("6a", "Setting: kind of care, number and place of centres.", _centres),
    Item("6b", "Who was eligible."),
    Item("6c", "Treatments that were given, and how they were dealt with."),
    Item("7", "Preparation and quality checks of data, alike in all groups.", _preparation),
    Item("8a", "Outcome: definition, horizon, assessment, alike in all groups.", _outcome),
    Item("8b", "Who assessed a subjective outcome, with what training."),
    Item("8c", "Whether assessors of the outcome were blinded."),
    Item("9a", "How the first set of predictors was chosen."),
    Item("9b", "Definition of all predictors, and when and how they were measured."),
    Item("9c", "Who assessed subjective predictors, with what training."),
    Item(
        "10",
        "Sample size, for development and evaluation each, and why it is enough.",
        _sample_size,
    ),
    Item("11", "Missing data: how much, how handled, rows left out.", _missing),
    Item("12a", "How data were used and divided for development and evaluation.", _division),
    Item("12b", "How predictors entered the model: form, scaling, transformation.", _preparation),
    Item(
        "12c",
        "Kind of model, why, and every step of building it, with tuning and internal validation.",
        _model,
    ),
    Item(
        "12d",
        "How differences between clusters, such as hospitals, were estimated.",
        _heterogeneity,
    ),
    Item("12e", "Measures of performance, and how models were compared.", _measures),
    Item("12f", "Updating of the model after its evaluation, such as recalibration."),
    Item("12g", "For an evaluation: how predictions were computed."),
    Item(
        "13",
        "Imbalance of classes: whether and how methods were used against it, and recalibration after.",
        _imbalance,
    ),
    Item("14", "Fairness: what was done about it, and why."),
    Item(
        "15",
        "Output of the model: probabilities or classes, and how thresholds were chosen.",
        _output,
    ),
    Item(
        "16",
        "Differences between development and evaluation data in setting, eligibility, outcome, predictors.",
    ),
    Item("17", "Ethical approval, and consent or its waiver."),
    Item("18a", "Funding and the role of funders."),
    Item("18b", "Conflicts of interest."),
    Item("18c", "Where the protocol is, or that there is none."),
    Item("18d", "Registration, or that there is none."),
    Item("18e", "Availability of the data."),
    Item("18f", "Availability of the code.", _code),
    Item("19", "Involvement of patients and the public, or that there was none."),
    Item("20a", "Flow of participants, with numbers with and without the outcome.", _sizes),
    Item(
        "20b",
        "Characteristics of participants, overall and by source, with missing values.",
        _characteristics,
    ),
    Item("20c", "For an evaluation: comparison of predictors with the development data."),
    Item("21", "Number of participants and outcome events in each analysis.", _sizes),
    Item(
        "22",
        "The full model, so that others can predict: formula, code, or interface.",
        _specification,
    ),
    Item(
        "23a", "Performance with intervals, also in key groups such as by sex or age.", _performance
    ),
    Item("23b", "Differences of performance between clusters.", _performance_by_site),
    Item("24", "Results of updating the model."),
    Item("25", "Interpretation of the main results, with fairness, beside earlier studies."),
    Item("26", "Limitations: sample, overfitting, missing data, and their effect.", _limits),
    Item("27a", "What a user does where input is poor or missing."),
    Item(
        "27b", "Whether users handle input or the model themselves, and which expertise that takes."
    ),
    Item("27c", "Next steps of research, for use elsewhere."),
)
"""All items in their order."""


def checklist(content: ReportContent) -> Table:
    """The items with their answers; `UNANSWERED` where the stored facts say nothing."""
    columns = [
        words("Item", lambda item: item.number),
        words("What is asked for", lambda item: item.asks),
        words("Answer", lambda item: item.answer(content) or UNANSWERED),
    ]
    return Table.of("TRIPOD+AI", columns, ITEMS)


def page(content: ReportContent) -> str:
    """The checklist as one HTML document that needs no other file."""
    table = checklist(content)
    return fill(
        "table_page.html.j2",
        kind="Reporting checklist",
        title=content.title,
        about=table.caption,
        heading="How to read it",
        reading=READING,
        table=table,
    )
