"""Words, vocabularies and the news data sets."""

import csv

import numpy as np
import pandas as pd
import pytest
import torch

from unalike._utils.errors import UnalikeError
from unalike.data import ClientData, Dataset, Population, load, partition, text
from unalike.data.training_vocabulary import restrict_vocabulary
from unalike.runtime.setup.run_config import configure_run

SENTENCES = ["The cat saw the dog.", "A dog!", "...", "the unseen"]


def test_vocabulary_orders_words_by_frequency_then_alphabet():
    known = text.vocabulary(SENTENCES[:2], 6)
    assert known == {"dog": 2, "the": 3, "a": 4, "cat": 5}
    assert text.encode(SENTENCES, known, 4).tolist() == [
        [3, 5, 1, 3],
        [4, 2, 0, 0],
        [1, 0, 0, 0],
        [3, 1, 0, 0],
    ]


def test_mask_marks_words_and_bag_counts_them():
    x = torch.tensor([[3, 2, 3, 0], [1, 0, 0, 0]])
    assert text.mask(x).tolist() == [[True, True, True, False], [True, False, False, False]]
    assert text.bag(x, 5).tolist() == [[1, 2, 0], [0, 0, 0]]


def test_restrict_vocabulary_removes_test_words():
    x = torch.tensor([[2, 3, 0], [4, 3, 3], [5, 2, 0], [1, 0, 0]])
    y = torch.tensor([0, 1, 0, 1])
    one = ClientData(train=(x[:2], y[:2]), test=(x[2:], y[2:]))
    clients = restrict_vocabulary(Population.of([one]))
    assert clients.x.tolist() == [[2, 3, 0], [4, 3, 3], [1, 2, 0], [1, 0, 0]]
    with pytest.raises(UnalikeError, match="expected tokens"):
        restrict_vocabulary(Population.of([ClientData(train=(np.zeros((2, 3)), y[:2]))]))


def news(folder, name, header, first):
    folder.mkdir(exist_ok=True)
    for part, count in (("train", 40), ("test", 8)):
        with (folder / f"{name}{part}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerows(header)
            rows = [
                (k % 4 + first, f'Title, "{k % 4}"', f"word{k % 4}\\nnext") for k in range(count)
            ]
            writer.writerows((row[0], " ".join(row[1:])) if header else row for row in rows)


@pytest.mark.parametrize(
    ("folder", "name", "header", "first"),
    [("ag_news_csv", "", [], 1), ("ag_news", "", [], 1), ("", "ag_news_", [("label", "text")], 0)],
)
def test_news_files_with_and_without_header_are_read(tmp_path, folder, name, header, first):
    news(tmp_path / folder, name, header, first)
    data = load("ag_news(length=5)", tmp_path)
    assert (
        data.classes[3] == "Sci/Tech"
        and data.train[1][:5].tolist() == [0, 1, 2, 3, 0]
        and len(data.test[1]) == 8
    )
    assert (
        data.input_shape == (5,)
        and data.train[0][0].tolist()[:3] == [3, 4, 8]
        and data.train[0][0, 4] == 0
    )
    assert data.encoding.apply(pd.DataFrame({"text": ["Title news of word2"]}), "").tolist()[0][
        ::3
    ] == [3, 10]
    again = load("ag_news(length=3)", tmp_path, encoding=data.encoding)  # what was agreed wins
    assert torch.equal(again.merged()[0], data.merged()[0])


def test_news_with_invalid_label_or_no_table_raise(tmp_path):
    news(tmp_path / "sogou_news_csv", "", [], 3)
    with pytest.raises(UnalikeError, match=r"labels lie in 2\.\.5, expected 0\.\.4"):
        load("sogou_news", tmp_path)
    (tmp_path / "sogou_news_csv" / "train.csv").write_text("x,y\n1,2\n")
    with pytest.raises(UnalikeError, match="cannot be read as a table of news"):
        load("sogou_news", tmp_path)
    (tmp_path / "sogou_news_csv" / "train.csv").write_text("1\n2\n")
    with pytest.raises(
        UnalikeError, match=r"train\.csv holds one column, expected the class and then the texts"
    ):
        load("sogou_news", tmp_path)
    (tmp_path / "sogou_news_csv" / "train.csv").unlink()
    with pytest.raises(UnalikeError, match=r"holds no train\.csv or train\.csv\.gz"):
        load("sogou_news", tmp_path)


def test_server_samples_keep_trained_words_only():
    x, y = torch.tensor([[2, 4], [4, 2], [3, 3], [3, 2]]), torch.tensor([0, 1, 0, 1])
    clients = partition(Dataset("notes", (x, y), None, ["a", "b"]), "iid", clients=1, split=0.5)
    kept = torch.tensor([[2, 3, 4, 0], [4, 9, 3, 2]])
    job = configure_run(
        "fedavg",
        clients,
        model="textcnn(vocabulary=10, embedding=2, filters=2, widths=(1,))",
        rounds=1,
        test=(kept[:, :2], y[:2]),
    )
    trained = {0, *clients[0].train[0].flatten().tolist()}
    assert 9 not in trained and {2, 3, 4} - trained
    assert job.test[0].tolist() == [
        [t if t in trained else text.UNKNOWN for t in row] for row in kept[:, :2].tolist()
    ]


def test_partition_of_tokens_keeps_trained_words_only():
    """Word 3 stands in what becomes a test sample only: it is unknown, and the words left keep their numbers."""
    x, y = torch.tensor([[2, 2, 4], [4, 2, 0], [3, 3, 3], [3, 3, 2]]), torch.tensor([0, 1, 0, 1])
    data = Dataset("notes", (x, y), None, ["a", "b"])
    clients = partition(data, "iid", clients=1, split=0.5)
    trained, tested = clients[0].train[0], clients[0].test[0]
    seen = {int(t) for t in x[clients.train[0]].flatten()} - {0}
    assert torch.equal(trained, x[clients.train[0]])
    never = ~torch.isin(x[clients.test[0]], torch.tensor([0, *seen]))
    assert (
        never.any()
        and (tested[never] == text.UNKNOWN).all()
        and (tested[~never] != text.UNKNOWN).all()
    )
