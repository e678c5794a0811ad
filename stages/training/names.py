"""Names of what is trained on, as the manifest and the report give them."""

from __future__ import annotations

OBJECTIVE = "mmGRPO"
REJECTION = "rejection fine-tuning"
"""Supervised training on the best member of each group."""
LIKELIHOOD = "advantage-weighted likelihood"
"""REINFORCE on data of which nobody knows what sampled them: without a ratio there is no mmGRPO."""
