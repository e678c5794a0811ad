"""What reaches a terminal: nothing that steers it, no key, and all of it by one function."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli import main
from pipeline.progress import Reporter
from pipeline.terminal import guard_logs, say
from schemas.discretion import discreet, remember
from tests.test_e2e.kit import ROOT, mmgrpo, own_recipe

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
HARM = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp.exe\r\x08"


@given(st.text() | st.text(alphabet="\x1b[]0;m\x07\x9b\u202e\n\tab"))
def test_nothing_that_is_said_steers_a_terminal(text: str) -> None:
    stream = io.StringIO()
    say(text, file=stream)
    assert not STEERING.search(stream.getvalue())
    assert stream.getvalue().count("\n") == text.count("\n") + 1


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_text_that_can_be_seen_is_said_as_it_is(text: str) -> None:
    stream = io.StringIO()
    say(text, file=stream)
    if "://" not in text:
        assert stream.getvalue() == text + "\n"


def test_commands_print_by_one_function() -> None:
    """A call of print anywhere else would bypass it. `tasks/prepare.py` is a script of the developers' own."""
    allowed = {"pipeline/terminal.py", "pipeline/tasks/prepare.py"}
    found = set()
    for folder in ("pipeline", "stages", "schemas"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            if any(isinstance(call, ast.Name) and call.id == "print" for call in calls):
                found.add(path.relative_to(ROOT).as_posix())
    assert found <= allowed


def test_a_name_in_an_error_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (("status",), ("verify",), ("lineage",), ("export", "groups")):
        more = (tmp_path / "out",) if command[0] == "export" else ()
        assert mmgrpo(*command, tmp_path / f"run{HARM}", *more) in {2, 3}
        said = capsys.readouterr()
        assert "␛[2J" in said.err
        assert not STEERING.search(said.err + said.out)


def test_a_trace_file_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, traces = own_recipe(tmp_path / "own"), tmp_path / "traces"
    traces.mkdir()
    (traces / f"a{HARM.replace('/', '')}\nforged: all is well.json").write_text(json.dumps({f"key{HARM}": 1}))
    call = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": HARM}], "id": HARM}
    (traces / "b.jsonl").write_text(json.dumps(call | {"name": f"span{HARM}"}) + "\n")
    for more in ((), ("--suggest-modules",)):
        mmgrpo("ingest", recipe, traces, "--snapshots", tmp_path / "snapshots", *more)
        said = capsys.readouterr()
        assert "␛[2J" in said.err or more
        assert not STEERING.search(said.err + said.out)
        assert not any(line.startswith("forged") for line in said.err.splitlines())


def test_a_note_is_one_line_and_no_markup() -> None:
    stream = io.StringIO()
    reporter = Reporter("plain", stream)
    reporter.note("one\ntwo")
    assert stream.getvalue() == "one␊two\n"
    bar = Reporter("bar", io.StringIO())
    bar.start("[/nothing] [red]")
    bar.update(1, 2, "things", {"[/figure]": "[bold]"})
    bar.finish("[/done]")


def test_what_libraries_log_neither_steers_nor_tells_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hf_verysecret")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    guard_logs()
    logging.getLogger("stages.test").warning("the server says %s and hf_verysecret", HARM)
    said = capsys.readouterr().err
    assert "the server says ␛" in said
    assert not STEERING.search(said)
    assert "verysecret" not in said


@pytest.mark.parametrize(
    "name", ["OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "OUR_SECRET", "DB_PASSWORD"]
)
def test_values_of_the_environment_that_are_keys_are_not_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "s3cr3t-value")
    assert discreet("answered: bad key s3cr3t-value (401)") == "answered: bad key *** (401)"


def test_a_key_of_any_variable_is_not_shown_once_it_was_used_and_short_words_are_no_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remember("from-another-variable")
    assert discreet("x from-another-variable y") == "x *** y"
    monkeypatch.setenv("EMPTY_KEY", "none")
    assert discreet("there is none") == "there is none"


def test_a_traceback_tells_no_key_and_does_not_steer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pipeline.commands.status as command

    def fail(options: object) -> int:
        raise RuntimeError(f"GET https://me:pw@host/x?sig=abc answered{HARM} to Bearer sk-secretvalue")

    monkeypatch.setenv("OPENAI_API_KEY", "sk-secretvalue")
    monkeypatch.setattr(command, "do", fail)
    assert main(["status", str(tmp_path)]) == 4
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert not STEERING.search(said)
    assert not any(secret in said for secret in ("sk-secretvalue", "me:pw", "sig=abc"))
