"""The checklist of TRIPOD+AI is answered from the facts of a comparison, and leaves the rest to its authors."""

import re
from dataclasses import replace

import pytest

import unalike as ua
from unalike.reporting.checklist import ITEMS, UNANSWERED, checklist, page


@pytest.fixture(scope="module")
def content():
    found = ua.compare(
        ["fedavg"],
        data="heart_disease",
        metric="roc_auc",
        model="linear",
        rounds=1,
        seeds=2,
        progress=False,
    )
    return found.content()


def test_answers_are_facts_of_the_comparison(content):
    answers = {number: answer for number, _, answer in checklist(content).texts}
    assert list(answers) == [item.number for item in ITEMS]
    assert {int(re.match(r"\d+", number)[0]) for number in answers} == set(range(1, 28))

    of_a_run = content.clients.groupby("seed")[["n_test", "n_positive"]].sum().mean()
    assert f"{of_a_run['n_test']:,.0f} test rows" in answers["20a"]
    assert f"{of_a_run['n_positive']:,.0f} with the outcome" in answers["20a"]
    assert all(str(name) in answers["6a"] for name in content.clients["client"].unique())
    assert "2 seeds" in answers["12a"] and content.command in answers["18f"]
    # no folder knows of approvals and funding
    assert {answers[number] for number in ("17", "18a", "18b", "19")} == {UNANSWERED}


def test_page_has_every_item(content):
    text = page(content)
    assert all(f">{item.number}<" in text for item in ITEMS)


def test_outcome_is_the_column_that_the_command_names(content):
    config = 'data = "visits.csv"\ntarget = ["died"]\n'
    [answer] = [
        text
        for number, _, text in checklist(replace(content, config=config)).texts
        if number == "8a"
    ]
    assert answer.startswith("The column died, with the classes")
