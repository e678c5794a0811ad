"""What Logfire's and Langfuse's own instrumentations put on OpenTelemetry spans."""

from __future__ import annotations

import json
from pathlib import Path

from stages.ingest.normal import Call, Span
from stages.ingest.tree import Tree, grow
from tests.test_stages.ingest_kit import TRACES, Held, read_file, read_value
from tests.test_stages.ingest_values import HEX, SPAN


def calls(found: Held) -> dict[str, list[Call]]:
    """The calls of each trace, by the name of its root."""
    traces: dict[str, list[Span]] = {}
    for span in found.spans:
        traces.setdefault(span.trace, []).append(span)
    made: dict[str, list[Call]] = {}
    for spans in traces.values():
        tree = grow(spans)
        assert isinstance(tree, Tree)
        assert tree.root is not None
        made[tree.root.name] = [one.call for one in tree.calls() if one.call is not None]
    return made


def test_clients_of_openai_and_anthropic_as_its_third_release_logs_them() -> None:
    made = calls(read_file(TRACES / "logfire/clients_3.jsonl"))
    (plain,) = made["plain"]
    assert [said["content"] for said in plain.messages] == ["Be brief.", "Hello plain"]
    assert (plain.completion, plain.model) == ("Answer d95287 to: Hello plain", "m-1-2026")
    assert (plain.temperature, plain.top_p, plain.max_new_tokens, plain.seed) == (0.5, 0.9, 50, 3)
    (text,) = made["text"]
    assert (text.messages, text.completion) == (({"role": "user", "content": "Once upon"},), "Completed: Once upon")
    assert text.finish_reason == "length"
    assert [call.choices for call in made["two"]] == [2]  # the log has the first of them
    message, streamed = made["anth"]
    assert [said["content"] for said in message.messages] == ["Be brief.", "Hello anth"]
    assert not message.tools  # an argument that was not given is logged as a text
    assert streamed.completion == "Answer 5bdc70 to: Hello anth stream"


def test_a_stream_is_one_call_whose_answer_is_logged_beside_it() -> None:
    for name in ("clients_3", "stream_5"):
        (call,) = calls(read_file(TRACES / f"logfire/{name}.jsonl"))["stream"]
        assert [said["content"] for said in call.messages] == ["Be brief.", "Hello stream"]
        assert call.completion == "Answer b6531f to: Hello stream"


def test_the_agents_sdk_logs_the_answer_at_the_end_of_the_messages() -> None:
    for name in ("agents_chat_3", "agents_responses_5"):
        ((_, asked),) = calls(read_file(TRACES / f"logfire/{name}.jsonl")).values()
        assert [said["role"] for said in asked.messages] == ["system", "user", "assistant", "user"]
        assert (asked.messages[-1]["content"], asked.completion) == ("Hello two", "Answer 2f059c to: Hello two")


def test_the_agents_sdk_names_agents_and_tools(tmp_path: Path) -> None:
    value = {"trace_id": HEX, "span_id": SPAN, "name": "Agent run: {name!r}"}
    said = {"logfire.msg_template": value["name"], "name": "boss", "tools": '["add"]', "handoffs": "[]"}
    agent = read_value({**value, "attributes": said}, tmp_path).root
    assert (agent.kind, agent.agent, agent.offers) == ("agent", "boss", True)
    said |= {"logfire.msg_template": "Function: {name}", "name": "add", "input": '{"a": 1}', "output": "1"}
    tool = read_value({**value, "name": "Function: {name}", "attributes": said}, tmp_path).root
    assert (tool.kind, tool.inputs) == ("tool", {"a": 1})


def test_a_part_of_a_prompt_that_was_not_taken_apart_is_no_text(tmp_path: Path) -> None:
    events = [
        {"event.name": "gen_ai.developer.message", "content": "Be brief."},
        {"event.name": "gen_ai.unknown", "content": "input_text\n\nSee JSON for details", "data": {}},
        {"event.name": "gen_ai.assistant.message", "content": "4"},
    ]
    attributes = {"gen_ai.request.model": "m", "gen_ai.response.model": "m", "events": json.dumps(events)}
    value = {"trace_id": HEX, "span_id": SPAN, "name": "Responses API", "attributes": attributes}
    call = read_value(value, tmp_path).call
    assert call.messages[0] == {"role": "system", "content": "Be brief."}
    assert call.messages[1]["other_content"]
    assert call.completion == "4"


def test_an_agents_run_repeats_its_calls_messages_and_is_none(tmp_path: Path) -> None:
    events = [{"event.name": "gen_ai.user.message", "content": "2+2?"}]
    events.append({"event.name": "gen_ai.assistant.message", "content": "4"})
    attributes = {"agent_name": "adder", "gen_ai.usage.output_tokens": 1, "all_messages_events": json.dumps(events)}
    found = read_value({"trace_id": HEX, "span_id": SPAN, "name": "agent run", "attributes": attributes}, tmp_path)
    assert (found.root.kind, found.root.agent, found.calls) == ("agent", "adder", [])


def test_langfuses_sdk_says_what_an_observation_is_in_attributes() -> None:
    found = read_file(TRACES / "langfuse_sdk/langgraph_5.jsonl")
    assert found.root.inputs == {"messages": [["user", "TOOL weather"]]}
    assert found.root.metadata["langfuse.trace.metadata.user_id"] == '"u-7"'
    tree = grow(found.spans)
    assert isinstance(tree, Tree)
    assert [one.agent for one in tree.calls()] == ["agent", "agent", "closing"]
    calls = [one.call for one in tree.calls() if one.call is not None]
    assert [call.tools for call in calls] == [True, True, False]
    assert [len(call.messages) for call in calls] == [2, 4, 1]
    assert calls[-1].completion == "Answer 1dd102 to: close: Answer a3624e to: rain in Ghent"
    assert {(call.model, call.temperature, call.max_new_tokens) for call in calls} == {("m-1-2026", 0.7, 64)}


def test_an_update_of_an_observation_leaves_it_where_it_stands() -> None:
    found = read_file(TRACES / "langfuse/langchain-sdk-2-batch.json")
    tree = grow(found.spans)
    assert isinstance(tree, Tree)
    first, second = tree.calls()
    above = [[step.name for step in tree.above(one)] for one in (first, second)]
    assert above == [["ChatOpenAI", "RunnableSequence", "pipeline", "pipeline"]] * 2
    assert first.call is not None
    assert (first.call.completion, first.call.temperature) == ("Answer 830851 to: Hello lc", 0.7)
