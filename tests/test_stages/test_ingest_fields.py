"""What the readers of trace formats keep, and that they make nothing up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stages.ingest.tree import Tree, grow
from tests.test_stages.ingest_kit import TRACES, Held, parquet, read_file, read_value
from tests.test_stages.ingest_values import CHAT, COMPLETION, MLFLOW_2, RUN, SAID, SAMPLE, VALUES


def _of(name: str, tmp_path: Path) -> Held:
    return read_value(VALUES[name][1], tmp_path)


# MLflow


def test_mlflow_keeps_signatures_ids_from_base64_and_what_was_expected() -> None:
    found = read_file(TRACES / "mlflow/dspy_multihop_0.json")
    assert found.root.trace == "tr-5ddbadf45ec850028be10021889f0933"
    assert found.root.span == "29831ee29a1ab14e"
    assert found.root.inputs == {"question": "If Gallu is a demon Lilu is what?"}
    assert found.root.metadata["expected.gold_titles"] == ["Alû", "Lilu (mythology)"]
    assert {span.signature for span in found.spans} == {
        None,
        "question, notes -> reasoning, query",
        "question, notes, passages -> new_notes",
    }
    call = found.calls[0]
    assert (call.model, call.temperature, call.max_new_tokens) == ("openai/stub-qwen3-0.6b", 0.7, 256)
    assert [said["role"] for said in call.messages] == ["system", "user"]
    assert call.completion is not None
    assert call.completion.startswith("[[ ## reasoning ## ]]")
    assert (found.score("recall").value, found.score("recall").span) == (1.0, None)


def test_mlflow_errors_of_a_parser_leave_the_call_with_its_completion() -> None:
    found = read_file(TRACES / "mlflow/dspy_multihop_2.json")
    assert found.root.error is not None
    assert found.root.error.startswith("Adapter ChatAdapter failed to parse")
    (span,) = [span for span in found.spans if span.call]
    assert (span.error, bool(span.call and span.call.completion)) == (None, True)
    assert found.scores == []


def test_mlflow_reads_schema_2(tmp_path: Path) -> None:
    found = read_value(MLFLOW_2, tmp_path)
    assert (found.root.trace, found.root.error, found.root.metadata) == ("r1", "boom", {"team": "red"})
    assert (found.root.start, found.root.end) == (1700000000000000000, 1700000001000000000)
    assert (found.call.completion, found.call.temperature) == ("4", 0.5)


def test_mlflow_rows_of_a_search_have_their_assessments(tmp_path: Path) -> None:
    found = _of("mlflow: a row", tmp_path)
    assert (found.root.trace, found.root.user, found.root.metadata) == ("tr-1", "ada", {"session": "s"})
    assert (found.score("ok").value, found.score("ok").source) == (1.0, "LLM_JUDGE")


# Langfuse


def test_langfuse_traces_are_the_root_above_their_observations() -> None:
    found = read_file(TRACES / "langfuse/langgraph-python-2025-08-22.trace.json")
    assert found.root.span == found.root.trace == "e1fde3efec57ce8a69bafd3fb928a7eb"
    assert [span.name for span in found.spans if span.parent == found.root.span] == ["LangGraph"]
    assert {score.name: score.value for score in found.scores} == {"hallucination": 0.1, "toxicity": 0.0}


def test_langfuse_tools_among_the_messages_are_tools_and_no_message() -> None:
    found = read_file(TRACES / "langfuse/langgraph-python-2025-08-22.trace.json")
    first, second = found.calls
    assert [said["role"] for said in first.messages] == ["user", "user"]
    assert [said["role"] for said in second.messages] == ["user", "user", "assistant", "tool"]
    assert (first.tools, first.temperature, first.model) == (True, 0.0, "gpt-4o-2024-08-06")
    assert first.tool_calls[0]["function"]["name"] == "Web-Search"
    assert {span.agent for span in found.spans if span.call} == {"agent"}


def test_langfuse_responses_bring_instructions_that_the_input_lacks() -> None:
    found = read_file(TRACES / "langfuse/openai-agents-2025-09-30.trace.json")
    last, first = found.calls
    assert first.messages[0] == {"role": "system", "content": "You are a helpful agent."}
    assert [said["role"] for said in last.messages] == ["system", "user", "assistant", "tool"]
    assert (first.tools, first.completion, len(first.tool_calls)) == (True, "", 1)
    assert found.root.inputs is None


def test_langfuse_reads_geminis_contents() -> None:
    found = read_file(TRACES / "langfuse/google-adk-2025-08-28.trace.json")
    call = found.calls[0]
    assert [said["role"] for said in call.messages] == ["system", "user", "assistant", "tool"]
    assert (call.completion, call.finish_reason, call.tools) == ("Hello Langfuse 👋!\n", "STOP", True)
    assert found.root.user == "demo-user"


def test_langfuse_rows_of_exports_are_parts_of_the_same_trace(tmp_path: Path) -> None:
    row = _of("langfuse: an exported observation", tmp_path)
    (span,) = row.spans
    assert (span.trace, span.parent, span.error) == ("t1", "t1", "cut")
    assert (row.call.model, row.call.temperature, row.call.completion) == ("m-1", 0.5, "4")
    assert _of("langfuse: a trace's row", tmp_path).root.span == "t1"
    assert _of("langfuse: a score", tmp_path).score("quality").source == "ANNOTATION"
    again = read_file(parquet(tmp_path / "rows.parquet", [VALUES["langfuse: an exported observation"][1]]))
    assert [call.completion for call in again.calls] == ["4"]


# LangSmith


@pytest.mark.parametrize("name", ["js_wrap_openai_default", "py_wrap_openai_", "py_wrap_openai_stream"])
def test_langsmith_posts_and_patches_are_one_run(name: str) -> None:
    found = read_file(TRACES / f"langsmith/langsmith_{name}.json")
    call = found.call
    assert (call.completion, call.finish_reason) == ("Howdy! How can I assist you today?", "stop")
    assert (call.messages, call.model) == (({"role": "user", "content": "howdy"},), "gpt-4o-mini-2024-07-18")
    assert found.root.span == found.root.trace
    assert found.root.start is not None
    assert found.root.end is not None
    assert 0 < found.root.end - found.root.start < 3 * 10**9


def test_langsmith_feedback_of_the_root_is_of_the_trace(tmp_path: Path) -> None:
    found = read_value(RUN, tmp_path)
    assert [(score.name, score.value, score.span) for score in found.scores] == [("helpful", 0.75, None)]
    below = {**RUN, "id": "2" * 32, "parent_run_id": RUN["id"]}
    assert [score.span for score in read_value(below, tmp_path).scores] == ["2" * 32]


def test_langsmith_posts_alone_have_the_prompt_and_patches_alone_the_answer(tmp_path: Path) -> None:
    post = {name: RUN[name] for name in ("id", "trace_id", "run_type", "inputs", "start_time")}
    patch = {name: RUN[name] for name in ("id", "trace_id", "outputs", "end_time", "run_type")}
    first, second = read_value({"post": [post]}, tmp_path), read_value({"patch": [patch]}, tmp_path)
    assert first.spans[0].span == second.spans[0].span
    assert (first.call.completion, len(first.call.messages)) == (None, 2)
    assert (second.call.completion, second.call.messages) == ("4", ())


def test_langsmith_takes_the_tree_from_dotted_order(tmp_path: Path) -> None:
    top, below = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
    run = {
        "run_type": "tool",
        "inputs": {"x": 1},
        "dotted_order": f"20260102T030405000000Z{top}.20260102T030406Z{below}",
    }
    (span,) = read_value(run, tmp_path).spans
    assert (span.trace, span.span, span.parent) == (top, below, top)


def test_langsmith_reads_rows_of_parquet_with_json_in_texts(tmp_path: Path) -> None:
    import json
    from datetime import UTC, datetime

    row = {
        **{name: RUN[name] for name in ("id", "trace_id", "name", "run_type")},
        "start_time": datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC),
        "inputs": json.dumps(RUN["inputs"]),
        "outputs": json.dumps(
            {"generations": [[{"text": "4", "message": {"kwargs": {"type": "ai", "content": "4"}}}]]}
        ),
        "extra": json.dumps({"invocation_params": {"temperature": 0.25, "tools": [{}], "model": "m-2"}}),
        "feedback_stats": json.dumps({"ok": {"n": 1, "avg": 1}}),
    }
    found = read_file(parquet(tmp_path / "runs.parquet", [row]))
    assert found.root.start == 1767323045123456000
    assert (found.call.completion, found.call.temperature, found.call.tools) == ("4", 0.5, True)
    assert found.score("ok").value == 1.0


# trajectories


def test_atif_sub_agents_stand_below_the_step_that_called_them() -> None:
    for name, above, ids in (("embedded", "harbour-7-main/3", 3), ("parent_and_child", "3", 3)):
        found = read_file(TRACES / f"atif/{name}.json")
        (child,) = [span for span in found.spans if span.kind == "agent" and span.parent]
        assert (child.parent, child.agent) == (above, "counter")
        assert len([span for span in found.spans if span.call]) == ids
        assert found.root.agent == "harbourmaster"


def test_atif_keeps_tokens_where_they_are_and_takes_empty_lists_for_none() -> None:
    found = read_file(TRACES / "atif/embedded.json")
    first, last, child = found.calls
    assert (first.reasoning, first.completion_ids, len(first.tool_calls)) == ("Both are needed.", None, 2)
    assert (last.prompt_ids, last.completion_ids, last.logprobs, last.model) == (None, None, None, "qwen3-14b")
    assert (child.prompt_ids, child.completion_ids) == ((11, 12, 13), (21, 22, 23, 24, 2))
    assert child.logprobs == (-0.5, -0.25, -0.125, -1.0, -0.01)


def test_atif_steps_that_called_no_model_are_in_the_prompt_only() -> None:
    found = read_file(TRACES / "atif/embedded.json")
    assert [said["role"] for said in found.calls[1].messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert [said["content"] for said in read_file(TRACES / "atif/continued.jsonl").call.messages][1] == "Berth 4."


def test_nemo_gym_keeps_ids_and_logprobs_of_each_answer() -> None:
    call = read_file(TRACES / "nemo_gym_rollouts/competitive_coding_rollouts_0.jsonl").call
    assert (len(call.prompt_ids or ()), len(call.completion_ids or ()), len(call.logprobs or ())) == (109, 785, 785)
    assert call.logprob_kind is None
    hermes = read_file(TRACES / "nemo_gym_rollouts/hermes_math_rollouts.jsonl")
    assert {(call.prompt_ids, call.completion_ids, call.logprobs) for call in hermes.calls} == {(None, None, None)}


def test_nemo_gym_answers_after_a_tool_have_it_in_their_prompt() -> None:
    found = read_file(TRACES / "nemo_gym_rollouts/tool_call_multireward_rollouts.jsonl")
    first, second = found.calls[:2]
    assert [said["role"] for said in first.messages] == ["system", "user"]
    assert [said["role"] for said in second.messages] == ["system", "user", "assistant", "tool"]
    assert (first.completion, first.tools, first.temperature, first.top_p) == ("", True, 1.0, 0.95)
    scores = {score.name: score.value for score in found.scores[:4]}
    assert scores == {"reward": 2.0, "reward.correctness": 1.0, "reward.schema_valid": 1.0, "reward.format": 0.0}
    assert [span.example for span in found.spans if span.parent is None] == ["1", "0", "4", "2", "3"]


def test_inspect_ai_puts_attachments_back_and_grades_letters(tmp_path: Path) -> None:
    found = read_file(TRACES / "inspect_ai/log_read_sample.json")
    assert found.call.messages[1]["content"].startswith("Is the following statement something you would say?")
    assert (found.score("match").value, found.root.trace) == (1.0, "8rN5WC55fErMswTifp3eVJ")
    sample = read_value(SAMPLE, tmp_path)
    assert {score.name: score.value for score in sample.scores} == {
        "match": 0.5,
        "parts.form": 1.0,
        "parts.sum": 0.0,
        "none": None,
    }
    assert (sample.root.error, sample.root.metadata["limit"], sample.root.example) == ("out of time", "time", "q1")
    assert (sample.call.completion, sample.call.model) == ("4", "m-1")


def test_inspect_ai_calls_say_whether_a_cache_answered_and_take_messages_from_the_pool(tmp_path: Path) -> None:
    event = {
        "event": "model",
        "uuid": "e1",
        "span_id": "agent-1",
        "timestamp": "2026-01-02T03:04:05Z",
        "model": "m-1",
        "input": [],
        "input_refs": [[0, 1], [2, 3]],
        "tools": [{"name": "t"}],
        "config": {"temperature": 0.5, "max_tokens": 7, "seed": 3},
        "output": {
            "choices": [
                {
                    "message": SAID,
                    "stop_reason": "max_tokens",
                    "logprobs": {"content": [{"token": "4", "logprob": -0.5, "bytes": None}]},
                }
            ]
        },
        "cache": "read",
    }
    begin = {
        "event": "span_begin",
        "id": "agent-1",
        "type": "agent",
        "name": "solver",
        "timestamp": "2026-01-02T03:04:05Z",
    }
    pool = {"messages": [CHAT[0], {"role": "user", "content": "no"}, CHAT[1]]}
    found = read_value({**SAMPLE, "events": [begin, event], "events_data": pool}, tmp_path)
    call = found.call
    assert ([said["content"] for said in call.messages], call.cached) == (["Be brief.", "2+2?"], True)
    assert (call.temperature, call.max_new_tokens, call.seed, call.finish_reason) == (0.5, 7, 3, "max_tokens")
    assert (call.logprobs, call.completion_ids, call.tools) == ((-0.5,), None, True)
    assert [span.agent for span in found.spans] == [None, "solver", None]


def test_swe_agent_names_agents_and_says_whence_its_prompts_are(tmp_path: Path) -> None:
    found = read_file(TRACES / "swe_agent/marshmallow-1867_steps_0_4.traj")
    assert {span.agent for span in found.spans if span.call} == {"primary"}
    assert {span.metadata.get("prompt") for span in found.spans if span.call} == {"history"}
    assert found.root.outputs.startswith("\ndiff --git")
    queried = _of("swe_agent: with queries", tmp_path)
    assert [span.metadata for span in queried.spans if span.call] == [{}]
    mini = _of("swe_agent: mini", tmp_path)
    assert (mini.root.error, mini.root.example) == ("LimitsExceeded", "i")


def test_swe_agent_demonstrations_are_no_calls(tmp_path: Path) -> None:
    shown = [{**CHAT[1], "is_demo": True}, {**SAID, "is_demo": True}]
    found = read_value({"trajectory": [], "history": [*shown, *CHAT, SAID], "info": {}}, tmp_path)
    assert len(found.calls) == 1
    assert len(found.call.messages) == 4


# lines and entries


def test_dspy_history_entries_are_traces_of_their_own(tmp_path: Path) -> None:
    found = read_file(TRACES / "dspy_history/dspy_lm_history_0_8.json")
    assert len({span.trace for span in found.spans}) == 8
    assert {call.cached for call in found.calls} == {False}
    entry = _of("dspy_history: a text completion", tmp_path)
    assert (entry.call.choices, entry.call.completion, entry.call.cached) == (2, "4", True)
    assert (entry.call.messages, entry.call.temperature) == (({"role": "user", "content": "2+2?"},), 0.5)


def test_dspy_history_outputs_may_be_objects(tmp_path: Path) -> None:
    entry: dict[str, Any] = {**VALUES["dspy_history: a text completion"][1], "messages": CHAT, "prompt": None}
    entry["outputs"] = [
        {"text": None, "reasoning_content": "hm", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
    ]
    call = read_value(entry, tmp_path).call
    assert (call.completion, call.reasoning, len(call.tool_calls), call.choices) == ("", "hm", 1, 1)


def test_openai_chats_end_with_the_completion(tmp_path: Path) -> None:
    found = _of("openai_chat: with id and score", tmp_path)
    assert (found.root.trace, found.call.completion, found.score("score").value) == ("c1", "4", 0.5)
    assert len(found.call.messages) == 2
    turns = [*CHAT, SAID, {"role": "user", "content": "sure?"}, {"role": "assistant", "content": "yes"}]
    longer = read_value({"messages": turns, "scores": {"a": 1, "b": "no"}}, tmp_path)
    assert (longer.call.completion, len(longer.call.messages)) == ("yes", 4)
    assert {score.name: score.value for score in longer.scores} == {"a": 1.0, "b": 0.0}


def test_openai_chats_keep_ids_that_servers_give(tmp_path: Path) -> None:
    choice = {"message": SAID, "finish_reason": "length", "token_ids": [5, 2], "logprobs": None}
    vllm = read_value({"messages": CHAT, "choices": [choice], "prompt_token_ids": [1, 2, 3]}, tmp_path).call
    assert (vllm.prompt_ids, vllm.completion_ids, vllm.finish_reason) == ((1, 2, 3), (5, 2), "length")
    spelt = {"content": [{"token": "token_id:5", "logprob": -1.5}, {"token": "token_id:2", "logprob": -0.5}]}
    marked = read_value({"messages": CHAT, "choices": [{"message": SAID, "logprobs": spelt}]}, tmp_path).call
    assert (marked.completion_ids, marked.logprobs) == ((5, 2), (-1.5, -0.5))
    none = read_value(
        {"messages": CHAT, "choices": [{"message": SAID, "token_ids": [], "logprobs": {"content": []}}]}, tmp_path
    )
    assert (none.call.completion_ids, none.call.logprobs) == (None, None)


def test_batches_are_the_same_span_in_both_files(tmp_path: Path) -> None:
    asked, said = _of("openai_batch: a request", tmp_path), _of("openai_batch: a response", tmp_path)
    assert (asked.root.trace, asked.root.span) == (said.root.trace, said.root.span) == ("b1", "call")
    assert (asked.call.completion, said.call.completion, said.call.messages) == (None, "4", ())
    assert _of("openai_batch: a failure", tmp_path).root.error == "too late"


def test_a_request_and_its_response_in_two_files_are_one_call(tmp_path: Path) -> None:
    post = {name: RUN[name] for name in ("id", "trace_id", "run_type", "inputs", "start_time")}
    patch = {name: RUN[name] for name in ("id", "trace_id", "outputs", "end_time", "run_type")}
    halves = [
        [_of(f"openai_batch: a {half}", tmp_path).spans[0] for half in ("request", "response")],
        [read_value({"post": [post]}, tmp_path).spans[0], read_value({"patch": [patch]}, tmp_path).spans[0]],
    ]
    for first, second in halves:
        for order in ([first, second], [second, first]):
            tree = grow(order)
            assert isinstance(tree, Tree)
            (span,) = tree.calls()
            assert span.call is not None
            assert (len(span.call.messages), span.call.completion, span.call.finish_reason) == (2, "4", "stop")


def test_several_choices_are_counted_and_the_first_is_kept(tmp_path: Path) -> None:
    many = {**COMPLETION, "choices": [*COMPLETION["choices"], {"message": {**SAID, "content": "5"}}]}  # type: ignore[misc]
    call = read_value({"request": {"messages": CHAT}, "response": many}, tmp_path).call
    assert (call.completion, call.choices) == ("4", 2)


def test_scores_may_be_null_words_or_of_a_span(tmp_path: Path) -> None:
    assert _of("scores: a row", tmp_path).score("recall").value is None
    assert _of("scores: of a span", tmp_path).score("reward").span == "s1"
    assert _of("scores: a list of them", tmp_path).score("score").value == 1.0
    rows = [{"trace_id": "a", "name": "n", "value": 0.5}, {"trace_id": None, "name": "n", "value": 1.0}]
    found = read_file(parquet(tmp_path / "scores.parquet", rows))
    assert [score.value for score in found.scores] == [0.5]
    assert [item.reason for item in found.refused] == ["no_trace_id"]


def test_nothing_is_made_up_where_a_log_is_silent(tmp_path: Path) -> None:
    call = read_value({"messages": [*CHAT, SAID]}, tmp_path).call
    silent = (call.model, call.temperature, call.top_p, call.max_new_tokens, call.seed, call.cached, call.finish_reason)
    assert silent == (None,) * 7
    assert (call.prompt_ids, call.completion_ids, call.logprobs, call.logprob_kind) == (None,) * 4
