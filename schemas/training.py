"""What the train stage writes beside the adapter: its batch plan, its steps, and log-probabilities."""

from __future__ import annotations

import pyarrow as pa

from schemas.table import TableSpec, column, finite_lists, not_negative

BATCH_PLAN = TableSpec(
    name="batch_plan",
    version=1,
    schema=pa.schema(
        [
            column("step", pa.int32()),  # optimizer step within this stage, from 0
            column("epoch", pa.int32()),
            column("position", pa.int32()),  # order of the group within its step
            column("example_id", pa.string()),
            column("group_id", pa.string()),
        ]
    ),
    key=("step", "position"),
    rules=(not_negative("step"),),
)

TRAINED = TableSpec(
    name="trained",
    version=1,
    schema=pa.schema(
        [
            column("group_id", pa.string()),
            column("rollout_id", pa.string()),
            column("call_index", pa.int32()),
            column("members", pa.int32()),  # how often the call stands among the group's trained members
        ]
    ),
    key=("group_id", "rollout_id", "call_index"),
    rules=(not_negative("members"),),
)
"""The members that a train stage admitted. Others of the group table moved nothing: the manifest counts them."""

LOGPROBS = TableSpec(
    name="logprobs",
    version=1,
    schema=pa.schema(
        [
            column("rollout_id", pa.string()),
            column("call_index", pa.int32()),
            column("policy", pa.string()),
            column("logprobs", pa.list_(pa.float32())),
        ]
    ),
    key=("rollout_id", "call_index", "policy"),
    rules=(finite_lists("logprobs"),),
)

STEPS = TableSpec(
    name="steps",
    version=3,
    schema=pa.schema(
        [
            column("step", pa.int32()),  # step of the run's batch plans, counted over iterations
            column("adapter", pa.string()),  # the adapter that took it; "shared" where all modules share one
            column("loss", pa.float64()),
            column("learning_rate", pa.float64()),
            column("grad_norm", pa.float64(), null=True),
            column("reward", pa.float64()),  # mean over the step's members
            column("advantage_abs", pa.float64()),
            column("kl_old", pa.float64(), null=True),  # k3 estimate of KL(pi_0 || theta), per token
            column("kl_ref", pa.float64(), null=True),  # null when beta is 0
            column("entropy", pa.float64(), null=True),  # mean per completion token, nats
            column("clip_share", pa.float64(), null=True),  # share of tokens whose ratio was clipped
            column("ess", pa.float64(), null=True),  # effective sample size of pi_0/mu, as a share in (0, 1]
            # The trainer's log-probabilities against the engine's logged ones of the same policy:
            column("mismatch_ess", pa.float64(), null=True),  # effective sample size of their ratio
            column("mismatch_mean", pa.float64(), null=True),  # mean |difference| of a token, nats
            column("mismatch_p99", pa.float64(), null=True),  # what 99 % of the tokens do not exceed
            column("mismatch_max", pa.float64(), null=True),  # the largest
            column("rho_cut", pa.float64(), null=True),  # share of tokens whose rho lay above `rho_max`
            column("members", pa.int32()),
            column("groups", pa.int32()),
            column("completion_tokens", pa.int64()),
            column("row_tokens", pa.int64()),  # tokens of the unpacked rows
            column("forward_tokens", pa.int64()),  # tokens really computed
        ]
    ),
    key=("step", "adapter"),
)

RATIO_EDGES = (0.1, 0.5, 0.8, 0.9, 0.95, 0.99, 1.01, 1.05, 1.1, 1.2, 2.0, 10.0)
"""Edges of the bins of ratios: the first bin lies below the first edge, the last from the last one up."""

AGES = TableSpec(
    name="ages",
    version=1,
    schema=pa.schema(
        [
            column("step", pa.int32()),
            column("adapter", pa.string()),
            column("age", pa.int32(), null=True),  # policies of the run newer than mu; null: mu is not of the run
            column("members", pa.int32()),
            column("completion_tokens", pa.int64()),
            column("ess", pa.float64(), null=True),  # of pi_0/mu over these members
            column("clip_share", pa.float64(), null=True),
            column("kl_k1", pa.float64()),  # estimates of KL(pi_0 || theta), per token
            column("kl_k3", pa.float64()),
            column("entropy", pa.float64()),
            column("ratio_histogram", pa.list_(pa.int64())),  # tokens by pi_theta/pi_0, bins of RATIO_EDGES
            column("rho_histogram", pa.list_(pa.int64()), null=True),  # tokens by rho, as bounded
        ]
    ),
    key=("step", "adapter", "age"),
)

MODULES = TableSpec(
    name="modules",
    version=1,
    schema=pa.schema(
        [
            column("step", pa.int32()),
            column("adapter", pa.string()),
            column("module", pa.string()),
            column("members", pa.int32()),  # calls
            column("completion_tokens", pa.int64()),
            column("grad_norm", pa.float64(), null=True),  # before clipping; null where modules are not taken apart
        ]
    ),
    key=("step", "adapter", "module"),
)
