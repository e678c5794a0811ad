"""The trainer: objective, batch plan, packed forward, LoRA and its optimizer, on TRL's GRPO loss."""
