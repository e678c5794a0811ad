"""What the 8B recipes need of a GPU, worked out on paper: memory, and hours from stated assumptions.

Nothing is measured here. `python -m tests.benchmarks.gpu_budget` prints the tables of the README.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

RANK, TRAIN_TOKENS, CONCURRENCY = 16, 4096, 128
SHARE = 0.9
"""Of a card's memory that vLLM takes, while nothing trains."""
BANDWIDTH_REACHED, PEAK_REACHED = 0.6, 0.35
"""Share of a card's bandwidth that decoding gets, and of its bfloat16 peak that prompts and training get."""
ITERATIONS, EXAMPLES, ROLLOUTS = 30, 100, 12


@dataclass(frozen=True)
class Model:
    """Numbers of a model's config.json."""

    name: str
    layers: int
    hidden: int
    inner: int
    queries: int
    keys: int
    """Widths of all query heads, and of all key heads, together."""
    vocabulary: int
    head_norms: bool
    """Whether queries and keys are normalised, as in Qwen3."""

    @property
    def linear(self) -> int:
        """Weights of the seven linear maps of all layers."""
        own = 2 * self.hidden * (self.queries + self.keys) + 3 * self.hidden * self.inner
        return self.layers * own

    @property
    def weights(self) -> int:
        """All weights, embedding and head apart from each other; norms are left out."""
        return self.linear + 2 * self.vocabulary * self.hidden

    @property
    def adapter(self) -> int:
        """LoRA weights on the seven linear maps."""
        widths = 2 * (self.hidden + self.queries) + 2 * (self.hidden + self.keys) + 3 * (self.hidden + self.inner)
        return self.layers * RANK * widths

    @property
    def kv_bytes(self) -> int:
        """Keys and values of a token in bfloat16."""
        return self.layers * 2 * self.keys * 2

    @property
    def activation_bytes(self) -> int:
        """What a training token holds for the backward pass: no checkpointing, LoRA dropout on."""
        inputs = 5 * self.hidden + self.queries + self.inner  # of the seven maps: a bfloat16 copy and a mask
        norms = 4 * (2 * self.hidden + (self.queries + self.keys if self.head_norms else 0))  # float32
        return self.layers * (3 * inputs + norms + 8 * self.queries + 6 * self.inner)

    def flops(self, context: int, *, backward: bool) -> float:
        """Of a token at the middle of a context. The base is frozen: its maps go through backward once, not twice."""
        attention = self.layers * 4 * (context / 2) * self.queries
        return (4 * self.linear + 3 * attention) if backward else (2 * self.linear + attention)


@dataclass(frozen=True)
class Card:
    """A GPU by its data sheet: bytes, bytes a second, dense bfloat16 operations a second."""

    name: str
    memory: float
    bandwidth: float
    peak: float


@dataclass(frozen=True)
class Task:
    """What a rollout asks for, assumed."""

    name: str
    calls: int
    prompt: int
    """Tokens of a prompt, mean over calls."""
    own: int
    """Of these, those that no earlier call has had."""
    completion: int
    dev: int
    """Examples of the dev split."""

    @property
    def context(self) -> int:
        """Prompt and completion."""
        return self.prompt + self.completion

    @property
    def packed(self) -> float:
        """Tokens computed for a call where a micro-batch holds what its calls share once: scoring, without dropout."""
        shared = self.prompt - self.own
        return TRAIN_TOKENS / max(1.0, (TRAIN_TOKENS - shared) / (self.own + self.completion))


MODELS = (
    Model("Qwen3-8B", 36, 4096, 12288, 4096, 1024, 151_936, True),
    Model("Llama-3.1-8B", 32, 4096, 14336, 4096, 1024, 128_256, False),
)
CARDS = (Card("H100", 80e9, 3.35e12, 989e12), Card("H200", 141e9, 4.8e12, 989e12))
TASKS = (
    Task("Banking77", 1, 2000, 50, 200, 500),
    Task("4-hop retrieval", 8, 1800, 1600, 200, 100),
)


@dataclass(frozen=True)
class Seconds:
    """What one iteration takes on one card."""

    sampling: float
    evaluating: float
    scoring: float
    """The logprobs stage: pi_0, as dropout is on, and the base, which the KL is to."""
    training: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.sampling + self.evaluating + self.scoring + self.training

    def on(self, cards: int) -> float:
        """With sampling, evaluating and training shared by several cards; scoring is one process."""
        return self.scoring + (self.total - self.scoring) / cards


def seconds(model: Model, card: Card, task: Task) -> Seconds:
    """One iteration of the shipped recipe."""
    calls = EXAMPLES * ROLLOUTS * task.calls
    reached = card.peak * PEAK_REACHED
    return Seconds(
        sampling=_sampled(model, card, task, calls),
        evaluating=_sampled(model, card, task, task.dev * task.calls),
        scoring=2 * calls * task.packed * model.flops(task.context, backward=False) / reached,
        training=calls * task.context * model.flops(task.context, backward=True) / reached,
    )


def _sampled(model: Model, card: Card, task: Task, calls: int) -> float:
    """A decoding step reads the weights once, and the keys and values of every call in flight."""
    held = CONCURRENCY * (task.prompt + task.completion / 2) * model.kv_bytes
    step = (2 * model.weights + held) / (card.bandwidth * BANDWIDTH_REACHED)
    decoding = calls * task.completion / CONCURRENCY * step
    return decoding + calls * task.own * model.flops(task.context, backward=False) / (card.peak * PEAK_REACHED)


def memory_lines() -> Iterator[str]:
    """Rows of the memory table, in gigabytes (1e9 bytes)."""
    for model in MODELS:
        weights, adapter = 2 * model.weights / 1e9, 16 * model.adapter / 1e9
        activations = TRAIN_TOKENS * model.activation_bytes / 1e9
        held = [(SHARE * card.memory - 2 * model.weights - 5e9) / model.kv_bytes for card in CARDS]
        yield (
            f"| {model.name} | {weights:.1f} | {model.adapter / 1e6:.1f} M, {adapter:.1f} | "
            f"{activations:.0f} | {weights + adapter + activations + 3:.0f} | {model.kv_bytes // 1024} KiB | "
            f"{held[0] / 1e3:.0f} k, {held[1] / 1e3:.0f} k |"
        )


def time_lines(*cards_: Card) -> Iterator[str]:
    """Rows of the table of times."""
    for task in TASKS:
        for model in MODELS:
            for card in cards_:
                one = seconds(model, card, task)
                parts = " | ".join(f"{part:,.0f}" for part in (one.sampling, one.evaluating, one.scoring, one.training))
                hours = " | ".join(f"{ITERATIONS * one.on(cards) / 3600:.1f}" for cards in (1, 2))
                yield f"| {task.name} | {model.name} | {card.name} | {parts} | {hours} |"


if __name__ == "__main__":
    print("\n".join([*memory_lines(), "", *time_lines(*CARDS)]))
