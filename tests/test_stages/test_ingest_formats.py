"""Which format a file is in, and how much of what the sample files hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stages.ingest.formats import BUILT_IN, formats
from stages.ingest.normal import Refused
from stages.ingest.read import read_values
from stages.ingest.shape import Value
from tests.test_stages.ingest_kit import TRACES, counts, parquet, read_file, read_value, sample_files
from tests.test_stages.ingest_values import VALUES

COUNTS: dict[str, tuple[str, dict[str, int]]] = {
    "atif/continued.jsonl": ("atif", {"traces": 1, "spans": 2, "calls": 1, "completions": 1}),
    "atif/embedded.json": (
        "atif",
        {"traces": 1, "spans": 5, "calls": 3, "completions": 3, "tool_calls": 1, "with_ids": 1},
    ),
    "atif/parent_and_child.json": (
        "atif",
        {"traces": 1, "spans": 5, "calls": 3, "completions": 3, "tool_calls": 1, "with_ids": 1},
    ),
    "dspy_history/dspy_lm_history_0_8.json": (
        "dspy_history",
        {"traces": 8, "spans": 8, "calls": 8, "completions": 8},
    ),
    "inspect_ai/log_read_sample.json": (
        "inspect_ai",
        {"traces": 1, "spans": 8, "calls": 1, "completions": 1, "scores": 1},
    ),
    "inspect_ai/log_tool_call_error.json": ("inspect_ai", {"traces": 1, "spans": 1}),
    "langfuse/google-adk-2025-08-28.trace.json": (
        "langfuse",
        {"traces": 1, "spans": 6, "calls": 2, "completions": 1, "tool_calls": 1, "scores": 2},
    ),
    "langfuse/langgraph-python-2025-08-22.trace.json": (
        "langfuse",
        {"traces": 1, "spans": 10, "calls": 2, "completions": 1, "tool_calls": 1, "scores": 2},
    ),
    "langfuse/microsoft-agent-2025-12-17.trace.json": (
        "langfuse",
        {"traces": 1, "spans": 5, "calls": 2, "completions": 1, "tool_calls": 1, "scores": 3},
    ),
    "langfuse/langchain-sdk-2-batch.json": ("langfuse", {"traces": 1, "spans": 20, "calls": 4, "completions": 2}),
    "langfuse/openai-agents-2025-09-30.trace.json": (
        "langfuse",
        {"traces": 1, "spans": 6, "calls": 2, "completions": 1, "tool_calls": 1, "scores": 2},
    ),
    "langfuse_sdk/langgraph_5.jsonl": (
        "otel_spans",
        {"traces": 1, "spans": 11, "calls": 3, "completions": 2, "tool_calls": 1},
    ),
    "langsmith/langsmith_js_wrap_openai_default.json": (
        "langsmith",
        {"traces": 1, "spans": 1, "calls": 1, "completions": 1},
    ),
    "langsmith/langsmith_py_wrap_openai_.json": (
        "langsmith",
        {"traces": 1, "spans": 1, "calls": 1, "completions": 1},
    ),
    "langsmith/langsmith_py_wrap_openai_stream.json": (
        "langsmith",
        {"traces": 1, "spans": 1, "calls": 1, "completions": 1},
    ),
    "logfire/agents_chat_3.jsonl": ("otel_spans", {"traces": 1, "spans": 5, "calls": 2, "completions": 2}),
    "logfire/agents_responses_5.jsonl": ("otel_spans", {"traces": 1, "spans": 9, "calls": 2, "completions": 2}),
    "logfire/clients_3.jsonl": ("otel_spans", {"traces": 6, "spans": 15, "calls": 9, "completions": 7}),
    "logfire/stream_5.jsonl": ("otel_spans", {"traces": 1, "spans": 3, "calls": 2, "completions": 1}),
    "mlflow/dspy_multihop_0.json": ("mlflow", {"traces": 1, "spans": 21, "calls": 4, "completions": 4, "scores": 1}),
    "mlflow/dspy_multihop_2.json": ("mlflow", {"traces": 1, "spans": 6, "calls": 1, "completions": 1, "errors": 4}),
    "nemo_gym_rollouts/competitive_coding_rollouts_0.jsonl": (
        "nemo_gym",
        {"traces": 1, "spans": 2, "calls": 1, "completions": 1, "with_ids": 1, "scores": 1},
    ),
    "nemo_gym_rollouts/hermes_math_rollouts.jsonl": (
        "nemo_gym",
        {"traces": 5, "spans": 13, "calls": 8, "completions": 7, "tool_calls": 3, "scores": 5},
    ),
    "nemo_gym_rollouts/tool_call_multireward_rollouts.jsonl": (
        "nemo_gym",
        {"traces": 5, "spans": 15, "calls": 10, "completions": 5, "tool_calls": 5, "scores": 20},
    ),
    "openai_chat/conversations_0_40.jsonl": (
        "openai_chat",
        {"traces": 40, "spans": 40, "calls": 40, "completions": 40},
    ),
    "openinference/dspy_litellm_openai_layers.jsonl": (
        "otel_spans",
        {"traces": 1, "spans": 14, "calls": 6, "completions": 6},
    ),
    "openinference/dspy_multihop_sdk_console_1.jsonl": (
        "otel_spans",
        {"traces": 1, "spans": 19, "calls": 4, "completions": 4},
    ),
    "openinference/openinference_live_spans.json": (
        "otel_spans",
        {"traces": 1, "spans": 6, "calls": 2, "completions": 2, "tool_calls": 2},
    ),
    "otel_genai_flat/claude_live_spans.json": ("otel_spans", {"traces": 1, "spans": 10}),
    "otel_genai_flat/openai_agents_genai_live_spans.json": (
        "otel_spans",
        {"traces": 1, "spans": 17, "calls": 8, "completions": 3, "tool_calls": 5},
    ),
    "otel_genai_flat/openai_v2_without_content.jsonl": ("otel_spans", {"traces": 1, "spans": 5, "calls": 1}),
    "otel_genai_flat/otel_genai_convention_spans.json": (
        "otel_spans",
        {"traces": 1, "spans": 5, "calls": 2, "completions": 2, "tool_calls": 1, "errors": 1},
    ),
    "otel_genai_flat/pydantic_ai_live_spans.json": (
        "otel_spans",
        {"traces": 1, "spans": 4, "calls": 2, "completions": 1, "tool_calls": 1},
    ),
    "otel_genai_flat/strands_events.jsonl": (
        "otel_spans",
        {"traces": 1, "spans": 6, "calls": 3, "completions": 1, "tool_calls": 2},
    ),
    "otlp_json/dspy_multihop_openinference.scores.jsonl": ("scores", {"scores": 8}),
    "otlp_json/dspy_multihop_openinference_1.otlp.json": (
        "otlp_json",
        {"traces": 1, "spans": 19, "calls": 4, "completions": 4},
    ),
    "otlp_json/plain_trace_no_genai.json": ("otlp_json", {"traces": 1, "spans": 1}),
    "otlp_json/two_agents_genai.otlp.json": (
        "otlp_json",
        {"traces": 8, "spans": 38, "calls": 15, "completions": 14, "errors": 3, "scores": 7},
    ),
    "otlp_json/zero_ids_no_genai.json": ("otlp_json", {"refused": 1}),
    "swe_agent/local.traj.json": ("swe_agent", {"traces": 1, "spans": 3, "calls": 2, "completions": 2}),
    "swe_agent/marshmallow-1867_steps_0_4.traj": (
        "swe_agent",
        {"traces": 1, "spans": 5, "calls": 4, "completions": 4},
    ),
    "tau_bench/gpt-4o-airline_rows_0_2.json": (
        "tau_bench",
        {"traces": 2, "spans": 22, "calls": 20, "completions": 12, "tool_calls": 8, "scores": 2},
    ),
    "vercel_ai_sdk/all-spans.json": ("otel_spans", {"traces": 10, "spans": 10, "calls": 4, "completions": 4}),
}


def test_every_sample_has_its_counts_and_every_count_its_sample() -> None:
    assert sorted(COUNTS) == [str(path.relative_to(TRACES)) for path in sample_files()]


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_a_sample_is_recognised_and_holds_what_its_notes_say(name: str) -> None:
    found = read_file(TRACES / name)
    assert (found.format, counts(found)) == COUNTS[name]


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_a_sample_looks_like_one_format_alone(name: str) -> None:
    for value in read_values(str(TRACES / name)):
        assert isinstance(value, Value)
        found = [known for known, module in formats().items() if module.recognises(value.value, value.shape)]
        assert found == [COUNTS[name][0]] or (COUNTS[name][0] == "swe_agent" and "role" in value.value)


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_value_of_each_layout_looks_like_one_format_alone(name: str) -> None:
    for shape in ("lines", "object", "rows"):
        found = [known for known, module in formats().items() if module.recognises(VALUES[name][1], shape)]  # type: ignore[arg-type]
        assert found == [VALUES[name][0]]


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_value_of_each_layout_is_read_without_refusal(name: str, tmp_path: Path) -> None:
    found = read_value(VALUES[name][1], tmp_path)
    assert (found.format, found.refused) == (VALUES[name][0], [])
    assert found.spans or found.scores


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_the_name_of_a_file_says_nothing(name: str, tmp_path: Path) -> None:
    other = tmp_path / "data.bin"
    other.write_bytes((TRACES / name).read_bytes())
    assert counts(read_file(other)) == COUNTS[name][1]


def test_every_built_in_format_has_its_name_and_its_sample() -> None:
    shown = {format_name for format_name, _ in COUNTS.values()} | {name for name, _ in VALUES.values()}
    assert [formats()[name].NAME for name in BUILT_IN] == list(BUILT_IN)
    assert shown | {"mmgrpo_tables"} == set(BUILT_IN)  # whose samples are files of Parquet: test_ingest_tables


def test_tables_of_our_own_are_taken_for_no_log(tmp_path: Path) -> None:
    rollout = {"example_id": "e", "rollout_index": 0, "rollout_id": "r", "reward": 1.0, "status": "ok", "output": "{}"}
    call = {"rollout_id": "r", "call_index": 0, "module": "m", "messages": "[]", "completion": "c", "inputs": "{}"}
    for place, row in enumerate((rollout, call)):
        found = read_file(parquet(tmp_path / f"{place}.parquet", [row]))
        assert [item.reason for item in found.refused] == ["unknown_format"]


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"hello": 1},
        {"messages": "x"},
        {"spans": []},
        {"data": {}},
        {"prompt": "p", "chosen": "a", "rejected": "b"},
        {"text": "once upon a time"},
        {"resourceMetrics": []},
        {"observations": [{}]},
        1,
        "text",
        None,
    ],
)
def test_what_is_no_log_is_refused_by_what_it_looks_like(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    path.write_text(json.dumps(value))
    found = read_file(path)
    assert found.format is None
    assert found.refused[0].reason in ("unknown_format", "empty")
    assert isinstance(found.refused[0], Refused)
