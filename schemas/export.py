"""Groups joined with the tokens of their invocations: for other trainers. The stages read the narrow tables instead."""

from __future__ import annotations

import pyarrow as pa

from schemas.groups import GROUPS
from schemas.rollouts import INVOCATIONS
from schemas.table import TableSpec

TOKENS = ("messages", "completion", "prompt_ids", "completion_ids", "sampling_logprobs", "finish_reason", "temperature")

GROUPS_WITH_TOKENS = TableSpec(
    name="groups_with_tokens",
    version=1,
    schema=pa.schema([*GROUPS.schema, *(INVOCATIONS.schema.field(name) for name in TOKENS)]),
    key=GROUPS.key,
    rules=GROUPS.rules,
)
