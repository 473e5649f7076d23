"""Split keys: each split writes a partial result, and a second kernel merges these."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tritune.kernels.attention_merge import MERGED_ROWS, merge_splits_kernel
from tritune.ops.call.trace import Trace, cdiv


def launch_splits(
    trace: Trace,
    launch: Callable[[torch.Tensor, torch.Tensor | None], None],
    out: torch.Tensor,
    lse: torch.Tensor | None,
    sinks: torch.Tensor | None,
    starts: torch.Tensor | None,
) -> None:
    """Launch an attention kernel and, if its config splits the keys, the merging of the splits.

    `launch` gets the tensors to write: the result and the log-sum-exp or, with splits, for each the
    softmax over its keys and log2 of the denominator, (splits, rows[, size]). out and lse are
    (batch, heads, tokens[, size]), or with starts of sequences (tokens, heads[, size]).
    """
    splits = trace.config["NUM_SPLITS"]
    if splits == 1:
        launch(out, lse)
        return
    size = out.shape[-1]
    rows = out.numel() // size
    partial = trace.scratch(splits, rows, size), trace.scratch(splits, rows)
    launch(*partial)
    strides, inner = out.stride(), 1
    if starts is None:
        inner = out.shape[2]
    else:
        strides = (strides[0], strides[1], 0, strides[2])
    trace.launch(
        merge_splits_kernel,
        (cdiv(rows, MERGED_ROWS),),
        (*partial, sinks, out, lse, starts),
        (0 if starts is None else starts.shape[0] - 1, rows, out.shape[1], inner, strides),
        SIZE=size,
        NUM_SPLITS=splits,
        ROWS=MERGED_ROWS,
    )


def contiguous(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.contiguous()
