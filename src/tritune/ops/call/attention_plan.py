"""What a launch of attention needs to know beside the tensors, worked out once for their shapes."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton.language as tl

from tritune.dtypes import dtype_name
from tritune.kernels.attention import AttentionProblem
from tritune.kernels.paged_attention import PagedAttentionProblem
from tritune.ops.call.folding import Strides

#: The largest block of keys there is: offsets within one may be kept in 32 bits or not.
LARGEST_BLOCK = 256


class Options(NamedTuple):
    """What a call asks for, as far as it makes another kernel."""

    causal: bool
    window: int | None
    softcap: bool
    alibi: bool
    mask: str = "none"
    sinks: bool = False

    def within(self, keys: int) -> Options:
        """The same for so many keys: a window ends at the query, and one of all keys is none."""
        if self.window is None:
            return self
        return self._replace(causal=True, window=self.window if self.window < keys else None)


class Lengths(NamedTuple):
    """How many sequences there are, and how long each of them is, or the longest."""

    batch: int
    queries: int
    keys: int


class Plan(NamedTuple):
    problem: AttentionProblem
    options: Options
    #: Strides by (batch, head, token, dim).
    q: Strides
    k: Strides
    v: Strides
    #: The type of offsets within a block of keys.
    offset: tl.dtype
    #: Whether k and v are such as tensor descriptors can describe.
    described: bool


@functools.lru_cache(maxsize=4096)
def plan_attention(
    lengths: Lengths,
    packed: bool,
    dtype: torch.dtype,
    heads: tuple[int, int],
    sizes: tuple[int, int],
    strides: tuple[Strides, Strides, Strides],
    options: Options,
) -> Plan:
    """`heads` are those of queries and of keys, `sizes` those of a head's keys and values."""
    q, k, v = (_by_batch(each) if packed else each for each in strides)
    options = options.within(lengths.keys)
    problem = AttentionProblem(
        batch=power_of_two(lengths.batch),
        heads=heads[0],
        group=heads[0] // heads[1],
        queries=power_of_two(lengths.queries),
        keys=power_of_two(lengths.keys),
        head_size=sizes[0],
        value_size=sizes[1],
        dtype=dtype_name(dtype),
        causal=options.causal,
        window=power_of_two(options.window or 0),
        softcap=options.softcap,
        mask=options.mask,
        alibi=options.alibi,
        packed=packed,
    )
    reach = LARGEST_BLOCK * max(sum(k[2:]), sum(v[2:]))
    return Plan(
        problem, options, q, k, v, tl.int64 if reach >= 2**31 else tl.int32,
        _describable(k, dtype) and _describable(v, dtype),
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def plan_paged(
    tokens: int,
    sequences: int,
    pages: int,
    dtypes: tuple[torch.dtype, torch.dtype],
    heads: tuple[int, int],
    sizes: tuple[int, int],
    page_size: int,
    options: Options,
) -> tuple[PagedAttentionProblem, Options]:
    """`pages` are those of a row of the block table, `dtypes` those of queries and of the cache."""
    keys, queries = pages * page_size, -(-tokens // sequences)
    options = options.within(keys)
    seen = keys if options.window is None else min(keys, options.window + queries)
    problem = PagedAttentionProblem(
        dtype=dtype_name(dtypes[0]),
        kv_dtype=dtype_name(dtypes[1]),
        head_size=sizes[0],
        value_size=sizes[1],
        kv_heads=heads[1],
        group=heads[0] // heads[1],
        page_size=page_size,
        queries=power_of_two(queries),
        sequences=power_of_two(sequences),
        keys=power_of_two(max(seen, 1)),
        causal=options.causal,
        window=options.window is not None,
        softcap=options.softcap,
        alibi=options.alibi,
        sinks=options.sinks,
    )
    return problem, options


def power_of_two(number: int) -> int:
    """The smallest power of two that is not less; 0 for 0."""
    return 1 << (number - 1).bit_length() if number else 0


def _by_batch(strides: Strides) -> Strides:
    """Packed tensors, (token, head, dim), have no batches."""
    token, head, dim = strides
    return (0, head, token, dim)


def _describable(strides: Strides, dtype: torch.dtype) -> bool:
    """Dims side by side, and everything else in steps of 16 bytes; a step of 0 is a batch of 1."""
    *steps, dim = strides
    return (
        dim == 1
        and all(step * dtype.itemsize % 16 == 0 for step in steps)
        and all(step > 0 for step in steps[1:])
    )
