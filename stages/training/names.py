"""Names of what is trained on, as the manifest and the report give them."""

from __future__ import annotations

OBJECTIVE = "mmGRPO"
REJECTION = "rejection fine-tuning"
"""Supervised training on the best member of each group."""
LIKELIHOOD = "advantage-weighted likelihood"
"""REINFORCE on data of which nobody knows what sampled them: without a ratio there is no mmGRPO."""

LEFT_OUT = {
    "no_completion": "the call returned no token",
    "zero_weight": "a member of weight 0, which would be in no sum",
    "ids_do_not_decode": "the recorded ids do not give back the text that the program saw",
    "likelihood_not_positive": "without a behaviour policy, and its advantage is not positive",
    "teacher_share": "a teacher's, beyond `teacher_share` of its group",
    "copy": "a copy of another member, which rejection fine-tuning does not want",
    "rejection_below_threshold": "it did not earn what rejection fine-tuning asks for",
    "rejection_not_best": "not among the best of its group",
}
"""Why a member of the group table is not trained on: what the train stage counts, and what that means."""
