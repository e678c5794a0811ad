"""Plain messages are read by a short way, which gives what the long one gives."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stages.ingest.messages import one_message, plain_message

ROLES = st.sampled_from(["user", "User", "human", "assistant", "developer", "", None, 3])
TEXTS = st.sampled_from(["", "hi", "[1]", None])
PARTS = st.lists(
    st.dictionaries(st.sampled_from(["type", "text", "content", "id"]), st.sampled_from(["text", "image", "", None])),
    max_size=2,
)
MESSAGES = st.dictionaries(
    st.sampled_from(["content", "parts", "finish_reason", "name", "tool_calls", "type", "text"]),
    TEXTS | PARTS,
    max_size=3,
)


@given(MESSAGES, ROLES)
def test_the_short_way_says_what_the_long_one_says(message: dict[str, Any], role: Any) -> None:
    value = {**message, "role": role}
    found = plain_message(value)
    assert found is None or found == one_message(value)


def test_the_usual_messages_take_the_short_way() -> None:
    assert plain_message({"role": "user", "content": "hi"}) == {"role": "user", "content": "hi"}
    said = [{"type": "text", "content": "hi"}]
    assert plain_message({"role": "ai", "parts": said, "finish_reason": "stop"}) == {
        "role": "assistant",
        "content": "hi",
    }
