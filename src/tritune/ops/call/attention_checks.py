"""Checks that the attention ops share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from tritune.ops.call.checks import Check

LARGEST_HEAD = 256


def check_options(
    check: Check, scale: float | None, window: int | None, softcap: float | None
) -> None:
    for name, value in (("scale", scale), ("window", window), ("softcap", softcap)):
        if isinstance(value, str | bytes | complex):
            check.fail(f"{name} is {value!r}, allowed: a number")
            return
    if scale is not None and not math.isfinite(scale):
        check.fail(f"scale is {scale}, allowed: a finite number")
    if window is not None and window < 1:
        check.fail(f"window is {window}, allowed: 1 and more, or None")
    if softcap is not None and not 0 < softcap < math.inf:
        check.fail(f"softcap is {softcap}, allowed: more than 0, or None")


def check_per_head(check: Check, heads: int | None, **tensors: torch.Tensor | None) -> None:
    """Check that tensors have a number for each head; `heads` is None if that is not known."""
    for name, tensor in tensors.items():
        if tensor is None or not check.tensor(name, tensor, 1) or heads is None:
            continue
        if tensor.shape[0] != heads:
            check.fail(
                f"{name} has {tensor.shape[0]} entries, allowed: one for each of q's {heads} heads"
            )


def check_heads(
    check: Check, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_heads: int, kind: str = ""
) -> None:
    """Check the number of heads, in q's dimension 1, and their sizes.

    `kind` is what follows k and v in the names of the arguments.
    """
    heads = q.shape[1]
    if kv_heads == 0 or heads % kv_heads != 0:
        check.fail(f"q has {heads} heads and k{kind} {kv_heads}, allowed: a multiple of k{kind}'s")
    if q.shape[-1] != k.shape[-1]:
        check.fail(
            f"q has a head size of {q.shape[-1]} and k{kind} of {k.shape[-1]}, allowed: the same"
        )
    for name, tensor in (("q", q), (f"v{kind}", v)):
        if not 1 <= tensor.shape[-1] <= LARGEST_HEAD:
            check.fail(
                f"{name} has a head size of {tensor.shape[-1]}, allowed: 1 to {LARGEST_HEAD}"
            )


def wrong_starts(
    name: str, starts: Sequence[int], tokens: int, longest: int | None = None
) -> list[str]:
    """Return why cumulative lengths, cu_seqlens_`name`, do not fit the tokens."""
    reasons = []
    if starts[0] != 0 or starts[-1] != tokens:
        reasons.append(
            f"cu_seqlens_{name} goes from {starts[0]} to {starts[-1]}, allowed: from 0 to {tokens},"
            " the number of tokens"
        )
    lengths = [b - a for a, b in itertools.pairwise(starts)]
    if min(lengths, default=0) < 0:
        reasons.append(f"cu_seqlens_{name} decreases")
    if longest is not None and max(lengths, default=0) > longest:
        reasons.append(
            f"max_seqlen_{name} is {longest}, allowed: at least the longest length, {max(lengths)}"
        )
    return reasons
