"""One small value for each layout of a format, with the format that it is in. Most have no sample file."""

from __future__ import annotations

import json
from typing import Any

CHAT: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
SAID = {"role": "assistant", "content": "4"}
COMPLETION = {"object": "chat.completion", "model": "m-1", "choices": [{"message": SAID, "finish_reason": "stop"}]}
HEX, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TIME = "2026-01-02T03:04:05Z"

_LANGFUSE_TRACE = {"id": "t1", "timestamp": TIME, "name": "run", "input": {"q": 1}, "output": "4", "projectId": "p"}
_GENERATION = {
    "id": "o1",
    "traceId": "t1",
    "type": "GENERATION",
    "name": "answer",
    "startTime": TIME,
    "model": "m-1",
    "modelParameters": {"temperature": "0.5", "max_tokens": 16},
    "input": CHAT,
    "output": SAID,
    "level": "DEFAULT",
}
_GENERATION_ROW = {
    "id": "o1",
    "trace_id": "t1",
    "type": "GENERATION",
    "name": "answer",
    "start_time": "2026-01-02 03:04:05.000000",
    "parent_observation_id": "",
    "provided_model_name": "m-1",
    "model_parameters": '{"temperature": 0.5}',
    "input": '[{"role": "user", "content": "2+2?"}]',
    "output": '{"role": "assistant", "content": "4"}',
    "metadata": "{}",
    "level": "ERROR",
    "status_message": "cut",
}
_LANGFUSE_SCORE = {
    "id": "s1",
    "traceId": "t1",
    "observationId": None,
    "name": "quality",
    "value": 0.5,
    "dataType": "NUMERIC",
    "source": "ANNOTATION",
}
RUN = {
    "id": "11111111-1111-4111-8111-111111111111",
    "trace_id": "11111111-1111-4111-8111-111111111111",
    "name": "ChatOpenAI",
    "run_type": "llm",
    "start_time": TIME,
    "end_time": "2026-01-02T03:04:06Z",
    "inputs": {"messages": CHAT, "temperature": 0.5},
    "outputs": COMPLETION,
    "extra": {"metadata": {"ls_model_name": "m-1"}},
    "feedback_stats": {"helpful": {"n": 2, "avg": 0.75}, "unseen": {"n": 0, "avg": None}},
}
MLFLOW_2 = {
    "info": {
        "request_id": "r1",
        "status": "OK",
        "timestamp_ms": 1700000000000,
        "request_metadata": {"mlflow.trace_schema.version": "2"},
        "tags": {"team": "red", "mlflow.traceName": "run"},
    },
    "data": {
        "request": "{}",
        "response": "4",
        "spans": [
            {
                "name": "run",
                "context": {"span_id": SPAN, "trace_id": HEX},
                "parent_id": None,
                "start_time": 1700000000000000000,
                "end_time": 1700000001000000000,
                "status_code": "ERROR",
                "status_message": "boom",
                "attributes": {
                    "mlflow.traceRequestId": '"r1"',
                    "mlflow.spanType": '"CHAT_MODEL"',
                    "mlflow.spanInputs": '{"messages": [{"role": "user", "content": "2+2?"}], "temperature": 0.5}',
                    "mlflow.spanOutputs": '{"choices": [{"message": {"role": "assistant", "content": "4"}}]}',
                },
                "events": [],
            }
        ],
    },
}
_MLFLOW_ROW = {
    "trace_id": "tr-1",
    "state": "OK",
    "execution_duration": 12,
    "trace_metadata": {"mlflow.trace.user": "ada", "mlflow.trace.session": "s"},
    "assessments": [{"assessment_name": "ok", "feedback": {"value": "yes"}, "source": {"source_type": "LLM_JUDGE"}}],
    "spans": MLFLOW_2["data"]["spans"],  # type: ignore[index]
}
SAMPLE = {
    "id": "q1",
    "epoch": 2,
    "input": "2+2?",
    "target": "4",
    "uuid": "u1",
    "messages": [{"role": "user", "content": "2+2?", "source": "input"}, {**SAID, "source": "generate"}],
    "output": {"model": "m-1", "choices": [{"message": SAID, "stop_reason": "stop"}]},
    "scores": {"match": {"value": "P"}, "parts": {"value": {"form": 1, "sum": "I"}}, "none": {"value": None}},
    "limit": {"type": "time", "limit": 5},
    "error": {"message": "out of time"},
}
_PHOENIX_ROW = {
    "name": "answer",
    "span_kind": "LLM",
    "parent_id": None,
    "start_time": TIME,
    "status_code": "OK",
    "context.trace_id": HEX,
    "context.span_id": SPAN,
    "attributes.llm.model_name": "m-1",
    "attributes.llm.input_messages": [{"message.role": "user", "message.content": "2+2?"}],
    "attributes.llm.output_messages": [{"message.role": "assistant", "message.content": "4"}],
    "eval.quality.score": 1.0,
}

VALUES: dict[str, tuple[str, Any]] = {
    "mmgrpo_capture: a call": (
        "mmgrpo_capture",
        {
            "mmgrpo_capture": 1,
            "record": "span",
            "trace": "t1",
            "span": "s1",
            "parent": "s0",
            "name": "chat",
            "kind": "llm",
            "start": 1_800_000_000_000_000_000,
            "end": 1_800_000_000_000_000_001,
            "order": 1,
            "module": "write",
            "policy": "abc",
            "metadata": '{"shop": 3}',
            "messages": '[{"role": "user", "content": "2+2?"}]',
            "completion": "4",
            "tool_calls": None,
            "model": "m-1",
            "temperature": 0.5,
            "prompt_ids": [1, 2],
            "completion_ids": [3],
            "logprobs": [-0.5],
            "logprob_kind": "processed",
        },
    ),
    "langfuse: a trace of the API": ("langfuse", {**_LANGFUSE_TRACE, "observations": [_GENERATION], "scores": []}),
    "langfuse: a page of traces": ("langfuse", {"data": [{**_LANGFUSE_TRACE, "observations": ["o1"]}], "meta": {}}),
    "langfuse: an observation": ("langfuse", _GENERATION),
    "langfuse: an exported observation": ("langfuse", _GENERATION_ROW),
    "langfuse: a trace's row": ("langfuse", _LANGFUSE_TRACE),
    "langfuse: a score": ("langfuse", _LANGFUSE_SCORE),
    "langfuse: a batch": (
        "langfuse",
        {
            "batch": [
                {"id": "e0", "type": "trace-create", "timestamp": TIME, "body": {"id": "t1", "input": "2+2?"}},
                {"id": "e1", "type": "generation-create", "timestamp": TIME, "body": _GENERATION},
                {"id": "e2", "type": "score-create", "timestamp": TIME, "body": _LANGFUSE_SCORE},
            ]
        },
    ),
    "langsmith: a run": ("langsmith", RUN),
    "langsmith: runs": ("langsmith", {"runs": [RUN]}),
    "mlflow: schema 2": ("mlflow", MLFLOW_2),
    "mlflow: a row": ("mlflow", _MLFLOW_ROW),
    "mlflow: a row with the trace in a column": ("mlflow", {"trace": MLFLOW_2, "trace_id": "r1"}),
    "atif: a trajectory": (
        "atif",
        {
            "schema_version": "ATIF-v1.2",
            "session_id": "s",
            "agent": {"name": "a", "version": "1"},
            "steps": [{"step_id": 1, "source": "agent", "message": "hi"}],
        },
    ),
    "inspect_ai: a sample": ("inspect_ai", SAMPLE),
    "inspect_ai: samples": ("inspect_ai", {"samples": [SAMPLE]}),
    "swe_agent: mini": (
        "swe_agent",
        {
            "info": {"exit_status": "LimitsExceeded", "submission": ""},
            "messages": [*CHAT, SAID],
            "trajectory_format": "mini-swe-agent-1",
            "instance_id": "i",
        },
    ),
    "swe_agent: with queries": (
        "swe_agent",
        {"trajectory": [{"action": "ls", "query": CHAT, "response": "4"}], "history": [*CHAT, SAID], "info": {}},
    ),
    "dspy_history: a text completion": (
        "dspy_history",
        {"prompt": "2+2?", "messages": None, "kwargs": {"temperature": 0.5}, "outputs": ["4", "5"], "usage": {}},
    ),
    "openai_chat: with id and score": ("openai_chat", {"messages": [*CHAT, SAID], "id": "c1", "score": 0.5}),
    "openai_chat: with a response": ("openai_chat", {"messages": CHAT, **COMPLETION, "id": "chatcmpl-1"}),
    "openai_chat: a pair": ("openai_chat", {"request": {"model": "m", "messages": CHAT}, "response": COMPLETION}),
    "openai_chat: prompt and completion": ("openai_chat", {"prompt": "2+2?", "completion": "4", "reward": 1}),
    "openai_batch: a request": (
        "openai_batch",
        {"custom_id": "b1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": CHAT}},
    ),
    "openai_batch: a response": (
        "openai_batch",
        {"id": "x", "custom_id": "b1", "response": {"status_code": 200, "body": COMPLETION}, "error": None},
    ),
    "openai_batch: a failure": (
        "openai_batch",
        {"id": "x", "custom_id": "b2", "response": None, "error": {"code": "expired", "message": "too late"}},
    ),
    "openai_evals: a page": (
        "openai_evals",
        {
            "object": "list",
            "data": [
                {
                    "object": "eval.run.output_item",
                    "id": "outputitem_1",
                    "created_at": 1767323045,
                    "run_id": "evalrun_1",
                    "eval_id": "eval_1",
                    "datasource_item_id": 5,
                    "datasource_item": {"question": "2+2?"},
                    "results": [
                        {"name": "string check", "passed": True, "score": 1.0},
                        {"name": "other", "passed": False},
                    ],
                    "sample": {
                        "input": CHAT,
                        "output": [SAID],
                        "finish_reason": "length",
                        "model": "m-1",
                        "temperature": 0.5,
                        "max_completion_tokens": 16,
                        "error": None,
                    },
                }
            ],
            "has_more": False,
        },
    ),
    "jaeger: what its page hands out": (
        "jaeger",
        {
            "data": [
                {
                    "traceID": HEX,
                    "spans": [
                        {
                            "traceID": HEX,
                            "spanID": SPAN,
                            "operationName": "chat m-1",
                            "references": [{"refType": "CHILD_OF", "traceID": HEX, "spanID": SPAN[::-1]}],
                            "startTime": 1767323045000000,
                            "duration": 1500,
                            "tags": [
                                {"key": "gen_ai.operation.name", "type": "string", "value": "chat"},
                                {"key": "gen_ai.request.temperature", "type": "float64", "value": 0.5},
                                {"key": "gen_ai.input.messages", "type": "string", "value": json.dumps(CHAT)},
                                {"key": "gen_ai.output.messages", "type": "string", "value": json.dumps([SAID])},
                                {"key": "otel.scope.name", "type": "string", "value": "openai"},
                                {"key": "otel.status_code", "type": "string", "value": "ERROR"},
                                {"key": "error", "type": "bool", "value": True},
                            ],
                            "logs": [
                                {
                                    "timestamp": 1767323045000100,
                                    "fields": [
                                        {"key": "event", "type": "string", "value": "exception"},
                                        {"key": "exception.message", "type": "string", "value": "cut"},
                                    ],
                                }
                            ],
                            "processID": "p1",
                            "warnings": None,
                        }
                    ],
                    "processes": {"p1": {"serviceName": "app", "tags": []}},
                    "warnings": None,
                }
            ],
            "total": 0,
            "limit": 0,
            "offset": 0,
            "errors": None,
        },
    ),
    "otel_spans: Phoenix's columns": ("otel_spans", _PHOENIX_ROW),
    "otel_spans: flat": ("otel_spans", {"trace_id": HEX, "span_id": SPAN, "name": "x", "attributes": {}}),
    "scores: a row": ("scores", {"trace_id": "t1", "name": "recall", "score": None}),
    "scores: of a span": ("scores", {"trace_id": "t1", "span_id": "s1", "reward": 1}),
    "scores: a list of them": ("scores", {"scores": [{"trace_id": "t1", "value": True}]}),
    "scores: Phoenix's": ("scores", {"context.trace_id": "t1", "score": 0.5, "label": "good"}),
    "tau_bench: simulations": (
        "tau_bench",
        {
            "tasks": [{"id": "3", "user_scenario": {"instructions": "Ask."}}],
            "simulations": [
                {
                    "id": "s",
                    "task_id": "3",
                    "trial": 0,
                    "reward_info": {"reward": 1.0},
                    "messages": [{"role": "user", "content": "2+2?"}, SAID],
                    "termination_reason": "user_stop",
                }
            ],
        },
    ),
    "openai_chat: LiteLLM's payload": (
        "openai_chat",
        {
            "id": "x",
            "call_type": "acompletion",
            "model": "m-1",
            "messages": CHAT,
            "response": COMPLETION,
            "startTime": 1767323045.5,
            "model_parameters": {"temperature": 0.5},
        },
    ),
    "openai_chat: with a text as response": ("openai_chat", {"messages": CHAT, "response": "4", "score": "0.5"}),
    "openai_chat: streamed": (
        "openai_chat",
        {
            "messages": CHAT,
            "response": [
                {"choices": [{"delta": {"role": "assistant", "content": "4"}}]},
                {"choices": [{"delta": {}, "finish_reason": "stop"}]},
            ],
        },
    ),
    "openai_chat: of the Responses API": (
        "openai_chat",
        {
            "object": "response",
            "id": "r",
            "status": "completed",
            "input": "2+2?",
            "output": [
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "4"}]},
            ],
        },
    ),
    "openai_chat: turns": (
        "openai_chat",
        {"id": "s", "conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}], "score": 1},
    ),
    "otel_spans: a log record": (
        "otel_spans",
        {
            "event_name": "gen_ai.user.message",
            "body": {"content": "2+2?"},
            "trace_id": HEX,
            "span_id": SPAN,
            "timestamp": TIME,
            "attributes": {},
        },
    ),
    "nemo_gym: a text as input": (
        "nemo_gym",
        {"responses_create_params": {"input": "2+2?"}, "response": {"output": [{**SAID, "type": "message"}]}},
    ),
    "tau_bench: a run": ("tau_bench", {"task_id": 1, "reward": 1, "traj": [*CHAT, SAID]}),
    "otlp_json: as Tempo gives it": (
        "otlp_json",
        {"batches": [{"scopeSpans": [{"spans": [{"traceId": HEX, "spanId": SPAN, "attributes": []}]}]}]},
    ),
    "otlp_json: logs": (
        "otlp_json",
        {
            "resourceLogs": [
                {"scopeLogs": [{"logRecords": [{"eventName": "gen_ai.choice", "traceId": HEX, "spanId": SPAN}]}]}
            ]
        },
    ),
    "otlp_json: snake case": (
        "otlp_json",
        {"resource_spans": [{"scope_spans": [{"spans": [{"trace_id": HEX, "span_id": SPAN, "name": "x"}]}]}]},
    ),
}
