"""Stable 64-bit hashes of strings and integers, vectorised: equal on every platform, thread count and version.

Built from the finaliser of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014), chained over the words of a string. Used for group ids and for seeded draws, so that a draw depends on
what it is for and never on where its row stands.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

U64 = npt.NDArray[np.uint64]
_MASK = (1 << 64) - 1


def mix(value: U64) -> U64:
    """The splitmix64 finaliser: a bijection of 64 bits under which neighbours become unrelated."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def fold(state: U64, value: npt.ArrayLike) -> U64:
    """Chain integers (taken modulo 2^64) onto a hash."""
    return mix(state ^ np.asarray(value).astype(np.uint64))


def start(seed: int, size: int) -> U64:
    """The beginning of `size` chains."""
    return mix(np.full(size, seed & _MASK, dtype=np.uint64))


def fold_strings(state: U64, texts: pl.Series) -> U64:
    """Chain strings onto hashes, eight bytes at a time, then their byte length.

    Strings of different lengths never share a chain by zero-filling: the length is part of it.
    """
    lengths = texts.str.len_bytes().to_numpy().astype(np.uint64)
    words = -(-int(lengths.max()) // 8) if len(texts) else 0
    filled = pl.select(pl.concat_str([texts, pl.lit("\0" * 8 * words)]).cast(pl.Binary)).to_series()
    for word in range(words):
        value = filled.bin.slice(8 * word, 8).bin.reinterpret(dtype=pl.UInt64, endianness="little").to_numpy()
        state = np.where(lengths > np.uint64(8 * word), fold(state, value), state)
    return fold(state, lengths)
