"""The trainer: objective, batch plan, packed forward, LoRA and its optimizer, on TRL's GRPO loss."""

import warnings

# TRL says which vLLM its own generation was tested with. Nothing here generates with TRL.
warnings.filterwarnings("ignore", message="TRL currently supports vLLM versions")
