"""Attention by its definition, for some rows and heads, and the keys that a query sees."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from tritune.kernels.attention import attention_reference
from tritune.workloads.reference.compared import Part, every_nth, indices_of

#: Scores (of a query, a key, a head) whose reference takes a fraction of a second. Most CPUs have
#: no instructions for half precision.
_SCORES = {torch.float32: 2**24, torch.float16: 2**22, torch.bfloat16: 2**22}
#: Converting the keys and values of a sequence takes as long as this many of its queries.
_CONVERSION = 8
#: The most elements in memory at once.
CHUNK = 2**25
#: No two rows that are compared are further apart than this, so that each larger tile has one.
ROW_STEP = 31

#: The softcap of problems that have one, as in Gemma 2.
SOFTCAP = 50.0


def attention_flags(
    heads: int, device: torch.device, softcap: bool, alibi: bool, sinks: bool = False
) -> dict[str, Any]:
    """Return the arguments that change the scores: softcap, ALiBi slopes, sinks."""
    flags: dict[str, Any] = {}
    if softcap:
        flags["softcap"] = SOFTCAP
    if alibi:
        powers = torch.arange(1, heads + 1, dtype=torch.float32, device=device)
        flags["alibi_slopes"] = torch.exp2(powers * (-8.0 / heads))
    if sinks:
        flags["sinks"] = torch.linspace(-1.0, 1.0, heads, device=device)
    return flags


def visible_pairs(queries: int, keys: int, causal: bool, window: int | None) -> int:
    """Count the pairs of a query and a key that it sees, in one head."""
    if not causal:
        return queries * keys
    return _seen_before(keys, window) - _seen_before(keys - queries, window)


def _seen_before(position: int, window: int | None) -> int:
    """Count the keys that the queries at all positions below this one see."""
    n = max(position, 0)
    w = n if window is None else min(window, n)
    return w * (w + 1) // 2 + (n - w) * w


def keys_read(queries: int, keys: int, window: int | None) -> int:
    """Count the keys that any query sees."""
    return keys if window is None else min(keys, queries + window - 1)


def excess(queries: int, sequences: int, heads: int, keys: int, dtype: torch.dtype) -> float:
    """Return how many times longer than allowed the reference of all queries and heads takes."""
    rows = queries + _CONVERSION * min(sequences, queries)
    return rows * heads * keys / _SCORES[dtype]


def packed_part(queries: int, sequences: int, heads: int, keys: int, dtype: torch.dtype) -> Part:
    """Select some tokens and some heads of packed sequences."""
    # Where sequences have few tokens each, not all of them are compared.
    most = max(ROW_STEP, sequences)
    rows = every_nth(queries, excess(queries, sequences, heads, keys, dtype), most)
    left = excess(len(indices_of(rows, queries)), sequences, heads, keys, dtype)
    return rows, every_nth(heads, left, heads // 2)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    heads: range,
    positions: torch.Tensor,
    inputs: dict[str, Any],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Compute attention of one sequence's rows, (heads, rows, size), for some of q's heads.

    q has rows and all heads, (rows, heads, size); k and v have all keys, (keys, KV heads, size).
    Row i stands at the key `positions[i]`, the last that it may see if it is causal; a mask in the
    inputs has these rows only.
    """
    group = q.shape[1] // k.shape[1]
    distance = torch.arange(k.shape[0], device=q.device) - positions[:, None]
    common = torch.zeros(distance.shape, dtype=dtype, device=q.device)
    if inputs.get("mask") is not None:
        common = with_mask(common, inputs["mask"][0, 0])
    hidden = hidden_keys(distance, inputs)
    if hidden is not None:
        common = common.masked_fill(hidden, -math.inf)
    slopes, sinks = inputs.get("alibi_slopes"), inputs.get("sinks")
    results = []
    for some in _chunks(heads, k.shape[0] * (q.shape[0] + k.shape[2])):
        own = torch.tensor(some, device=q.device)
        bias = common
        if slopes is not None:
            bias = common + slopes[own].to(dtype)[:, None, None] * distance
        out, _ = attention_reference(
            *(
                t.transpose(0, 1)[None].to(dtype)
                for t in (q[:, own], k[:, own // group], v[:, own // group])
            ),
            softcap=inputs.get("softcap"),
            mask=bias,
            sinks=None if sinks is None else sinks[own],
        )
        results.append(out[0])
    return torch.cat(results)


def attend_packed(
    keys_values: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
    part: Part,
    inputs: dict[str, Any],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Compute attention of packed sequences for some tokens and heads, (tokens, heads, size).

    `keys_values` gives the keys and values of a sequence, (keys, KV heads, size).
    """
    q, (tokens, heads) = inputs["q"], part
    out = []
    for number, (start, stop) in enumerate(itertools.pairwise(inputs["cu_seqlens_q"].tolist())):
        chosen = [row for row in indices_of(tokens, q.shape[0]) if start <= row < stop]
        if chosen:
            k, v = keys_values(number)
            rows = torch.tensor(chosen, device=q.device)
            # The last query is at the last key.
            positions = rows - stop + k.shape[0]
            some = indices_of(heads, q.shape[1])
            out.append(attend(q[rows], k, v, some, positions, inputs, dtype).transpose(0, 1))
    return torch.cat(out)


def _chunks(heads: range, elements: int) -> list[list[int]]:
    """Split heads into chunks that fit into memory, if each head takes so many elements."""
    count = max(1, CHUNK // elements)
    return [list(heads[i : i + count]) for i in range(0, len(heads), count)]


def hidden_keys(distance: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor | None:
    """Return the mask of the keys that are not seen, by their distance from the query; or None."""
    window = inputs.get("window")
    if window is not None:
        return (distance > 0) | (distance <= -window)
    return distance > 0 if inputs["causal"] else None


def with_mask(bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Add a boolean or an additive mask to a bias."""
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, -math.inf)
    return bias + mask.to(bias.dtype)
