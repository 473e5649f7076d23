"""Problems of attention calls, and what else a launch derives from shapes and strides."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton.language as tl
from triton import next_power_of_2

from tritune.dtypes import dtype_name
from tritune.kernels.attention import AttentionProblem
from tritune.kernels.paged_attention import PagedAttentionProblem
from tritune.ops.call.folding import Strides

#: The largest block of keys: offsets within one are kept in 32 bits where these suffice.
LARGEST_BLOCK = 256


class Options(NamedTuple):
    """The arguments of a call that select code in the kernel."""

    causal: bool
    window: int | None
    softcap: bool
    alibi: bool
    mask: str = "none"
    sinks: bool = False

    def within(self, keys: int) -> Options:
        """Apply the number of keys: a window makes it causal, and one of all keys is none."""
        if self.window is None:
            return self
        return self._replace(causal=True, window=self.window if self.window < keys else None)


class Lengths(NamedTuple):
    """The number of sequences, and the length of each, or the longest."""

    batch: int
    queries: int
    keys: int


class LaunchFacts(NamedTuple):
    """The facts that a launch needs beside the tensors and the config."""

    problem: AttentionProblem
    options: Options
    #: Strides by (batch, head, token, dim).
    q: Strides
    k: Strides
    v: Strides
    #: The type of offsets within a block of keys.
    offset: tl.dtype
    #: True if tensor descriptors can describe k and v.
    describable: bool


@functools.lru_cache(maxsize=4096)
def launch_facts(
    lengths: Lengths,
    packed: bool,
    dtype: torch.dtype,
    heads: tuple[int, int],
    sizes: tuple[int, int],
    strides: tuple[Strides, Strides, Strides],
    options: Options,
) -> LaunchFacts:
    """Return the facts; `heads` are those of queries and of keys, `sizes` a head's of k and v."""
    q, k, v = (_with_batch(each) if packed else each for each in strides)
    options = options.within(lengths.keys)
    problem = AttentionProblem(
        batch=next_power_of_2(lengths.batch),
        heads=heads[0],
        group=heads[0] // heads[1],
        queries=next_power_of_2(lengths.queries),
        keys=next_power_of_2(lengths.keys),
        head_size=sizes[0],
        value_size=sizes[1],
        dtype=dtype_name(dtype),
        causal=options.causal,
        window=next_power_of_2(options.window or 0),
        softcap=options.softcap,
        mask=options.mask,
        alibi=options.alibi,
        packed=packed,
    )
    reach = LARGEST_BLOCK * max(sum(k[2:]), sum(v[2:]))
    offset = tl.int64 if reach >= 2**31 else tl.int32
    describable = _describable(k, dtype) and _describable(v, dtype)
    return LaunchFacts(problem, options, q, k, v, offset, describable)


@functools.lru_cache(maxsize=4096)
def paged_problem(
    tokens: int,
    sequences: int,
    pages: int,
    dtypes: tuple[torch.dtype, torch.dtype],
    heads: tuple[int, int],
    sizes: tuple[int, int],
    page_size: int,
    options: Options,
) -> tuple[PagedAttentionProblem, Options]:
    """Return the problem; `pages` are those of a sequence, `dtypes` those of queries and cache."""
    keys, queries = pages * page_size, -(-tokens // sequences)
    options = options.within(keys)
    visible = keys if options.window is None else min(keys, options.window + queries)
    problem = PagedAttentionProblem(
        dtype=dtype_name(dtypes[0]),
        kv_dtype=dtype_name(dtypes[1]),
        head_size=sizes[0],
        value_size=sizes[1],
        kv_heads=heads[1],
        group=heads[0] // heads[1],
        page_size=page_size,
        queries=next_power_of_2(queries),
        sequences=next_power_of_2(sequences),
        keys=next_power_of_2(max(visible, 1)),
        causal=options.causal,
        window=options.window is not None,
        softcap=options.softcap,
        alibi=options.alibi,
        sinks=options.sinks,
    )
    return problem, options


def default_scale(q: torch.Tensor, scale: float | None) -> float:
    """Return the scale, by default 1 / sqrt(head size)."""
    return float(q.shape[-1]) ** -0.5 if scale is None else float(scale)


def _with_batch(strides: Strides) -> Strides:
    """Add the stride of a batch to those of packed tensors, (token, head, dim)."""
    token, head, dim = strides
    return (0, head, token, dim)


def _describable(strides: Strides, dtype: torch.dtype) -> bool:
    """Return whether dims are contiguous and other strides multiples of 16 bytes; 0 for a batch."""
    *others, dim = strides
    return (
        dim == 1
        and all(stride * dtype.itemsize % 16 == 0 for stride in others)
        and all(stride > 0 for stride in others[1:])
    )
