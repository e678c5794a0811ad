"""What one artifact cost: its telemetry, and the money of it at the recipe's prices. What is not known is None."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from schemas.recipe import Recipe
from schemas.recipe_prices import PricesSection
from schemas.telemetry import Attempt

STUDENT, SERVER = "student", "server"
CALLS, IN, OUT, UNTOLD = "calls", "prompt_tokens", "completion_tokens", "untold_calls"
_LM = re.compile(rf"lm\.(.+)\.({CALLS}|{IN}|{OUT}|{UNTOLD})", re.DOTALL)


@dataclass(frozen=True)
class Tokens:
    """Calls of an LM that were answered, and their tokens."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    untold_calls: int = 0
    """Calls whose tokens are not known: they are in neither sum."""

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.untold_calls + other.untold_calls,
        )


@dataclass(frozen=True)
class Spent:
    """What an artifact took, or several together."""

    seconds: float | None = None
    """By the clock, over all attempts at it."""
    core_seconds: float | None = None
    gpu_seconds: float | None = None
    """0 where no GPU is known to have been used."""
    devices: tuple[str, ...] = ()
    """Names of GPUs."""
    attempts: int | None = None
    """Processes that worked on it; None where that was not recorded."""
    prompt_tokens: int | None = None
    """Of all prompts that the engine was given, as if each had been computed alone."""
    completion_tokens: int | None = None
    trained_tokens: int | None = None
    """Of the rows that were trained on."""
    lms: Mapping[str, Tokens] = field(default_factory=dict)
    """By entry of `[lms]`, and `student`, whoever served them."""
    money: float | None = None
    unpriced: tuple[str, ...] = ()
    """What is missing for `money` to be known."""


def spent_of(figures: Mapping[str, float], attempts: Sequence[Attempt], recipe: Recipe) -> Spent:
    """What an artifact took, from its telemetry."""
    tokens = _by_lm(figures)
    money, unpriced = _money(figures, attempts, tokens, recipe)

    def told(name: str) -> int | None:
        """Telemetry has no figure of what a stage does not do."""
        return round(figures.get(name, 0.0)) if figures else None

    return Spent(
        seconds=figures.get("seconds"),
        core_seconds=figures.get("core_seconds"),
        gpu_seconds=figures.get("gpu_seconds"),
        devices=tuple(sorted({attempt.device for attempt in attempts if attempt.device})),
        attempts=len(attempts) or None,
        prompt_tokens=told("prompt_tokens"),
        completion_tokens=told("completion_tokens"),
        trained_tokens=told("train_row_tokens"),
        lms={name: found for name, found in tokens.items() if name != SERVER},
        money=money,
        unpriced=unpriced,
    )


def together(parts: Iterable[Spent]) -> Spent:
    """The sum. What one part does not know, the sum does not know either."""
    known = list(parts)
    lms: dict[str, Tokens] = {}
    for part in known:
        for name, tokens in part.lms.items():
            lms[name] = lms.get(name, Tokens()) + tokens

    def total(read: Callable[[Spent], float | None]) -> float | None:
        values = [value for part in known if (value := read(part)) is not None]
        return round(sum(values), 9) if len(values) == len(known) else None

    def whole(read: Callable[[Spent], int | None]) -> int | None:
        found = total(read)
        return None if found is None else int(found)

    return Spent(
        seconds=total(lambda part: part.seconds),
        core_seconds=total(lambda part: part.core_seconds),
        gpu_seconds=total(lambda part: part.gpu_seconds),
        devices=tuple(sorted({name for part in known for name in part.devices})),
        attempts=whole(lambda part: part.attempts),
        prompt_tokens=whole(lambda part: part.prompt_tokens),
        completion_tokens=whole(lambda part: part.completion_tokens),
        trained_tokens=whole(lambda part: part.trained_tokens),
        lms=dict(sorted(lms.items())),
        money=total(lambda part: part.money),
        unpriced=tuple(dict.fromkeys(reason for part in known for reason in part.unpriced)),
    )


def _by_lm(figures: Mapping[str, float]) -> dict[str, Tokens]:
    """Tokens by LM; under `SERVER` those of a server that was the engine."""
    found: dict[str, dict[str, int]] = {}
    for name, value in figures.items():
        matched = _LM.fullmatch(name)
        if matched:
            found.setdefault(matched[1], {})[matched[2]] = round(value)
        elif name.startswith(f"{SERVER}."):
            found.setdefault(SERVER, {})[name.removeprefix(f"{SERVER}.")] = round(value)
    return {name: Tokens(**found[name]) for name in sorted(found)}


def _money(
    figures: Mapping[str, float], attempts: Sequence[Attempt], tokens: Mapping[str, Tokens], recipe: Recipe
) -> tuple[float | None, tuple[str, ...]]:
    """The money, and what is missing for it to be known."""
    prices, missing = recipe.prices, dict[str, None]()
    paid = [
        _of_cores(figures.get("core_seconds"), prices, missing),
        *(_of_gpus(attempt, prices, missing) for attempt in attempts),
    ]
    if not attempts:
        missing["GPU-seconds: not recorded"] = None
    for name, used in tokens.items():
        if name == SERVER:
            paid.append(_of_tokens(STUDENT, used, prices, missing))
        elif name in recipe.lms and recipe.lms[name].kind == "openai":
            paid.append(_of_tokens(name, used, prices, missing))
    return (None if missing else sum(paid)), tuple(missing)


def _of_cores(seconds: float | None, prices: PricesSection, missing: dict[str, None]) -> float:
    if seconds is None:
        missing["core-seconds: not recorded"] = None
    elif seconds and prices.core_hour is None:
        missing["prices.core_hour: not given"] = None
    else:
        return seconds / 3600 * (prices.core_hour or 0.0)
    return 0.0


def _of_gpus(attempt: Attempt, prices: PricesSection, missing: dict[str, None]) -> float:
    seconds = attempt.gpu_seconds
    if seconds == 0:
        return 0.0
    price = price_of(attempt.device, prices.gpu_hour) if attempt.device else None
    if seconds is None:
        missing["GPU-seconds: not recorded"] = None
    elif attempt.device is None:
        missing["the name of the GPU: not known"] = None
    elif price is None:
        missing[f"prices.gpu_hour: none for '{attempt.device}'"] = None
    else:
        return seconds / 3600 * price
    return 0.0


def _of_tokens(name: str, used: Tokens, prices: PricesSection, missing: dict[str, None]) -> float:
    if not used.calls:
        return 0.0
    price = prices.lms.get(name)
    if price is None:
        missing[f"prices.lms.{name}: not given"] = None
        return 0.0
    if used.untold_calls:
        missing[f"tokens of calls of '{name}': not told by who served them"] = None
    return (used.prompt_tokens * price.input + used.completion_tokens * price.output) / 1e6


def price_of(device: str, prices: Mapping[str, float]) -> float | None:
    """The price whose words stand in a GPU's name, one after the other; of several the one of the most words."""
    name = _words(device)
    fits = {key: len(_words(key)) for key in prices if _stands_in(_words(key), name)}
    return prices[max(fits, key=lambda key: (fits[key], key))] if fits else None


def _stands_in(words: list[str], name: list[str]) -> bool:
    starts = range(len(name) - len(words) + 1)
    return bool(words) and any(name[start : start + len(words)] == words for start in starts)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
