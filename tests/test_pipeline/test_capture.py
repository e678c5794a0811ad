"""Capturing runs of a plain program: what is kept, and that the program never pays for it."""

from __future__ import annotations

import asyncio
import logging
import math
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.capture import Capture, otel_attributes
from pipeline.capture.place import now
from schemas.errors import RecipeError
from stages.ingest import mmgrpo_capture, otlp_json
from stages.ingest.formats import read_items
from stages.ingest.normal import Call, Refused, Score, Span
from stages.ingest.tree import Tree, grow
from tests.test_e2e.kit import ROOT
from tests.test_pipeline.capture_kit import calls, items, roots, scores, spans

ASK = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


@pytest.fixture
def capture(tmp_path: Path) -> Any:
    made = Capture(tmp_path / "traces", policy="abc", logprob_kind="processed")
    yield made
    made.close()


def folder(capture: Capture) -> Path:
    assert capture.flush()
    return capture._writer._folder


def test_importing_needs_the_standard_library_and_pyarrow_alone(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        top = name.partition('.')[0]\n"
        "        if top not in sys.stdlib_module_names | {'pyarrow', 'pipeline', 'schemas', 'stages'}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from pipeline.capture import Capture\n"
        "capture = Capture(sys.argv[1])\n"
        "with capture.run({'a': 1}) as run:\n"
        "    run.call('m', [{'role': 'user', 'content': 'x'}], 'y')\n"
        "assert capture.close() and capture.counts['rows'] == 2, capture.counts\n"
        "assert not {'polars', 'torch', 'pydantic', 'orjson'} & set(sys.modules)\n"
    )

    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_all_that_is_told_of_a_call_comes_out_of_ingest(capture: Capture) -> None:
    with capture.run({"word": "w"}, name="app", example="7", user="u", metadata={"shop": 3}) as run:
        run.call(
            "write",
            ASK,
            "ok",
            invocation_index=2,
            attempt=1,
            model="m",
            temperature=0.5,
            top_p=0.9,
            top_k=5,
            max_tokens=9,
            seed=11,
            prompt_ids=[1, 2],
            completion_ids=[3, 4],
            logprobs=[-0.1, -1 / 3],
            finish_reason="stop",
            reasoning="hm",
            tools=[{"type": "function"}],
            tool_calls=[{"id": "t"}],
            cached=False,
        )
        run.output(["a", {"b": None}])
        run.score("thumbs", True, source="human")
    root, call = spans(folder(capture))
    assert (root.name, root.inputs, root.outputs) == ("app", {"word": "w"}, ["a", {"b": None}])
    assert (root.example, root.user, root.metadata, root.error) == ("7", "u", {"shop": 3}, None)
    assert (call.module, call.invocation_index, call.attempt, call.policy) == ("write", 2, 1, "abc")
    assert call.parent == root.span
    assert call.trace == root.trace == run.trace_id
    assert call.call == Call(
        messages=tuple(ASK),
        completion="ok",
        tool_calls=({"id": "t"},),
        reasoning="hm",
        tools=True,
        finish_reason="stop",
        model="m",
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        max_new_tokens=9,
        seed=11,
        cached=False,
        prompt_ids=(1, 2),
        completion_ids=(3, 4),
        logprobs=(-0.1, -1 / 3),
        logprob_kind="processed",
    )
    assert [(score.name, score.value, score.source) for score in scores(folder(capture))] == [("thumbs", 1.0, "human")]


def test_what_is_not_told_is_null(capture: Capture) -> None:
    with capture.run() as run:
        run.call("write", ASK, error="refused")
    root, call = spans(folder(capture))
    assert root.inputs is None
    assert root.outputs is None
    assert call.error == "refused"
    assert call.call == Call(tuple(ASK), tools=False)


def test_an_error_of_the_program_goes_on_its_way_and_stands_in_the_run(capture: Capture) -> None:
    def program() -> None:
        with capture.run({"word": "w"}) as run:
            run.call("write", ASK, "ok")
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        program()
    with pytest.raises(SystemExit), capture.run({"word": "w"}):
        sys.exit(3)
    first, second = roots(folder(capture))
    assert first.error == "ZeroDivisionError: division by zero"
    assert second.error == "SystemExit: 3"
    assert len(calls(folder(capture))) == 1


def test_keys_in_error_messages_are_not_kept(capture: Capture) -> None:
    said = "401 for sk-abcdef123456: Authorization: Bearer xyz.123, api_key='k9', https://me:pw@host/"
    with pytest.raises(RuntimeError), capture.run():
        raise RuntimeError(said)
    error = roots(folder(capture))[0].error or ""
    assert error.startswith("RuntimeError: 401 for ***")
    assert not any(secret in error for secret in ("abcdef", "xyz", "k9", "pw"))


def test_a_score_may_come_later_and_from_another_process(capture: Capture) -> None:
    with capture.run() as run:
        pass
    capture.score(run.trace_id, "quality", 0.5)
    run.score("quality", math.nan)
    Capture(folder(capture)).score("elsewhere", "quality", 1)
    found = [(score.trace, score.value) for score in scores(folder(capture))]
    assert found == [(run.trace_id, 0.5), (run.trace_id, None)]


def test_values_without_a_json_form_are_left_out_and_counted(capture: Capture) -> None:
    with capture.run({"word": "w", "stream": object(), "half": "\ud83d"}) as run:
        run.output(object())
        run.call("write", [{"role": "user", "content": "half \ud83d"}], "half \ud83d")
    root, call = spans(folder(capture))
    assert root.inputs == {"word": "w"}
    assert root.outputs is None
    assert call.call is not None
    assert call.call.completion == "half ?"
    assert call.call.messages[0]["content"] == "half ?"
    assert capture.counts["no_json_form"] == 3


def test_errors_of_capturing_are_counted_and_logged_and_the_program_goes_on(
    capture: Capture, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret of the user")

    monkeypatch.setattr("pipeline.capture.runs.asked", broken)
    with caplog.at_level(logging.WARNING), capture.run() as run:
        for _ in range(12):
            run.call("write", ASK, "ok")
    assert capture.counts["errors"] == 12
    assert [record.getMessage().count("errors") for record in caplog.records] == [1, 1]  # the 1st and the 10th
    assert "secret" not in caplog.text
    assert len(roots(folder(capture))) == 1


def test_modules_are_those_of_the_thread_or_task(capture: Capture) -> None:
    async def one(run: Any, name: str) -> None:
        with run.module(name):
            await asyncio.sleep(0)
            run.call(None, ASK, name)

    async def both() -> None:
        async with capture.run() as run:
            await asyncio.gather(one(run, "a"), one(run, "b"))
            with capture.module("c", invocation_index=4):
                run.call(None, ASK, "c")
            run.call(None, ASK, "none")

    asyncio.run(both())
    found = {span.call.completion: (span.module, span.invocation_index) for span in calls(folder(capture)) if span.call}
    assert found == {"a": ("a", None), "b": ("b", None), "c": ("c", 4), "none": (None, None)}
    with capture.module("outside"):
        pass


def test_calls_of_one_thread_follow_each_other_and_those_of_several_overlap(capture: Capture) -> None:
    with capture.run() as run:
        for text in "ab":
            run.call("line", ASK, text)
        both = threading.Barrier(2)

        def fan(text: str) -> None:
            both.wait()
            run.call("fan", ASK, text)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(fan, "cd"))
        begun = now()
        run.call("timed", ASK, "e", started=begun)
    by_name = {span.call.completion: span for span in calls(folder(capture)) if span.call}
    assert (by_name["a"].end or 0) <= (by_name["b"].start or 0)
    assert by_name["c"].start < (by_name["d"].end or 0)  # type: ignore[operator]
    assert by_name["d"].start < (by_name["c"].end or 0)  # type: ignore[operator]
    assert by_name["e"].start == begun


def test_eight_threads_lose_and_mix_nothing(capture: Capture) -> None:
    def work(worker: int) -> None:
        for turn in range(25):
            with capture.run({"worker": worker, "turn": turn}) as run:
                with capture.module(f"m{worker}"):
                    run.call(None, [{"role": "user", "content": f"{worker} {turn}"}], f"{worker} {turn}")
                run.score("s", turn)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = items(folder(capture))
    by_trace: dict[str, list[Span]] = {}
    for item in found:
        if isinstance(item, Span):
            by_trace.setdefault(item.trace, []).append(item)
    assert len(by_trace) == 200
    assert sum(isinstance(item, Score) for item in found) == 200
    for records in by_trace.values():
        tree = grow(records)
        assert isinstance(tree, Tree)
        assert tree.root is not None
        told = f"{tree.root.inputs['worker']} {tree.root.inputs['turn']}"
        assert [span.call.completion for span in tree.calls() if span.call] == [told]
        assert tree.calls()[0].module == f"m{tree.root.inputs['worker']}"
    assert capture.counts.keys() == {"calls", "files", "rows", "runs"}


def test_a_step_that_is_open_when_its_run_ends_has_failed_and_later_ones_are_counted(capture: Capture) -> None:
    with capture.run() as run:
        row = run.begin_call(run._place(), ASK, {})
    run.end_call(row, None)
    run.call("late", ASK, "x")
    (call,) = calls(folder(capture))
    assert call.error == "not finished when the run ended"
    assert capture.counts["late"] == 3  # an end; and a call's beginning and end


def test_a_generator_that_ends_elsewhere_harms_nobody(capture: Capture) -> None:
    def streaming() -> Any:
        with capture.run({"word": "w"}):
            yield 1
            yield 2

    import contextvars

    stream = streaming()
    contextvars.copy_context().run(next, stream)
    stream.close()
    assert (roots(folder(capture))[0].error or "").startswith("GeneratorExit")


def test_a_policy_may_be_that_of_one_model_only(tmp_path: Path) -> None:
    with Capture(tmp_path, policy={"mine": "abc"}) as capture, capture.run() as run:
        run.call("a", ASK, "x", model="mine")
        run.call("b", ASK, "x", model="judge")
        run.call("c", ASK, "x", model="judge", policy="def")
    assert [span.policy for span in calls(tmp_path)] == ["abc", None, "def"]


def test_raw_logprobs_of_a_narrowed_distribution_have_no_kind(tmp_path: Path) -> None:
    with Capture(tmp_path, logprob_kind="raw") as capture, capture.run() as run:
        for settings in ({}, {"presence_penalty": 0.5}, {"logprob_kind": "processed", "presence_penalty": 0.5}):
            run.call("a", ASK, "x", completion_ids=[1], logprobs=[-1.0], **settings)
    assert [span.call.logprob_kind for span in calls(tmp_path) if span.call] == ["raw", None, "processed"]


def test_wrong_settings_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="local folder"):
        Capture("s3://bucket/traces")
    with pytest.raises(RecipeError, match="'processed' or 'raw'"):
        Capture(tmp_path, logprob_kind="cooked")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="'processed' or 'raw'"):
        otel_attributes("m", logprob_kind="cooked")


def test_rows_of_a_later_version_are_refused_and_say_so() -> None:
    (found,) = mmgrpo_capture.read({"mmgrpo_capture": 9, "record": "span", "trace": "t"}, "f")
    assert isinstance(found, Refused)
    assert found.reason == "unknown_version"
    assert found.trace == "t"


def test_a_broken_row_loses_no_neighbour(tmp_path: Path) -> None:
    good = '{"mmgrpo_capture": 1, "record": "span", "trace": "t", "span": "s", "name": "n", "kind": "chain"}'
    bad = '{"mmgrpo_capture": 1, "record": "span", "trace": "t", "span": "x", "name": "n", "inputs": "{"}'
    (tmp_path / "rows.jsonl").write_text(f"{bad}\n{good}\n")
    first, second = read_items(str(tmp_path / "rows.jsonl"), mmgrpo_capture)
    assert isinstance(first, Refused)
    assert isinstance(second, Span)


def test_otel_attributes_are_read_by_ingest() -> None:
    answer = {
        "prompt_token_ids": [1, 2],
        "choices": [{"token_ids": [3], "logprobs": {"content": [{"token": "a", "logprob": -0.5}]}, "message": {}}],
    }
    ours = otel_attributes("write", invocation_index=0, attempt=1, policy="abc", response=answer, logprob_kind="raw")
    assert otel_attributes("write") == {"mmgrpo.module": "write"}

    def typed(value: Any) -> dict[str, Any]:
        if isinstance(value, list):
            return {"arrayValue": {"values": [typed(item) for item in value]}}
        return {{str: "stringValue", int: "intValue", float: "doubleValue"}[type(value)]: value}

    said = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": '[{"role": "user", "content": "hi"}]'} | ours
    attributes = [{"key": key, "value": typed(value)} for key, value in said.items()]
    span = {"traceId": "1" * 32, "spanId": "2" * 16, "name": "chat", "attributes": attributes}
    (found,) = otlp_json.read({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}, "f")
    assert isinstance(found, Span)
    assert (found.module, found.invocation_index, found.attempt, found.policy) == ("write", 0, 1, "abc")
    assert found.call is not None
    assert found.call.prompt_ids == (1, 2)
    assert found.call.completion_ids == (3,)
    assert found.call.logprobs == (-0.5,)
    assert found.call.logprob_kind == "raw"
