"""The stages that can be run by name, in the order in which a run meets them."""

STAGES = (
    "examples",
    "program",
    "base",
    "prompts",
    "rollout",
    "teacher",
    "group",
    "logprobs",
    "train",
    "evaluate",
    "drift",
)
