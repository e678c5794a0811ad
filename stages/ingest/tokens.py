"""How far a logged call can be trusted, and its tokens: as logged, or made from its text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jinja2 import TemplateError

from stages.ingest.encoding import Encoding
from stages.ingest.normal import Call

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BARE = 2
"""Fields that every message has: its role and its content."""
FINISH = {
    "stop": "stop",
    "end_turn": "stop",
    "eos": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
}
"""By what APIs call it, in small letters."""
_CUT = frozenset(
    {"abort", "blocklist", "cancelled", "content_filter", "content-filter", "error", "prohibited_content", "recitation"}
    | {"refusal", "safety", "spii"}
)
"""Why an answer is not as the model would have written it to the end."""
_CALLED = frozenset({"function_call", "tool-calls", "tool_call", "tool_calls", "tool_use"})
"""Why an answer ended that calls a tool, also where the log has lost the tool call."""
NO_COMPLETION, TOOLS, REASONING = "no_completion", "tool_calls", "hidden_reasoning"
UNSEEN, CUT_OFF = "prompt_not_logged", "cut_off"
OTHER_CONTENT, NOT_ENCODED, NOT_RENDERED = "no_text_content", "not_encoded", "not_rendered"
DECODE, REDACTED = "ids_do_not_decode", "redacted"
LENGTHS, VOCABULARY, CHOICES = "lengths_differ", "ids_out_of_vocabulary", "several_choices"


_REFUSALS = (TemplateError, TypeError, ValueError)
"""The ways in which templates refuse messages."""


class Tokens(NamedTuple):
    """A call's tokens. `reason` says why it is not of a better fidelity."""

    fidelity: Literal["exact", "ids", "text", "partial"]
    reason: str | None = None
    prompt_ids: Sequence[int] | None = None
    completion_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    finish: Literal["stop", "length", "error"] = "error"


class Encoder:
    """Reads logged tokens, and makes them from texts, with the student's tokenizer and template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos: frozenset[int]) -> None:
        self._tokenizer, self._eos = tokenizer, eos
        self._encoding = Encoding(tokenizer)
        self._size = len(tokenizer)

    def ready(self, calls: Iterable[Call]) -> None:
        """Make the tokens of calls whose text is logged, many at once, before each of them is asked for."""
        self._encoding.ready([text for call in calls for text in self._texts(call)])

    def _texts(self, call: Call) -> Iterator[str]:
        logged = call.prompt_ids and call.completion_ids
        if call.completion is None or logged or call.choices > 1 or _more_than_text(call):
            return
        yield call.completion
        with suppress(*_REFUSALS):  # it is said of the call when its turn comes
            yield self._encoding.text(_bare(call))

    def tokens(self, call: Call, policy: str | None) -> Tokens:
        """The tokens of a call.

        Args:
            call: as logged.
            policy: digest of the policy that it was sampled from, where the log says.
        """
        if call.completion is None and not call.completion_ids:
            return Tokens("partial", NO_COMPLETION)
        if call.choices > 1:
            return Tokens("partial", CHOICES)
        if call.prompt_ids and call.completion_ids:
            return self._logged(call, policy)
        return self._of_text(call)

    def _logged(self, call: Call, policy: str | None) -> Tokens:
        prompt, completion = call.prompt_ids or (), call.completion_ids or ()
        if max(*prompt, *completion) >= self._size:
            return Tokens("partial", VOCABULARY)
        if call.completion is not None and not self._gives(completion, call.completion):
            return Tokens("partial", DECODE)
        finish = self._finish(call, completion)
        if call.logprobs is not None and len(call.logprobs) != len(completion):
            return Tokens("ids", LENGTHS, prompt, completion, None, finish)
        known = call.logprobs is not None and call.logprob_kind is not None and policy is not None
        if known:
            return Tokens("exact", None, prompt, completion, call.logprobs, finish)
        reason = "no_logprobs" if call.logprobs is None else "no_policy" if policy is None else "logprob_kind_unknown"
        return Tokens("ids", reason, prompt, completion, None, finish)

    def _gives(self, ids: Sequence[int], text: str) -> bool:
        """Whether ids decode to a text, up to the white space at its ends that servers strip."""
        return bool(self._tokenizer.decode(ids, skip_special_tokens=True).strip() == text.strip())

    def _finish(self, call: Call, completion: Sequence[int]) -> Literal["stop", "length"]:
        return "stop" if completion[-1] in self._eos or FINISH.get(_said(call)) == "stop" else "length"

    def _of_text(self, call: Call) -> Tokens:
        if reason := _more_than_text(call):
            return Tokens("partial", reason)
        finish: Any = FINISH.get(_said(call), "stop")
        try:
            prompt = self._encoding.chat(_bare(call))
        except _REFUSALS:
            return Tokens("partial", NOT_RENDERED)
        completion = self._encoding.completion(call.completion or "", ended=finish == "stop")
        if not completion:
            return Tokens("partial", NOT_ENCODED if call.completion else NO_COMPLETION)
        return Tokens("text", REDACTED if call.redacted else "no_ids", prompt, completion, None, finish)


def _bare(call: Call) -> list[dict[str, str]]:
    """Its messages with what a template looks at."""
    return [{"role": str(said["role"]), "content": str(said["content"])} for said in call.messages]


def _said(call: Call) -> str:
    """Why the answer ended, as `FINISH` has it: some SDKs log the name of an enum."""
    return (call.finish_reason or "").rpartition(".")[2].lower()


def _more_than_text(call: Call) -> str | None:
    """Why a call's text alone does not say what the model was sent or wrote."""
    if call.unseen or _said(call) in _CUT:
        return UNSEEN if call.unseen else CUT_OFF
    ended_by_tool = _said(call) in _CALLED
    if call.tool_calls or call.tools or ended_by_tool or any(said.get("role") == "tool" for said in call.messages):
        return TOOLS
    rich = [said for said in call.messages if len(said) > _BARE]
    if any(said.get("tool_calls") for said in rich):
        return TOOLS
    if call.reasoning or any(said.get("reasoning") for said in rich):
        return REASONING
    if any(said.get("other_content") for said in rich):
        return OTHER_CONTENT
    return None
