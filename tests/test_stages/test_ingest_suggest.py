"""Rules that are proposed for calls without a module: pasted as they are, they give every call one, and never two."""

from __future__ import annotations

from tomllib import loads
from typing import Any

import pytest

from schemas.recipe_ingest import IngestSection
from stages.ingest.modules import module_of, place_of
from stages.ingest.normal import Call, Span
from stages.ingest.suggest import BEGINNINGS, VARIANTS, as_toml, suggest
from stages.ingest.tree import Tree, grow

ROOT = Span("t", "root", None, "other", "program", start=0, end=1000)


def asked(*prompts: str, name: str = "chat", first: int = 0) -> list[Span]:
    """Calls with these system prompts, one after another; "": with none."""
    made = []
    for number, text in enumerate(prompts, start=first):
        system = ({"role": "system", "content": text},) if text else ()
        call = Call((*system, {"role": "user", "content": "hi"}), "y")
        made.append(Span("t", f"s{number}", "root", "llm", name, start=number, end=number + 1, call=call))
    return made


def signed(signature: str, number: int) -> list[Span]:
    above = Span("t", f"p{number}", "root", "other", "predict", signature=signature, start=number, end=number + 1)
    call = Call(({"role": "system", "content": "Your input fields are:"},), "y")
    return [above, Span("t", f"c{number}", above.span, "llm", "chat", start=number, end=number + 1, call=call)]


def pasted(spans: list[Span], modules: list[str] | None = None) -> tuple[list[dict[str, Any]], list[str | None]]:
    """The rules as a recipe has them, and the module of each call by them."""
    tree = grow([ROOT, *spans])
    assert isinstance(tree, Tree)
    calls = tree.calls()
    rules = loads(as_toml(suggest([place_of(span, tree) for span in calls], modules)))["ingest"]["modules"]
    section = IngestSection(modules=tuple(rules))
    return rules, [module_of(span, tree, section)[0] for span in calls]


def test_every_call_gets_one_module_whatever_its_prompt_is_made_of() -> None:
    odd = ["Write (a) query.\nMore.", 'It\'s "odd" \\ [x]\ttab', "Write (a) query.\nOther.", "ÄÖ {x}|y^$"]
    rules, found = pasted([*asked(*odd), *signed("a -> b", 50)])
    assert len(rules) == len(set(found)) == 5
    assert None not in found


def test_what_is_filled_in_with_each_call_makes_no_rule_of_its_own() -> None:
    dated = [f"You name the topic. Today is 2026-01-{day:02d}, call 7f{day}." for day in range(1, 29)]
    rules, found = pasted(asked(*dated))
    assert len(rules) == 1
    assert rules[0]["system"] == r"(?m)^\s*You name the topic\. Today is \S+ call \S+\s*$"
    assert set(found) == {"you_name_the_topic"}


def test_prompts_that_begin_alike_are_told_apart_by_a_line_of_their_own() -> None:
    """As DSPy's do, whose first line is the same for all predictors."""
    query = "Your input fields are:\n1. `question`\nYour objective is: given `question`, produce `query`."
    answer = "Your input fields are:\n1. `question`\n2. `query`\nYour objective is: produce `answer`."
    rules, found = pasted(asked(query, answer, query))
    assert len(rules) == 2
    assert found[0] == found[2] != found[1]


def test_a_prompt_that_is_the_beginning_of_another_claims_none_of_its_calls() -> None:
    for prompts in (("Be brief.", "Be brief. And kind."), ("Be brief.", "Be brief.\nAnd kind.")):
        rules, found = pasted(asked(*prompts))
        assert len(rules) == len(set(found)) == 2
        assert None not in found


def test_what_follows_a_first_line_is_data_where_it_is_always_another() -> None:
    many = ["Answer from these pages.\n" + "word " * number for number in range(1, 3 * VARIANTS)]
    rules, found = pasted(asked(*many, "Name the topic."))
    assert len(rules) == 2
    assert len(set(found)) == 2
    assert None not in found


def test_calls_without_a_system_prompt_are_told_by_their_span_and_claim_no_others() -> None:
    spans = [*asked("", "", name="plan"), *asked("", name="write", first=5), *asked("Be brief.", name="plan", first=9)]
    rules, found = pasted(spans)
    assert len(rules) == 3
    assert found[0] == found[1]
    assert len(set(found)) == 3
    assert None not in found
    assert "no system prompt tells these apart" in as_toml(suggest([place_of(spans[0], _tree(spans))], None))


def test_the_programs_modules_are_shown_and_named_where_a_signature_says_which() -> None:
    spans = signed("question -> search_query", 1)
    text = as_toml(suggest([place_of(spans[1], _tree(spans))], ["hop.search_query", "answer"]))
    assert "# the program's modules: hop.search_query, answer" in text
    assert loads(text)["ingest"]["modules"][0]["module"] == "hop.search_query"


@pytest.mark.parametrize("more", [1, 50])
def test_a_log_with_data_in_its_first_lines_does_not_become_a_rule_for_each_call(more: int) -> None:
    names = [f"{chr(97 + n // 26 % 26)}{chr(97 + n % 26)}{'x' * (n // 676)}" for n in range(BEGINNINGS + more)]
    spans = asked(*(f"You help {name}." for name in names))
    found = suggest([place_of(span, _tree(spans)) for span in spans], None)
    assert (len(found.rules), found.others) == (BEGINNINGS, more)
    assert f"# {more} calls more begin in over {BEGINNINGS} ways" in as_toml(found)


def _tree(spans: list[Span]) -> Tree:
    tree = grow([ROOT, *spans])
    assert isinstance(tree, Tree)
    return tree
