"""Redaction: marks before the disk, pseudonyms after, the same for the same value, whatever the order."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from schemas.recipe_redact import RedactSection
from stages.ingest.assemble import Trace
from stages.ingest.content import entry_of
from stages.ingest.normal import Call, Refused, Score, Span
from stages.ingest.patterns import finders_of
from stages.ingest.pseudonyms import numbered
from stages.ingest.redact import Redactor
from stages.ingest.tree import Tree, grow, plain

SECRET = b"a secret"


def redactor(secret: bytes | None = SECRET, **section: Any) -> Redactor:
    def decode(ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    return Redactor(finders_of(RedactSection(**(section or {"kinds": "all"}))), secret, decode)


def call_span(number: int, text: str, completion: str, **more: Any) -> Span:
    call = Call(messages=({"role": "user", "content": text},), completion=completion, **more)
    return Span("t", f"s{number}", "root", "llm", f"to {text}", start=10 + number, call=call)


def spans() -> list[Span]:
    root = Span(
        "t",
        "root",
        None,
        name="app for bob@example.org",
        start=1,
        inputs={"z": "from eve@example.org", "question": "who is anna@example.org?"},
        outputs='{"phone": 4155552671, "who": "Anna@Example.org"}',
        error="no route to 10.0.0.7",
        user="anna@example.org",
        metadata={"eve@example.org": [4155552671, True, 7]},
    )
    return [root, call_span(1, "ask anna@example.org", "she is +1 415 555 2671"), call_span(2, "plain", "plain")]


def made(records: Sequence[Span], by: Redactor | None = None, scores: Sequence[Score] = ()) -> Trace:
    by = by or redactor()
    return numbered(Trace("t", "f", [by.item(item) for item in records], [by.item(item) for item in scores]))  # type: ignore[misc]


def test_a_value_has_one_pseudonym_wherever_it_stands_in_its_trace() -> None:
    tree = grow(made(spans()).spans)
    assert isinstance(tree, Tree)
    assert tree.root is not None
    assert tree.root.inputs == {"question": "who is <EMAIL_1>?", "z": "from <EMAIL_2>"}
    assert json.loads(tree.root.outputs) == {"phone": "<PHONE_1>", "who": "<EMAIL_1>"}
    assert tree.root.metadata == {"<EMAIL_2>": ["<PHONE_1>", True, 7]}
    assert (tree.root.name, tree.root.error) == ("app for <EMAIL_3>", "no route to <IP_1>")
    call = tree.spans["s1"].call
    assert call is not None
    assert (call.messages[0]["content"], call.completion) == ("ask <EMAIL_1>", "she is <PHONE_1>")


def test_nothing_of_a_value_is_left_before_the_disk_is_touched() -> None:
    by = redactor()
    told = b"".join(orjson.dumps(by.item(item)) for item in spans())
    for value in (b"anna", b"Anna", b"bob", b"eve", b"415", b"10.0.0.7"):
        assert value not in told


def test_pseudonyms_depend_on_neither_order_nor_process() -> None:
    first = entry_of(made(spans()))
    for seed in range(5):
        records = spans() * 2
        random.Random(seed).shuffle(records)
        assert entry_of(made(records)) == first


def test_equal_inputs_of_two_traces_are_equal_whoever_they_were_about() -> None:
    def inputs(who: str) -> Any:
        root = Span("t", "root", None, name=f"for zoe@x.org and {who}", inputs={"question": f"who is {who}?"})
        return made([root]).spans[0].inputs

    assert inputs("anna@example.org") == inputs("bob@example.org") == {"question": "who is <EMAIL_1>?"}


def test_pseudonyms_that_the_log_holds_already_stay_apart() -> None:
    root = Span("t", "root", None, inputs="tell <EMAIL_2> of anna@example.org")
    assert made([root]).spans[0].inputs == "tell <EMAIL_2> of <EMAIL_3>"


def test_a_redacted_call_loses_its_ids_and_another_keeps_them() -> None:
    ids = {"prompt_ids": (1, 2), "completion_ids": (3,), "logprobs": (-0.5,), "logprob_kind": "processed"}
    kept, gone = (made([call_span(1, text, "yes", **ids)]).spans[0].call for text in ("plain", "a@b.org"))
    assert kept is not None
    assert gone is not None
    assert (kept.redacted, kept.completion_ids, kept.logprobs) == (False, (3,), (-0.5,))
    assert (gone.redacted, gone.prompt_ids, gone.completion_ids, gone.logprobs) == (True, None, None, None)


def test_ids_that_say_more_than_the_text_are_gone_too() -> None:
    told = tuple(map(ord, "to anna@example.org"))
    call = made([call_span(1, "plain", "yes", prompt_ids=told, completion_ids=(3,))]).spans[0].call
    assert call is not None
    assert (call.redacted, call.prompt_ids) == (True, None)


def test_a_users_key_is_kept_under_the_secret_or_not_at_all() -> None:
    known, other, none = (made(spans(), redactor(secret)) for secret in (SECRET, b"other", None))
    users = [next(span.user for span in trace.spans if span.parent is None) for trace in (known, other, none)]
    assert users[0] != users[1]
    assert users[2] is None
    assert "anna" not in str(users)


def test_who_judged_and_what_could_not_be_read_are_redacted() -> None:
    by = redactor()
    score = made(spans(), by, [Score("t", "quality", 1.0, source="anna@example.org")]).scores[0]
    assert score.source == "<EMAIL_1>"
    assert by.item(Refused("broken", "at anna@example.org", "file")) == Refused("broken", "at <EMAIL>", "file")


def test_ids_and_names_of_the_programs_author_stay() -> None:
    span = replace(call_span(1, "x", "y"), trace="+1 415 555 2671", agent="415-555-2671", module="a@b.org")
    found = redactor().item(span)
    assert plain(found) == plain(span)
