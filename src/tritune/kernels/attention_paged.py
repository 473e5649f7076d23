"""Attention over a KV cache that lies in pages: prefill, decode and both in one launch.

Queries of all sequences are packed: sequence s owns the tokens cu_seqlens_q[s] to
cu_seqlens_q[s + 1]. Its keys 0 to seq_lens[s] lie in the cache, key n in slot n % PAGE_SIZE of
page block_table[s, n // PAGE_SIZE]. The last query is at the last key.

The GROUP query heads that share a KV head see the same keys, so a program takes them together: it
works on BLOCK_M *rows*, where row r of a sequence is query r // GROUP under head r % GROUP of the
group. The keys of a sequence may be dealt out to NUM_SPLITS programs, each of which then writes its
own softmax and its log-sum-exp; a second kernel merges them.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from tritune.kernels.attention_prefill import attention_varlen_reference
from tritune.kernels.kernel import Kernel, Problem
from tritune.space import Config, Parameter, Space, Value

LOG2_E = tl.constexpr(math.log2(math.e))

#: Where a running maximum begins. Unlike -inf it can be subtracted from itself, so rows that have
#: seen no key need no care: their weights are exp2(-inf - LOWEST) = 0.
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def _sequence_of(cu_seqlens_q_ptr, num_seqs, block, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """The sequence that a block of rows belongs to, and the number of its first block.

    Sequence s begins at block cu_seqlens_q[s] * GROUP // BLOCK_M + s. That leaves each sequence as
    many blocks as it needs or one more, and can be computed for any s without a look at the others,
    so that a binary search finds it in a grid whose size does not depend on the lengths.
    """
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        begins = tl.load(cu_seqlens_q_ptr + middle).to(tl.int32) * GROUP // BLOCK_M + middle
        low = tl.where(begins <= block, middle + 1, low)
        high = tl.where(begins <= block, high, middle)
    sequence = low - 1
    first = tl.load(cu_seqlens_q_ptr + sequence).to(tl.int32) * GROUP // BLOCK_M + sequence
    return sequence, first


@triton.jit
def _as_dtype(x, dtype: tl.constexpr, E4M3_BITS: tl.constexpr):
    """Cached values in the dtype of the product; every int8 and fp8 is exact in fp16 and bf16."""
    if E4M3_BITS:
        # Shifted into the places of an fp16, the exponent is read with a bias of 15 instead of 7.
        bits = ((x & 0x80).to(tl.uint16) << 8) | ((x & 0x7F).to(tl.uint16) << 7)
        x = bits.to(tl.float16, bitcast=True) * 256.0
    return x.to(dtype)


@triton.jit
def _key_rows(
    table_ptr, table_stride, start, keys, lowest, end,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The page and the slot of each key of a tile."""
    if PAGE_SIZE % BLOCK_N == 0:
        # The tile lies in one page. Its first key is visited, so its page is one that exists.
        first = tl.maximum(start, lowest)
        page = tl.load(table_ptr + (first // PAGE_SIZE).to(tl.int64) * table_stride).to(tl.int64)
        return page, start % PAGE_SIZE + tl.arange(0, BLOCK_N)
    else:
        place = table_ptr + (keys // PAGE_SIZE).to(tl.int64) * table_stride
        if MASKED:
            page = tl.load(place, mask=(keys >= lowest) & (keys < end), other=0).to(tl.int64)
        else:
            page = tl.load(place).to(tl.int64)
        return page, keys % PAGE_SIZE


@triton.jit
def _load(ptr, rows, dims, MASKED: tl.constexpr, PADDED: tl.constexpr):
    """A tile; rows and dims that are masked off are zero, and are not read.

    MASKED: some rows may be; PADDED: some dims are. What is neither costs no registers for a mask.
    """
    if MASKED and PADDED:
        return tl.load(ptr, mask=rows & dims, other=0.0)
    elif MASKED:
        return tl.load(ptr, mask=rows, other=0.0)
    elif PADDED:
        return tl.load(ptr, mask=dims, other=0.0)
    else:
        return tl.load(ptr)


@triton.jit
def _visit_keys(
    acc, row_max, row_sum, q, k_ptr, v_ptr, table_ptr, first, lowest, end, positions, slopes,
    score_scale, window, softcap, table_stride, k_strides, v_strides,
    SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, PAGE_SIZE: tl.constexpr, CAUSAL: tl.constexpr,
    E4M3_BITS: tl.constexpr, MASKED: tl.constexpr, PRE_LOAD_V: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Fold the keys first..end into the running softmax; MASKED where some may be out of sight.

    `first` is a multiple of BLOCK_N; keys below `lowest` are not touched. Scores are in units of
    log2: `score_scale` (or `softcap`, where there is one) and `slopes` have log2(e) in them.
    """
    dims = tl.arange(0, BLOCK_D)
    value_dims = tl.arange(0, BLOCK_DV)
    k_inside = dims[:, None] < SIZE
    v_inside = value_dims[None, :] < VALUE_SIZE
    for start in range(first, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        pages, slots = _key_rows(
            table_ptr, table_stride, start, keys, lowest, end, PAGE_SIZE, BLOCK_N, MASKED
        )
        k_rows = pages * k_strides[0] + slots.to(tl.int64) * k_strides[1]
        v_rows = pages * v_strides[0] + slots.to(tl.int64) * v_strides[1]
        # K is read as its transpose, [BLOCK_D, BLOCK_N], which is what the product wants.
        k_places = k_ptr + k_rows[None, :] + dims[:, None].to(tl.int64) * k_strides[3]
        v_places = v_ptr + v_rows[:, None] + value_dims[None, :].to(tl.int64) * v_strides[3]
        touched = (keys >= lowest) & (keys < end)
        k = _load(k_places, touched[None, :], k_inside, MASKED, SIZE < BLOCK_D)
        if PRE_LOAD_V:
            v = _load(v_places, touched[:, None], v_inside, MASKED, VALUE_SIZE < BLOCK_DV)
        scores = tl.dot(q, _as_dtype(k, q.dtype, E4M3_BITS), input_precision="ieee") * score_scale
        if softcap is not None:
            scores = softcap * libdevice.tanh(scores)
        if slopes is not None:
            scores += slopes[:, None] * (keys[None, :] - positions[:, None]).to(tl.float32)
        if MASKED:
            visible = touched[None, :]
            if CAUSAL:
                visible = visible & (keys[None, :] <= positions[:, None])
            if window is not None:
                visible = visible & (keys[None, :] > positions[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))

        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_max[:, None])
        shrink = tl.exp2(row_max - new_max)
        row_sum = row_sum * shrink + tl.sum(weights, axis=1)
        row_max = new_max
        if not PRE_LOAD_V:
            v = _load(v_places, touched[:, None], v_inside, MASKED, VALUE_SIZE < BLOCK_DV)
        acc = tl.dot(
            weights.to(q.dtype),
            _as_dtype(v, q.dtype, E4M3_BITS),
            acc * shrink[:, None],
            input_precision="ieee",
        )
    return acc, row_max, row_sum


@triton.jit(do_not_specialize=["num_seqs", "window", "lse_split_stride", "table_strides"])
def paged_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, block_table_ptr, seq_lens_ptr, cu_seqlens_q_ptr,
    slopes_ptr, sinks_ptr, k_scale_ptr, v_scale_ptr, num_seqs, scale, window, softcap,
    q_strides, k_strides, v_strides, out_strides, lse_split_stride, table_strides, scale_strides,
    GROUP: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr, E4M3_BITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_SPLITS: tl.constexpr,
    PRE_LOAD_V: tl.constexpr, PEEL: tl.constexpr,
):  # fmt: skip
    """softmax(q k^T scale) v for BLOCK_M rows of one sequence, one KV head, one share of the keys.

    With one split, `out` is the result. With more, out[split] is the softmax over the split's own
    keys and lse[split] the log2 of the sum that it was divided by. What is absent is None: window,
    softcap, slopes, sinks and the cache's scales. E4M3_BITS: the cache's bytes are fp8 numbers of a
    format that the device does not know. Strides are (token, head, dim) of q and (split, token,
    head, dim) of out, (page, slot, KV head, dim) of the caches, (sequence, page) of the table.
    """
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    sequence, first_block = _sequence_of(cu_seqlens_q_ptr, num_seqs, block, GROUP, BLOCK_M)
    first_token = tl.load(cu_seqlens_q_ptr + sequence).to(tl.int32)
    num_queries = tl.load(cu_seqlens_q_ptr + sequence + 1).to(tl.int32) - first_token
    first_row = (block - first_block) * BLOCK_M
    if first_row >= num_queries * GROUP:
        return
    num_keys = tl.load(seq_lens_ptr + sequence).to(tl.int32)

    rows = first_row + tl.arange(0, BLOCK_M)
    queries = rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    tokens = (first_token + queries).to(tl.int64)
    real = queries < num_queries
    positions = num_keys - num_queries + queries

    # The keys that any of the rows sees, and where those begin that only some of them see.
    first_position = num_keys - num_queries + first_row // GROUP
    last_query = tl.minimum((first_row + BLOCK_M - 1) // GROUP, num_queries - 1)
    lowest = 0
    end = num_keys
    seen_by_all = num_keys
    if CAUSAL:
        end = num_keys - num_queries + last_query + 1
        seen_by_all = tl.maximum(first_position + 1, 0)
    if window is not None:
        lowest = tl.maximum(first_position - window + 1, 0)
    first_tile = lowest // BLOCK_N
    if NUM_SPLITS > 1:
        share = tl.cdiv(tl.maximum(tl.cdiv(end, BLOCK_N) - first_tile, 0), NUM_SPLITS)
        first_tile += split * share
        end = tl.minimum(end, (first_tile + share) * BLOCK_N)
    first = first_tile * BLOCK_N
    lowest = tl.maximum(lowest, first)

    q_ptr += tokens[:, None] * q_strides[0] + heads[:, None].to(tl.int64) * q_strides[1]
    dims = tl.arange(0, BLOCK_D)
    q_ptr += dims[None, :].to(tl.int64) * q_strides[2]
    q = _load(q_ptr, real[:, None], dims[None, :] < SIZE, True, SIZE < BLOCK_D)

    score_scale = scale.to(tl.float32)
    if k_scale_ptr is not None:
        score_scale *= tl.load(k_scale_ptr + kv_head * scale_strides[0]).to(tl.float32)
    if softcap is not None:
        score_scale /= softcap.to(tl.float32)
        softcap = softcap.to(tl.float32) * LOG2_E
    else:
        score_scale *= LOG2_E
    slopes = None
    if slopes_ptr is not None:
        slopes = tl.load(slopes_ptr + heads, mask=real, other=0.0).to(tl.float32) * LOG2_E

    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    row_max = tl.full([BLOCK_M], LOWEST, tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    if sinks_ptr is not None and NUM_SPLITS == 1:
        # A sink is a key without a value: the softmax begins with it.
        sinks = tl.load(sinks_ptr + heads, mask=real, other=0.0).to(tl.float32) * LOG2_E
        row_max = tl.maximum(sinks, LOWEST)
        row_sum = tl.exp2(sinks - row_max)

    table_ptr = block_table_ptr + sequence.to(tl.int64) * table_strides[0]
    k_ptr += kv_head.to(tl.int64) * k_strides[2]
    v_ptr += kv_head.to(tl.int64) * v_strides[2]
    masked_from = first
    if PEEL and window is None:
        # Blocks of keys that every row sees need no mask: they come first.
        masked_from = tl.maximum(tl.minimum(seen_by_all, end) // BLOCK_N * BLOCK_N, first)
        acc, row_max, row_sum = _visit_keys(
            acc, row_max, row_sum, q, k_ptr, v_ptr, table_ptr, first, lowest, masked_from,
            positions, slopes, score_scale, window, softcap, table_strides[1], k_strides, v_strides,
            SIZE, VALUE_SIZE, PAGE_SIZE, CAUSAL, E4M3_BITS, False, PRE_LOAD_V,
            BLOCK_N, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
    acc, row_max, row_sum = _visit_keys(
        acc, row_max, row_sum, q, k_ptr, v_ptr, table_ptr, masked_from, lowest, end,
        positions, slopes, score_scale, window, softcap, table_strides[1], k_strides, v_strides,
        SIZE, VALUE_SIZE, PAGE_SIZE, CAUSAL, E4M3_BITS, True, PRE_LOAD_V,
        BLOCK_N, BLOCK_D, BLOCK_DV,
    )  # fmt: skip

    # A row that saw nothing has a sum of 0; its result is 0.
    out = acc / tl.where(row_sum > 0, row_sum, 1.0)[:, None]
    if v_scale_ptr is not None:
        out *= tl.load(v_scale_ptr + kv_head * scale_strides[1]).to(tl.float32)
    value_dims = tl.arange(0, BLOCK_DV)
    out_inside = real[:, None]
    if VALUE_SIZE < BLOCK_DV:
        out_inside = out_inside & (value_dims[None, :] < VALUE_SIZE)
    out_ptr += tokens[:, None] * out_strides[1] + heads[:, None].to(tl.int64) * out_strides[2]
    if NUM_SPLITS > 1:
        lse = tl.where(row_sum == 0, float("-inf"), row_max + tl.log2(row_sum))
        lse_ptr += split.to(tl.int64) * lse_split_stride + kv_head * GROUP
        num_heads = tl.num_programs(1) * GROUP
        tl.store(lse_ptr + tokens * num_heads + rows % GROUP, lse, mask=real)
        out_ptr += split.to(tl.int64) * out_strides[0]
        # Nobody reads the result of a split without keys.
        out_inside = out_inside & (first < end)
    out_ptr += value_dims[None, :].to(tl.int64) * out_strides[3]
    tl.store(out_ptr, out.to(out_ptr.dtype.element_ty), mask=out_inside)


@triton.jit(do_not_specialize=["num_seqs", "num_rows", "num_heads"])
def merge_splits_kernel(
    partial_ptr, lse_ptr, sinks_ptr, out_ptr, cu_seqlens_q_ptr, num_seqs, num_rows, num_heads,
    out_strides, VALUE_SIZE: tl.constexpr, NUM_SPLITS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """The softmax over all keys from those over each split's own; a row is a token and a head.

    With s_i = log2 of split i's sum, out = sum_i 2^s_i partial_i / (sum_i 2^s_i + e^sink).
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    tokens = rows // num_heads
    heads = rows % num_heads
    real = tokens < tl.load(cu_seqlens_q_ptr + num_seqs)
    dims = tl.arange(0, BLOCK_DV)
    acc = tl.zeros([ROWS, BLOCK_DV], tl.float32)
    row_max = tl.full([ROWS], LOWEST, tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    if sinks_ptr is not None:
        sinks = tl.load(sinks_ptr + heads, mask=real, other=0.0).to(tl.float32) * LOG2_E
        row_max = tl.maximum(sinks, LOWEST)
        row_sum = tl.exp2(sinks - row_max)
    for split in range(NUM_SPLITS):
        at = split * num_rows.to(tl.int64) + rows
        lse = tl.load(lse_ptr + at, mask=real, other=float("-inf"))
        # A split without keys has written no result.
        inside = (lse > float("-inf"))[:, None] & (dims[None, :] < VALUE_SIZE)
        partial = tl.load(
            partial_ptr + at[:, None] * VALUE_SIZE + dims[None, :], mask=inside, other=0.0
        )
        new_max = tl.maximum(row_max, lse)
        weight = tl.exp2(lse - new_max)
        shrink = tl.exp2(row_max - new_max)
        acc = acc * shrink[:, None] + partial * weight[:, None]
        row_sum = row_sum * shrink + weight
        row_max = new_max
    out = acc / tl.where(row_sum > 0, row_sum, 1.0)[:, None]
    out_ptr += tokens[:, None] * out_strides[0] + heads[:, None] * out_strides[1]
    out_ptr += dims[None, :].to(tl.int64) * out_strides[2]
    out_inside = real[:, None] & (dims[None, :] < VALUE_SIZE)
    tl.store(out_ptr, out.to(out_ptr.dtype.element_ty), mask=out_inside)


@dataclass(frozen=True)
class PagedAttentionProblem(Problem):
    """Counts are rounded up to powers of two, so that one answer serves many batches."""

    dtype: str
    kv_dtype: str
    head_size: int
    value_size: int
    kv_heads: int
    group: int
    page_size: int
    #: Queries of a sequence, on average: 1 in a batch that only decodes.
    queries: int
    sequences: int
    #: How many keys the block table has room for, or fewer where a window hides the rest.
    keys: int
    causal: bool
    window: bool
    softcap: bool
    alibi: bool
    sinks: bool

    @property
    def rows(self) -> int:
        """Rows of one sequence and KV head."""
        return self.queries * self.group


_KV_TILES = "num_stages * BLOCK_N * (head_size + value_size)"
_KV_BYTES = "(4 if kv_dtype == 'float32' else 2 if kv_dtype in ('float16', 'bfloat16') else 1)"

SPACE = Space(
    parameters=(
        Parameter("BLOCK_M", (16, 32, 64, 128), ("cuda", "hip")),
        Parameter("BLOCK_M", (4, 8, 16, 32, 64, 128), ("cpu",)),
        Parameter("BLOCK_N", (16, 32, 64, 128), ("cuda", "hip")),
        Parameter("BLOCK_N", (16, 32, 64, 128, 256), ("cpu",)),
        Parameter("NUM_SPLITS", (1, 2, 4, 8, 16, 32, 64)),
        Parameter("PRE_LOAD_V", (False, True)),
        Parameter("PEEL", (False, True)),
        Parameter("num_warps", (1, 2, 4, 8), ("cuda", "hip")),
        Parameter("num_stages", (1, 2, 3, 4), ("cuda",)),
        Parameter("num_stages", (1, 2), ("hip",)),
        Parameter("waves_per_eu", (0, 1, 2, 3, 4), ("hip",)),
        Parameter("matrix_instr_nonkdim", (0, 16, 32), ("hip",)),
        Parameter("kpack", (1, 2), ("hip",)),
        Parameter("micro_m", (0, 2, 4, 6, 8), ("cpu",)),
        Parameter("micro_n", (0, 1, 2, 4), ("cpu",)),
        Parameter("unroll", (0, 2, 4), ("cpu",)),
    ),
    constraints=(
        # A program without a single whole row of work, or a split without a tile, is never best.
        "BLOCK_M <= max(16, 2 * queries * group)",
        "NUM_SPLITS == 1 or NUM_SPLITS * BLOCK_N <= keys",
        # A window leaves no tiles that all rows see.
        "not (window and PEEL)",
        # What the pipeline keeps in shared memory has to fit there.
        f"family != 'cuda' or {_KV_TILES} * {_KV_BYTES}"
        " <= 1024 * (96 if arch in (86, 89, 120, 121) else 160 if arch < 90 else 220)",
        f"family != 'hip' or {_KV_TILES} * {_KV_BYTES} <= 1024 * (160 if arch == 'gfx950' else 64)",
        # The product has to give every warp something to do.
        "num_warps <= max(4, BLOCK_M * BLOCK_N // 128)",
        "matrix_instr_nonkdim != 32 or BLOCK_M >= 32 and BLOCK_N >= 32",
        "matrix_instr_nonkdim != 32 or arch in ('gfx90a', 'gfx942', 'gfx950')",
        "kpack == 1 or arch in ('gfx90a', 'gfx942')",
        "micro_m <= max(BLOCK_M, BLOCK_N)",
    ),
)

#: How many programs keep a device busy; with fewer, the keys are split.
_PROGRAMS = {"cuda": 256, "hip": 512, "cpu": 16}
#: Fewer keys than this are not worth a program of their own.
_KEYS_PER_SPLIT = 256


def default(problem: PagedAttentionProblem, family: str, arch: int | str) -> Config:
    """Blocks as large as the rows of a sequence allow; splits where programs would be too few."""
    element_bytes = 4 if problem.dtype == "float32" else 2
    wide = max(problem.head_size, problem.value_size) * element_bytes > 256
    # A wavefront of 32 has half the registers of one of 64.
    half = family == "hip" and not str(arch).startswith("gfx9")
    smallest, largest = (8, 64) if family == "cpu" else (16, (32 if wide else 64) >> half)
    block_m = min(max(triton.next_power_of_2(problem.rows), smallest), largest)
    # The addresses of keys that lie in several pages take registers, as does converting them.
    narrow = family != "cpu" and (wide or block_m > 16 or problem.kv_dtype != problem.dtype)
    programs = problem.sequences * problem.kv_heads * triton.cdiv(problem.rows, block_m)
    splits = 1
    while (
        splits < 64
        and programs * splits < _PROGRAMS[family]
        and problem.keys >= 2 * splits * _KEYS_PER_SPLIT
    ):
        splits *= 2
    tile: dict[str, Value] = {
        "BLOCK_M": block_m,
        "BLOCK_N": 32 if narrow and not (wide and half) else 64,
        "NUM_SPLITS": splits,
        "PRE_LOAD_V": False,
        "PEEL": not problem.window and not half,
    }
    if family == "cuda":
        return Config.of(**tile, num_warps=4, num_stages=2)
    if family == "hip":
        own: dict[str, Value] = {"waves_per_eu": 0, "matrix_instr_nonkdim": 0, "kpack": 1}
        return Config.of(**tile, num_warps=8 if wide and half else 4, num_stages=1, **own)
    return Config.of(**tile, micro_m=0, micro_n=0, unroll=0)


def reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    *,
    causal: bool = True,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """Attention to the keys and values that the pages hold, in q's dtype."""
    k = _unpaged(k_cache, block_table, seq_lens, k_scale, q.dtype)
    v = _unpaged(v_cache, block_table, seq_lens, v_scale, q.dtype)
    cu_seqlens_k = torch.cat([seq_lens.new_zeros(1), seq_lens.cumsum(0)])
    return attention_varlen_reference(
        q, k, v, cu_seqlens_q, cu_seqlens_k, causal=causal, **options
    )[0]


def _unpaged(
    cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The cached rows of all sequences in a row, (keys, KV heads, size), in real units."""
    page_size = cache.shape[1]
    # fp8 tensors cannot be indexed everywhere, bytes can.
    rows = cache.view(torch.uint8) if cache.element_size() == 1 else cache
    sequences = [
        rows[pages[: triton.cdiv(length, page_size)].long()].flatten(0, 1)[:length]
        for pages, length in zip(block_table, seq_lens.tolist(), strict=True)
    ]
    packed = torch.cat([rows.new_empty(0, *rows.shape[2:]), *sequences])
    real = packed.view(cache.dtype).to(dtype)
    return real if scale is None else real * scale.to(dtype).reshape(-1, 1)


KERNEL = Kernel(
    name="paged_attention",
    functions=(
        paged_attention_kernel,
        merge_splits_kernel,
        _visit_keys,
        _load,
        _key_rows,
        _as_dtype,
        _sequence_of,
    ),
    space=SPACE,
    default=default,
    reference=reference,
    problem=PagedAttentionProblem,
)
