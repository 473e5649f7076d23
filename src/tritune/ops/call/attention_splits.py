"""Where an attention kernel writes: its result, or those of splits, which are then merged."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tritune.kernels.attention_merge import MERGED_ROWS, merge_splits_kernel
from tritune.ops.call.launch import Steps, cdiv


class Results(NamedTuple):
    """The softmax over a split's keys, and log2 of its denominator: (splits, rows[, size])."""

    out: torch.Tensor
    lse: torch.Tensor


def split_results(steps: Steps, splits: int, rows: int, size: int) -> Results:
    """Room for the results of all splits."""
    return Results(
        steps.empty((splits, rows, size), torch.float32),
        steps.empty((splits, rows), torch.float32),
    )


def merge_splits(
    steps: Steps,
    results: Results,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    sinks: torch.Tensor | None,
    starts: torch.Tensor | None,
) -> None:
    """Merge into `out` and `lse`: (batch, heads, tokens[, size]), or with starts of sequences
    (tokens, heads[, size]).
    """
    splits, rows, size = results.out.shape
    strides, inner = out.stride(), 1
    if starts is None:
        inner = out.shape[2]
    else:
        strides = (strides[0], strides[1], 0, strides[2])
    steps.launch(
        merge_splits_kernel,
        (cdiv(rows, MERGED_ROWS),),
        (*results, sinks, out, lse, starts),
        (0 if starts is None else starts.shape[0] - 1, rows, out.shape[1], inner, strides),
        SIZE=size,
        NUM_SPLITS=splits,
        ROWS=MERGED_ROWS,
    )


def packed(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The same numbers without gaps, as kernels take those that are few."""
    return None if tensor is None else tensor.contiguous()
