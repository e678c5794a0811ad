"""The sections of the recipe that the trainer reads: adapter and train."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from schemas.sections import Positive, Section, Share


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
    truncated_sampling: Literal["refuse", "renormalised"] = "refuse"
    """What is done with members that were sampled with top_p below 1 or with top_k. mu has no mass on the tokens that
    were cut, so that no ratio to it can say what pi_0 would have done there. `renormalised` takes mu as it was logged,
    renormalised over the tokens that were kept: rho is right for what was sampled, and biased where pi_0 puts mass
    outside. On fresh data rho is then the mass that was kept, at most 1 (at least top_p, with top_p alone), and nothing
    is learned of tokens that were cut. `rho_level = "sequence"` is refused with it: over a completion the product of
    the masses comes to nothing."""
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
    teacher_mu: Literal["same_prompt", "any_prompt"] = "same_prompt"
    """Whose logged log-probabilities are a teacher's mu. `same_prompt`: those of a teacher that was sent the student's
    own prompt, as an adapter is; all others are trained as likelihood. `any_prompt`: also those that were logged under
    a prompt of the teacher's own. They are the density that the completion was drawn from, so that rho is right, but
    far from 1: it varies much, and lowers the effective sample size."""
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
