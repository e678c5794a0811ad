"""What a server is asked before it is used: which model it serves, what it gives of a completion, and of which kind."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from schemas.errors import RecipeError
from stages.engines.interface import Request, Sampling
from stages.engines.server_http import Http, NotJson, Refused, Unanswered
from stages.engines.server_protocol import Mode, Reader, chat_body, completion_body
from stages.engines.texts import encode_chat

log = logging.getLogger(__name__)

Kind = Literal["processed", "raw"]
_QUESTIONS = ("Hello", "Name a colour.", "1, 2, 3,", "Once upon a time")
_TEXT = "Tokens, 12 of them: naïve … or\n not?"
_NEAR = 0.05
"""How close two log-probabilities of one token lie that a server computed in two batches, in bfloat16."""


@dataclass(frozen=True)
class Facts:
    """What a server said of itself."""

    model: str
    """What it calls the base model."""
    name: str
    """What it is, with its version and a digest of its settings where it tells: `vllm-0.32.0-1a2b3c4d`."""
    mode: Mode
    kind: Kind | None
    adapters: frozenset[str]
    """Other models that it lists: adapters that it has already."""


@dataclass(frozen=True)
class Prober:
    """Asks a server about itself, by the base model's tokens."""

    reader: Reader
    model: str | None
    """The base model's name there, where the settings give it."""
    context: int
    """Tokens that a prompt and its completion may take together."""

    async def facts(self, http: Http, url: str) -> Facts:
        """Ask.

        Raises:
            RecipeError: when what answers cannot be used, with what to change.
            Unanswered: when it does not answer now.
        """
        models = await self._models(http, url)
        name = self.model or (str(models[0].get("id")) if models else "")
        if not name:
            raise RecipeError(f"{url} lists no model: set server.model to the name that it serves the base under")
        self._check_length(models, name, url)
        await self._check_tokens(http, name, url)
        mode, answer = await self._mode(http, name, url)
        kind = await self._kind(http, name) if mode == "exact" else None
        if mode == "exact" and kind is None:
            log.warning(
                "%s: its log-probabilities are neither of the whole distribution nor of the one that is sampled from, "
                "and are left out",
                url,
            )
            mode = "ids"
        others = frozenset(str(model.get("id")) for model in models) - {name}
        return Facts(name, await _named(http, answer, name), mode, kind, others)

    async def _models(self, http: Http, url: str) -> list[dict[str, Any]]:
        try:
            answer = await http.get("/models")
        except Refused as error:
            if error.status in (401, 403):
                raise refused_key(url, error) from None
            if self.model:
                return []  # a server without a list, whose model's name is known
            raise RecipeError(
                f"{url} is no OpenAI-compatible server: its list of models (GET {url}/models) answers {error}. Is "
                "server.urls right? It usually ends with /v1. A server without a list needs server.model"
            ) from None
        found = answer.get("data") if isinstance(answer, dict) else None
        return [model for model in found if isinstance(model, dict)] if isinstance(found, list) else []

    def _check_length(self, models: Sequence[dict[str, Any]], name: str, url: str) -> None:
        mine = next((model for model in models if model.get("id") == name), None)
        if mine is None and models:
            known = ", ".join(str(model.get("id")) for model in models)
            raise RecipeError(f"{url} serves no model '{name}', but {known}: set server.model to the base's name there")
        longest = (mine or {}).get("max_model_len")
        if isinstance(longest, int) and longest < self.context:
            raise RecipeError(
                f"{url} takes {longest} tokens, but the recipe's context is {self.context}: start the server with "
                f"--max-model-len {self.context}, or set model.context to at most {longest}"
            )

    async def _check_tokens(self, http: Http, name: str, url: str) -> None:
        """Compare the tokenizer, where the server has a page that shows it."""
        try:
            answer = await http.post(
                "/tokenize", {"model": name, "prompt": _TEXT, "add_special_tokens": False}, root=True
            )
        except (Refused, NotJson):
            return  # no such page
        theirs = answer.get("tokens") if isinstance(answer, dict) else None
        ours = self.reader.tokenizer(_TEXT, add_special_tokens=False)["input_ids"]
        if isinstance(theirs, list) and theirs and theirs != list(ours):
            raise RecipeError(
                f"{url} serves '{name}' with other tokens than those of model.base: it must serve the recipe's base "
                "model. `mmgrpo serve RECIPE` starts such a server"
            )

    async def _mode(self, http: Http, name: str, url: str) -> tuple[Mode, Any]:
        """What it gives of a completion, and the answer that says so."""
        request = self._request(_QUESTIONS[0], Sampling(max_new_tokens=1))
        try:
            answer = await http.post("/completions", completion_body(request, name, 1, self.reader.eos))
        except Refused as error:
            if error.status in (401, 403):
                raise refused_key(url, error) from None
            return "text", await self._chat(http, request, name, url, error)
        choices = answer.get("choices") if isinstance(answer, dict) else None
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or not isinstance(choice.get("token_ids"), list):
            return "text", await self._chat(http, request, name, url, None)
        mode: Mode = "exact" if isinstance(choice.get("logprobs"), dict) else "ids"
        self.reader.completion(answer, request, 1, mode)
        return mode, answer

    async def _chat(self, http: Http, request: Request, name: str, url: str, before: Refused | None) -> Any:
        try:
            answer = await http.post("/chat/completions", chat_body(request, name, 1))
        except Refused as error:
            if error.status in (401, 403):
                raise refused_key(url, error) from None
            first = f"/completions with token ids ({before}) and " if before else ""
            raise RecipeError(f"{url} refuses {first}/chat/completions ({error}): is server.model right?") from None
        self.reader.chat(answer)
        return answer

    async def _kind(self, http: Http, name: str) -> Kind | None:
        """Whether log-probabilities are of the distribution that is sampled from; None where that cannot be said.

        At temperature 0.5 and top_k 2 the two best tokens must have all of it, or else what they had before.
        """
        for question in _QUESTIONS:
            plain = await self._two_best(http, name, question, Sampling(max_new_tokens=1))
            cut = await self._two_best(http, name, question, Sampling(0.5, None, 2, 1))
            if plain is None or cut is None or set(plain) != set(cut):
                continue
            found = [cut[token] for token in sorted(plain)]
            raw = [plain[token] for token in sorted(plain)]
            whole = math.log(sum(math.exp(2 * value) for value in raw))
            processed = [2 * value - whole for value in raw]
            if _distance(raw, processed) < 3 * _NEAR:
                continue  # this prompt cannot tell
            if _distance(found, processed) < _NEAR:
                return "processed"
            if _distance(found, raw) < _NEAR:
                return "raw"
        return None

    async def _two_best(self, http: Http, name: str, question: str, sampling: Sampling) -> dict[str, float] | None:
        body = completion_body(self._request(question, sampling), name, 1, self.reader.eos)
        answer = await http.post("/completions", body | {"logprobs": 2, "return_tokens_as_token_ids": True})
        try:
            found = answer["choices"][0]["logprobs"]["top_logprobs"][0]
            best = sorted(((logprob(value), str(token)) for token, value in found.items()), reverse=True)[:2]
        except (LookupError, TypeError, AttributeError, ValueError):
            raise Unanswered(f"no log-probabilities of the best tokens: {str(answer)[:80]}") from None
        return {token: value for value, token in best} if len(best) == 2 else None

    def _request(self, question: str, sampling: Sampling) -> Request:
        messages = [{"role": "user", "content": question}]
        return Request(encode_chat(self.reader.tokenizer, messages), sampling, seed=0, messages=messages)


def logprob(value: Any) -> float:
    """A log-probability that a server tells; minus infinity may be one.

    Raises:
        ValueError, TypeError: for what is none.
    """
    found = float(value)
    if not found < 1e-3:
        raise ValueError(f"{found} is no log-probability")
    return found


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


async def _named(http: Http, answer: Any, model: str) -> str:
    """What a server calls itself in an answer, else by its version, else by its model."""
    told = answer.get("system_fingerprint") if isinstance(answer, dict) else None
    if isinstance(told, str) and told:
        return told
    try:
        version = await http.get("/version", root=True)
    except (Refused, NotJson):
        return model
    found = version.get("version") if isinstance(version, dict) else None
    return f"vllm-{found}" if isinstance(found, str) else model


def refused_key(url: str, error: Refused) -> RecipeError:
    """The error for a server that wants another key."""
    return RecipeError(
        f"{url} answers {error}: put its key into an environment variable and name that in server.api_key_env"
    )
