"""Scores and chats in files of comma-separated values."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.test_stages.ingest_kit import packed, read_file
from tests.test_stages.ingest_values import CHAT, SAID

ROWS = "trace_id,name,score\nt1,recall,0.5\nt2,recall,1\nt3,recall,\n"


@pytest.mark.parametrize("how", ["plain", "gz", "zst"])
@pytest.mark.parametrize(
    "text",
    [
        ROWS,
        ROWS.replace("\n", "\r\n"),
        "\ufeff" + ROWS,
        ROWS.replace(",", ";"),
        ROWS.replace(",", "\t"),
        '"trace_id","name","score"\n"t1","recall","0.5"\n"t2","recall","1"\n\n"t3","recall",""',
        'score,note,name,trace_id\n0.5,"a, b\n c",recall,t1\n1,,recall,t2\n,,recall,t3\n',
        ROWS.replace("1\n", "true\n"),
        ",trace_id,name,score\n0,t1,recall,0.5\n1,t2,recall,1\n2,t3,recall,\n",
        "trace_id,trace_id,name,score\nt1,t1,recall,0.5\nt2,t2,recall,1\nt3,t3,recall,\n",
    ],
)
def test_scores_stand_in_any_usual_form(text: str, how: str, tmp_path: Path) -> None:
    found = read_file(packed(tmp_path / "scores", text.encode(), how))
    assert found.format == "scores"
    assert [(score.trace, score.name, score.value) for score in found.scores] == [
        ("t1", "recall", 0.5),
        ("t2", "recall", 1.0),
        ("t3", "recall", None),
    ]
    assert not found.refused


def test_chats_stand_in_a_table_too(tmp_path: Path) -> None:
    stream = io.StringIO()
    rows = csv.writer(stream)
    rows.writerow(["id", "messages", "score"])
    rows.writerow(["c1", json.dumps([*CHAT, SAID]), "0.25"])
    rows.writerow(["c2", json.dumps([*CHAT, {**SAID, "content": 'say "five",\nplease'}]), ""])
    found = read_file(packed(tmp_path / "chats.csv", stream.getvalue().encode(), "plain"))
    assert found.format == "openai_chat"
    assert [call.completion for call in found.calls] == ["4", 'say "five",\nplease']
    assert [score.value for score in found.scores] == [0.25, None]
    pairs = read_file(packed(tmp_path / "pairs.csv", b"prompt,completion,reward\n2+2?,4,1\n", "plain"))
    assert (pairs.format, pairs.call.completion, pairs.score("reward").value) == ("openai_chat", "4", 1.0)


def test_a_row_of_another_length_is_refused_and_its_neighbours_are_read(tmp_path: Path) -> None:
    found = read_file(packed(tmp_path / "s.csv", (ROWS + "t4,recall\nt5,recall,1,2\nt6,recall,1\n").encode(), "plain"))
    assert [item.reason for item in found.refused] == ["broken", "broken"]
    assert "line 5" in found.refused[0].where
    assert [score.trace for score in found.scores] == ["t1", "t2", "t3", "t6"]


def test_a_quote_that_is_never_closed_takes_no_more_than_a_cell_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.ingest.csv_rows.WHOLE", 1000)
    text = ROWS + 't4,"recall,1\n' + "t5,recall,1\n" * 1000
    found = read_file(packed(tmp_path / "s.csv", text.encode(), "plain"))
    assert [item.reason for item in found.refused] == ["not_readable"]
    assert len(found.scores) == 3


@pytest.mark.parametrize("text", ["hello, world\n1,2,3\n", "a,b\n", "1,2\n3,4\n", "x,x\n1,2\n", "just a text\n"])
def test_other_tables_and_texts_are_refused(text: str, tmp_path: Path) -> None:
    found = read_file(packed(tmp_path / "t", text.encode(), "plain"))
    assert (found.format, found.scores, len(found.refused)) == (None, [], 1)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_any_bytes_behind_a_header_are_read_or_refused(data: bytes, tmp_path: Path) -> None:
    found = read_file(packed(tmp_path / "s.csv", b"trace_id,score\nt,1\n" + data, "plain"))
    assert found.format == "scores"
    assert found.scores[0].value == 1.0
