"""A conversation put together from a template's skeleton is what the template makes of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from stages.ingest.skeletons import Skeletons

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ 'Be brief.' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN = (
    "{%- if tools %}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{%- endif %}"
    "{%- if messages[0].role == 'system' %}{{- '<S>' + messages[0].content }}{%- endif %}{%- for message in messages %}"
    "{%- if (message.role == 'user') or (message.role == 'system' and not loop.first) or (message.role == 'assistant' "
    "and not message.tool_calls) %}{{- message.role ~ message.content ~ '<E>' }}{%- elif message.content %}"
    "{{- message.content | trim }}{%- endif %}{%- endfor %}"
)
LOOKING = (
    "{{ message.content | trim }}",
    "{{ message.content[:3] }}",
    "{{ message.content.split('a')[0] }}",
    "{{ message.content | length }}",
    "{{ message.content | tojson }}",
    "{{ message.content | upper }}",
    "{{ [message.content] }}",
    "{{ {'b': 1}[message.content] }}",
    "{{ message[message.content] }}",
    "{{ message.get(message.content) }}",
    "{{ '%s.' % message.content }}",
    "{{ message.content * 2 }}",
    "{{ 'b'.join([message.content, 'c']) }}",
    "{{ message.content < 'b' }}",
    "{{ message.content in ['b'] }}",
    "{% if message.content %}full{% endif %}",
    "{% if message.content == 'b' %}b{% endif %}",
    "{% if 'b' in message.content %}b{% endif %}",
    "{% if 'b' in 'a' ~ message.content %}b{% endif %}",
    "{% if 'b' in 'a' + message.content %}b{% endif %}",
    "{% if 'b' in message | tojson %}b{% endif %}",
    "{% set said = 'a' ~ message.content %}{% if said == 'ab' %}b{% endif %}",
    "{% set said %}{{ message.content }}{% endset %}{% if said == 'b' %}b{% endif %}",
    "{% set held = namespace(said=message.content) %}{% if held.said == 'b' %}b{% endif %}",
    "{% macro put(said) %}{{ said }}{% endmacro %}{{ put(message.content) | length }}",
    "{% for char in message.content %}{{ char }}.{% endfor %}",
    "{{ raise_exception('no b') if message.content == 'b' }}",
    "{{ message.content is string }}",
    "{{ message.content is mapping }}",
    "{{ message }}",
)


def of(template: str) -> tuple[Skeletons, list[Sequence[dict[str, str]]]]:
    """Skeletons of a template, and the conversations that were given to the template itself."""
    rendered: list[Sequence[dict[str, str]]] = []

    def render(messages: Sequence[dict[str, str]]) -> str:
        rendered.append(messages)
        return plainly(template, messages)

    return Skeletons(template, render), rendered


def plainly(template: str, messages: Sequence[dict[str, str]]) -> str:
    made, _ = render_jinja_template([list(messages)], chat_template=template, add_generation_prompt=True)
    return str(made[0])


def attempt(made: Skeletons, messages: Sequence[dict[str, str]]) -> str:
    try:
        return made.text(messages)
    except Exception as error:  # noqa: BLE001 - which one is compared
        return f"{type(error).__name__}: {error}"


TEXTS = (
    st.sampled_from(["", "b", " b ", "ab", '\0"the text of message 0"\0', "<|im_end|>", "{{ b }}", "é\n"]) | st.text()
)
CHATS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": TEXTS}),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("template", [CHATML, QWEN])
@settings(deadline=None)
@given(st.lists(CHATS, min_size=1, max_size=4))
def test_a_skeleton_gives_what_its_template_gives(template: str, chats: list[list[dict[str, str]]]) -> None:
    made, _ = of(template)
    for chat in chats:
        assert made.text(chat) == plainly(template, chat)


@pytest.mark.parametrize("looks", LOOKING)
def test_a_template_that_looks_at_texts_is_asked_for_each(looks: str) -> None:
    template = f"{{% for message in messages %}}{looks}{{% endfor %}}"
    made, _ = of(template)
    asked = Skeletons(None, lambda messages: plainly(template, messages))
    for text in ("b", " b ", "", "ab"):
        chat = [{"role": "user", "content": text}]
        assert attempt(made, chat) == attempt(asked, chat)


def test_a_shape_is_rendered_once() -> None:
    made, rendered = of(CHATML)
    for text in ("a", "b", "c"):
        made.text([{"role": "user", "content": text}])
    assert len(rendered) == 1


def test_a_role_that_looks_like_a_text_is_none() -> None:
    made, _ = of(CHATML)
    chat = [{"role": '\0"the text of message 0"\0', "content": "a"}]
    assert made.text(chat) == plainly(CHATML, chat)
