"""Which of float32 and bfloat16 a machine computes fast: what `auto` in a recipe stands for there."""

from __future__ import annotations

from typing import Literal

FAST_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")
"""CPU features under one of which bfloat16 beats float32; without them it is many times slower."""


def fast_dtype(device: Literal["auto", "cpu", "cuda"]) -> Literal["float32", "bfloat16"]:
    """bfloat16 where the device has units for it, else float32.

    Args:
        device: as in the execution settings; `auto` is the GPU where there is one.
    """
    import torch

    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    able = torch.cpu.get_capabilities()
    return "bfloat16" if any(able.get(name) for name in FAST_BFLOAT16) else "float32"
