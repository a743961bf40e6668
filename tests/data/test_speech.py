"""Lines by speaker as windows of characters."""

import gzip
import json

import numpy as np
import pytest

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.data.sources.speech import CHARACTERS

# Shakespeare, As You Like It and Macbeth (public domain)
LINES = [
    ("JAQUES", "All the world's a stage,"),
    ("MACBETH", "Tomorrow, and tomorrow, and tomorrow,"),
    ("JAQUES", "And all the men and women merely players;"),
    ("MACBETH", "Creeps in this petty pace from day to day,"),
    ("PORTER", "Knock!"),
]


@pytest.fixture
def folder(tmp_path):
    rows = "".join(f'{name},"{text}"\n' for name, text in LINES)
    (tmp_path / "shakespeare.csv").write_text("speaker,line\n" + rows)
    return tmp_path


def spoken(data, rows):
    return ["".join(CHARACTERS[c - 2] for c in row) for row in data.merged()[0][rows].tolist()]


def test_shakespeare_has_the_80_characters_of_leaf():
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 80


def test_shakespeare_windows_are_disjoint_and_followed_by_their_label(folder):
    data = ua.load("shakespeare(length=9)", folder)
    # 24 + 1 + 41 = 66 and 37 + 1 + 42 = 80 characters, windows of 10: 6 and 8, of which the last 1 and 1 test
    assert (len(data.train[1]), len(data.test[1])) == (12, 2)
    speaker = data.groups["speaker"]
    assert list(speaker) == ["JAQUES"] * 5 + ["MACBETH"] * 7 + ["JAQUES", "MACBETH"]
    text = "All the world's a stage,\nAnd all the men and women merely players;"
    jaques = np.flatnonzero(speaker == "JAQUES")
    labels = [CHARACTERS[c] for c in data.merged()[1][jaques].tolist()]
    found = [window + label for window, label in zip(spoken(data, jaques), labels)]
    assert "".join(found) == text[:60]


def test_shakespeare_step_moves_the_window(folder):
    data = ua.load("shakespeare(length=9, step=1)", folder)
    assert len(data.merged()[1]) == (66 - 9) + (80 - 9)
    assert spoken(data, [0, 1]) == ["All the w", "ll the wo"]


def test_shakespeare_gives_a_client_a_speaker_and_trains(folder):
    clients = ua.partition(
        ua.load("shakespeare(length=9, step=1)", folder), "natural(column='speaker')"
    )
    assert clients.names == ["JAQUES", "MACBETH"] and len(clients.classes) == 80
    run = ua.run("fedavg", clients, model="char_lstm(hidden=4)", rounds=1, progress=False)
    assert run.history.last["loss"] > 0


def test_shakespeare_reads_other_columns_and_compressed_files(tmp_path):
    with gzip.open(tmp_path / "shakespeare.csv.gz", "wt") as file:
        file.write("Player,PlayerLine\nA,To be é or not to be\n")
    data = ua.load("shakespeare(length=3, speaker='Player', line='PlayerLine')", tmp_path)
    assert spoken(data, [0, 1]) == ["To ", "e  "]
    with pytest.raises(
        UnalikeError, match="has the columns Player, PlayerLine; expected 'speaker' and 'line'"
    ):
        ua.load("shakespeare", tmp_path)
    with pytest.raises(UnalikeError, match="found length=80 and step=0, expected 1 or more"):
        ua.load("shakespeare(step=0)", tmp_path)
    with pytest.raises(UnalikeError, match="no speaker has 81 characters"):
        ua.load("shakespeare(speaker='Player', line='PlayerLine')", tmp_path)


def test_shakespeare_without_its_file_says_which_file_to_put_where(tmp_path):
    with pytest.raises(
        UnalikeError,
        match=r"found no shakespeare.csv in .*put a table there with a column 'speaker'",
    ):
        ua.load("shakespeare", tmp_path)


def test_shakespeare_reads_a_list_of_roles_where_there_is_no_table(tmp_path):
    (tmp_path / "natural").mkdir()
    roles = [
        {"play": "As You Like It", "role": "Jaques", "text": LINES[0][1] + LINES[2][1]},
        {"play": "Macbeth", "role": "Porter", "text": "Knock!"},
    ]
    file = tmp_path / "natural" / "shakespeare_roles.json.gz"
    file.write_bytes(gzip.compress(json.dumps(roles).encode()))
    data = ua.load("shakespeare(length=9)", tmp_path)
    assert set(data.groups["speaker"]) == {"As You Like It: Jaques"}
    assert spoken(data, [0]) == [LINES[0][1][:9]]

    # with a label at each character the window and its labels are one text, shifted
    at_each = ua.load("shakespeare(length=9, every=True)", tmp_path)
    x, y = at_each.train
    assert at_each.task.spec == "next_token(classes=80)" and y.shape == x.shape
    assert (y[:, :-1] + 2).equal(x[:, 1:]) and y[:, -1].equal(data.train[1])
