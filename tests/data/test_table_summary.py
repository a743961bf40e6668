"""The encoding from the summaries of several tables is that of all their training rows together."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from unalike._utils.errors import UnalikeError
from unalike.data import load
from unalike.data.sources.table_summary import TableSummary, agreed, codings, summarize
from unalike.data.table_encoding import fit
from unalike.runtime.results.prediction import new_samples


def patients(seed, mean, wards, rows=300, gaps=0):
    rng = np.random.default_rng(seed)
    age = rng.normal(mean, 10, rows).round(1)
    age[:gaps] = np.nan
    return pd.DataFrame(
        {
            "age": age,
            "ward": rng.choice(list(wards), rows),
            "beds": rng.integers(1, 9, rows),
            "smoker": rng.random(rows) < 0.3,
            "outcome": np.array(["ill", "well"])[np.arange(rows) % 2],
        }
    )


def training(frame):
    return frame[frame.groupby("outcome").cumcount() % 5 != 4]


@pytest.fixture
def frames():
    return {
        "north": patients(1, 30, "ab"),
        "south": patients(2, 80, "bc", 200, gaps=20),
        "west": patients(3, 50, "abc", 90),
    }


def summaries(frames, folder, **options):
    found = {}
    for site, frame in frames.items():
        frame.to_csv(folder / f"{site}.csv", index=False)
        summarize(folder / f"{site}.csv", target="outcome", **options).save(folder / f"{site}.json")
        found[site] = TableSummary.load(folder / f"{site}.json")
    return found


def test_agreed_encoding_equals_that_of_pooled_rows(frames, tmp_path):
    encoding, target = agreed(summaries(frames, tmp_path, least=1))
    pooled = pd.concat([training(frame) for frame in frames.values()]).drop(columns="outcome")
    wanted = fit(pooled, len(pooled), "pooled")
    assert encoding.names == wanted.names and encoding.categories == wanted.categories
    assert (target.kind, target.classes) == ("classification", ("ill", "well"))
    for ours, theirs in zip(encoding.numbers, wanted.numbers, strict=True):
        assert (ours.name, ours.gaps, ours.truth) == (theirs.name, theirs.gaps, theirs.truth)
        if not ours.gaps:  # sums are exact
            assert [ours.mean, ours.scale] == pytest.approx([theirs.mean, theirs.scale], rel=1e-12)
        assert ours.fill == pytest.approx(
            theirs.fill, abs=0.12 * theirs.scale
        )  # up to the resolution of the quantiles
    age, exact = encoding.numbers[0], wanted.numbers[0]
    assert age.gaps and [age.mean, age.scale] == pytest.approx([exact.mean, exact.scale], rel=0.01)


def test_dates_are_agreed_as_days(frames, tmp_path):
    days = pd.date_range("2020-01-30", periods=300, freq="31h")
    dated = {
        site: frame.assign(admitted=days[: len(frame)].strftime("%d.%m.%Y"))
        for site, frame in frames.items()
    }
    found = summaries(dated, tmp_path, least=1, date=["admitted"])
    encoding, _ = agreed(found)
    pooled = pd.concat([training(frame) for frame in dated.values()]).drop(columns="outcome")
    wanted = fit(pooled, len(pooled), "pooled", {"admitted": "%d.%m.%Y"})
    [ours], [theirs] = ([n for n in e.numbers if n.name == "admitted"] for e in (encoding, wanted))
    assert ours.date == theirs.date == "%d.%m.%Y"
    assert [ours.mean, ours.scale] == pytest.approx([theirs.mean, theirs.scale], rel=1e-12)
    dated["west"]["admitted"] = days[:90].strftime("%m/%d/%Y")
    mixed, _ = agreed(summaries(dated, tmp_path, least=1, date=["admitted"]))
    assert mixed == replace(
        encoding, numbers=tuple(replace(n, date=n.date and "ISO8601") for n in encoding.numbers)
    )
    west = {"target": "outcome", "encoding": mixed}
    mine = load(tmp_path / "west.csv", date="admitted=%m/%d/%Y", **west).merged()[0]
    dated["west"].assign(admitted=days[:90].normalize()).to_parquet(tmp_path / "west.parquet")
    assert torch.equal(mine, load(tmp_path / "west.parquet", **west).merged()[0])
    assert torch.equal(
        mine, load(tmp_path / "west.csv", **west).merged()[0]
    )  # as its summary was made of it
    odd = dated["west"].assign(admitted=[*dated["west"]["admitted"][:-1], "soon"])
    assert not training(odd)["admitted"].eq("soon").any()
    with pytest.raises(UnalikeError, match="holds 'soon'"):
        summaries({"west": odd}, tmp_path, date=["admitted=%m/%d/%Y"])
    with pytest.raises(
        UnalikeError,
        match=r"'soon' in line 91, .* \(%m/%d/%Y\) or nothing; .* --date 'admitted=%Y-%m-%d'",
    ):
        load(tmp_path / "west.csv", date="admitted=%m/%d/%Y", **west)
    dated["west"].to_csv(tmp_path / "west.csv", index=False)
    with pytest.raises(
        UnalikeError, match="'age' is not one of dates in the encoding that was agreed"
    ):
        load(tmp_path / "west.csv", date="age=%Y", **west)
    (tmp_path / "new").mkdir()
    dated["west"].drop(columns="outcome").to_csv(tmp_path / "new" / "west.csv", index=False)
    new = new_samples(
        tmp_path / "new" / "west.csv", mixed, [mixed.width], date=["admitted=%m/%d/%Y"]
    ).x
    assert torch.equal(new.sort(0).values, mine.sort(0).values)
    del dated["west"]["admitted"]
    undated = summaries({"west": dated["west"].assign(admitted=1.0)}, tmp_path, least=1)
    with pytest.raises(
        UnalikeError,
        match=r"'admitted' is read in several ways .*; expected --date admitted at all",
    ):
        agreed(found | undated)


def test_one_table_gives_its_own_encoding(frames, tmp_path):
    """With an even number of parts the median is one of the quantiles. Mean and scale follow from it where values are missing."""
    south = {"south": frames["south"]}
    encoding, _ = agreed(summaries(south, tmp_path, least=1))
    rows = training(frames["south"]).drop(columns="outcome")
    for ours, theirs in zip(encoding.numbers, fit(rows, len(rows), "south").numbers, strict=True):
        assert [ours.fill, ours.mean, ours.scale] == pytest.approx(
            [theirs.fill, theirs.mean, theirs.scale], rel=1e-12
        )


def test_rare_values_stay_at_the_site(frames, tmp_path):
    frames["north"].loc[[0, 1, 2], "ward"] = "isolation of Mrs Smith"
    frames["north"].loc[frames["north"].index[3:], "age"] = np.nan  # three ages are left
    north = summaries(frames, tmp_path)["north"]
    text = (tmp_path / "north.json").read_text()
    assert "Smith" not in text and set(north.categories[0].values) == {"a", "b"}
    age = north.numbers[0]
    assert (age.count, age.missing, age.quantiles) == (0, north.rows, ())
    assert not any(f"{frames['north']['age'][k]:g}" in text for k in range(3))


@pytest.mark.parametrize("rare", [1, 4, 5])
def test_few_rows_that_differ_from_all_others_do_not_show_in_the_mean(frames, tmp_path, rare):
    """One patient with a disease among 240: the mean of true and false, or of 0 and another number, would tell it."""
    north = training(frames["north"])
    for name, usual, odd in (("smoker", False, True), ("beds", 2, 7)):
        frames["north"][name] = usual
        frames["north"].loc[north.index[:rare], name] = odd
    found = summaries(frames, tmp_path)
    means = {number.name: number.mean for number in found["north"].numbers}
    shown = rare if rare == 5 else 0
    assert means["smoker"] == pytest.approx(shown / len(north))
    assert means["beds"] == pytest.approx(2 + 5 * shown / len(north))
    agreed(found)


def test_mean_and_deviations_do_not_tell_the_largest_value(frames, tmp_path):
    """One stay of a year among stays of days: the root of n times the variance was 365.0."""
    north = training(frames["north"])
    stays = frames["north"].assign(beds=np.arange(len(frames["north"])) % 10 + 1)
    found = []
    for longest in (10, 365):
        stays.loc[north.index[0], "beds"] = longest
        [*_, beds, _] = summaries({"north": stays}, tmp_path)["north"].numbers
        found.append(beds)
    assert found[0] == found[1] and found[0].name == "beds"


def test_quantiles_have_enough_values_between_them(frames, tmp_path):
    found = summaries({"west": frames["west"]}, tmp_path, least=10)["west"]
    ages, cuts = training(frames["west"])["age"], found.numbers[0].quantiles
    held = np.bincount(np.searchsorted(cuts, ages), minlength=len(cuts) + 1)
    assert held.min() >= 10 and ages.min() < cuts[0] and cuts[-1] < ages.max()


def test_true_and_false_with_gaps_at_one_site_are_categories(frames, tmp_path):
    frames["north"]["smoker"] = (
        frames["north"]["smoker"].astype(object).where(np.arange(300) > 30, None)
    )
    encoding, _ = agreed(summaries(frames, tmp_path))
    smoker = next(c for c in encoding.categories if c.name == "smoker")
    assert smoker.values == ("(missing)", "False", "True") and "smoker" not in [
        n.name for n in encoding.numbers
    ]


def test_column_that_one_site_never_filled_in_is_missing_there(frames, tmp_path):
    frames["west"]["ward"], frames["west"]["beds"] = None, None
    encoding, _ = agreed(summaries(frames, tmp_path))
    assert encoding.categories[0].values == ("(missing)", "a", "b", "c")
    beds = next(n for n in encoding.numbers if n.name == "beds")
    assert beds.gaps and 4 <= beds.mean <= 5


@pytest.mark.parametrize(
    "change, message",
    [
        ({"age": lambda f: f["ward"]}, r"'age' holds numbers at south and texts at north"),
        ({"bed": lambda f: f["beds"]}, r"have other columns: only one of them has bed"),
        (
            {"outcome": lambda f: np.arange(len(f)) / 7},
            r"the target of south is 'outcome' \(classification\), that of north",
        ),
    ],
)
def test_sites_that_disagree_are_named(frames, tmp_path, change, message):
    frames["north"] = frames["north"].assign(**change)
    with pytest.raises(UnalikeError, match=message):
        agreed(summaries(frames, tmp_path))


def test_names_of_rows_and_damaged_summaries_are_refused(frames, tmp_path):
    frames["north"]["patient"] = [f"patient {k}" for k in range(300)]
    with pytest.raises(UnalikeError, match="--drop patient"):
        summaries(frames, tmp_path)
    for content in (
        "",
        "[]",
        json.dumps({"rows": -1}),
        json.dumps({"rows": 1, "least": 1, "columns": [], "odd": 1}),
        "[" * 100_000,
    ):
        (tmp_path / "odd.json").write_text(content)
        with pytest.raises(UnalikeError, match="is not the summary of a table"):
            TableSummary.load(tmp_path / "odd.json")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda s: s["numbers"][0].update(count=10**6), "not as many as the rows"),
        (lambda s: s["numbers"][0].update(mean=1e200), "mean=1e\\+200"),
        (lambda s: s.update(rows=10**400), "rows=1000"),
        (lambda s: s["numbers"][0].update(quantiles=[2.0, 1.0]), "not in order"),
        (lambda s: s["numbers"].append(s["numbers"][0]), "not those of each column"),
        (lambda s: s["categories"][0]["values"].update(a=10**6), "more than the rows"),
    ],
)
def test_no_site_counts_for_more_in_the_encoding_than_by_its_rows(
    frames, tmp_path, change, message
):
    summaries(frames, tmp_path)
    forged = json.loads((tmp_path / "north.json").read_text())
    change(forged)
    (tmp_path / "north.json").write_text(json.dumps(forged))
    with pytest.raises(UnalikeError, match=message):
        TableSummary.load(tmp_path / "north.json")


def test_names_of_a_site_are_printed_without_what_a_terminal_acts_on(frames, tmp_path):
    # twice each, so that they are no copy of the outcome
    wards = np.repeat(["a\x1b[2J", "b"], 2)
    frames["north"]["ward"] = np.resize(wards, len(frames["north"]))
    found = summaries(frames, tmp_path)
    [wards] = codings(found)
    assert "\x1b" in found["north"].text().encode().decode("unicode_escape")
    assert "a [2J" in str(wards) and "\x1b" not in str(wards)


@pytest.mark.parametrize(
    "column, north, south, said",
    [
        (
            "outcome",
            [0, 1],
            [1, 2],
            "the classes of 'outcome': north: 0, 1; south: 1, 2; west: ill",
        ),
        ("outcome", [-1, 1], [0, 1], "the classes of 'outcome': north: -1, 1; south: 0, 1; west"),
        ("outcome", ["ill", "well"], ["Ill", "Well"], "north, west: ill, well; south: Ill, Well"),
        ("ward", ["m", "f"], ["M", "F"], "the categories of 'ward': north: f, m; south: F, M"),
        ("ward", ["1", "2"], ["2", "3"], "north: (other), 1, 2; south: (other), 2, 3"),
        (
            "smoker",
            [True, False],
            ["yes", "no"],
            "of 'smoker': north, west: False, True; south: no",
        ),
        ("beds", [0, 1], [1, 2], "the numbers of 'beds': north: 0, 1; south: 1, 2"),
        ("beds", [-1, 1], [0, 1], "the numbers of 'beds': north: -1, 1; south: 0, 1"),
    ],
)
def test_sites_that_write_one_set_in_two_ways_are_refused(
    frames, tmp_path, column, north, south, said
):
    for site, values in (("north", north), ("south", south)):
        if isinstance(values[0], str) and values[0] in "12":
            values = [*values, "(other)"]  # texts, also where a file stores no types
        # twice each, so that a feature is no copy of the outcome
        twice = np.repeat(np.array(values, object), 2)
        frames[site][column] = np.resize(twice, len(frames[site]))
    found = summaries(frames, tmp_path)
    with pytest.raises(UnalikeError) as refusal:
        agreed(found)
    assert said in str(refusal.value) and "summarize again" in str(refusal.value)
    agreed(found, accept=True)


def test_sites_with_other_wards_agree(frames, tmp_path):
    """What differs without a doubt is laid side by side, and no more."""
    [wards] = codings(summaries(frames, tmp_path))
    assert str(wards) == "the categories of 'ward': north: a, b; south: b, c; west: a, b, c"
    assert not wards.reason
