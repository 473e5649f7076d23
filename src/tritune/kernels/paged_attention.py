"""Attention over a KV cache that lies in pages: prefill, decode and both in one launch.

Queries of all sequences are packed: sequence s has the tokens cu_seqlens_q[s] to
cu_seqlens_q[s + 1]. Its keys 0 to seq_lens[s] lie in the cache, key n in slot n % PAGE_SIZE of
page block_table[s, n // PAGE_SIZE]. The last query is at the last key.

The GROUP query heads that share a KV head see the same keys, so a program takes them together: it
works on BLOCK_M *rows*, where row r of a sequence is query r // GROUP under head r % GROUP of the
group. The keys of a sequence may be split among NUM_SPLITS programs, each of which then writes its
own softmax and its log-sum-exp; a second kernel merges them.

All KV heads of a key lie side by side. A program of KV_HEADS of them reads memory in longer
contiguous runs; but there are fewer programs, and each keeps KV_HEADS accumulators.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from tritune.dtypes import element_bytes
from tritune.kernels.attention import (
    attention_varlen_reference,
    masked_block,
    skinny_block,
)
from tritune.kernels.attention_merge import default_splits, merge_splits_kernel
from tritune.kernels.cpu_options import CPU_CHOOSES, CPU_ROWS, PREFETCH
from tritune.kernels.kernel import Kernel, Problem
from tritune.kernels.online_softmax import (
    LOG2_E,
    accumulate_values,
    compute_scores,
    head_parts,
    init_softmax,
    load_rows,
    mask_scores,
    phase_order,
    phase_range,
    qk_scale_and_cap,
    split_range,
    store_rows,
    update_softmax,
    visible_keys,
    zero_accumulator,
)
from tritune.space import Config, Parameter, Space, Value
from tritune.targets.limits import limits_by_name


@triton.jit
def _sequence_of(cu_seqlens_q_ptr, num_seqs, block, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return the sequence that a block of rows belongs to, and the number of its first block.

    Sequence s begins at block cu_seqlens_q[s] * GROUP // BLOCK_M + s. That leaves each sequence as
    many blocks as it needs or one more, and can be computed for any s without a look at the others,
    so that a binary search finds it in a grid whose size does not depend on the lengths.
    """
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        first = tl.load(cu_seqlens_q_ptr + middle).to(tl.int32) * GROUP // BLOCK_M + middle
        low = tl.where(first <= block, middle + 1, low)
        high = tl.where(first <= block, high, middle)
    sequence = low - 1
    first = tl.load(cu_seqlens_q_ptr + sequence).to(tl.int32) * GROUP // BLOCK_M + sequence
    return sequence, first


@triton.jit
def _dequantize(cached, dtype: tl.constexpr, E4M3_BITS: tl.constexpr):
    """Convert cached tiles to the dtype of the product; fp16 and bf16 hold int8 and fp8 exactly."""
    tiles = tl.tuple(())
    for part in tl.static_range(len(cached)):
        tile = cached[part]
        if E4M3_BITS:
            # Shifted into the bits of an fp16, the exponent has a bias of 15 instead of 7.
            bits = ((tile & 0x80).to(tl.uint16) << 8) | ((tile & 0x7F).to(tl.uint16) << 7)
            tile = bits.to(tl.float16, bitcast=True) * 256.0
        tiles += (tile.to(dtype),)
    return tiles


@triton.jit
def _pages_and_slots(
    table_ptr, table_stride, start, keys, first_key, end,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Look up the page and the slot of each key of a tile."""
    if PAGE_SIZE % BLOCK_N == 0:
        # The tile lies in one page. Its first key is visited, so that page exists.
        first = tl.maximum(start, first_key)
        page = tl.load(table_ptr + (first // PAGE_SIZE).to(tl.int64) * table_stride).to(tl.int64)
        return page, start % PAGE_SIZE + tl.arange(0, BLOCK_N)
    else:
        ptrs = table_ptr + (keys // PAGE_SIZE).to(tl.int64) * table_stride
        if MASKED:
            page = tl.load(ptrs, mask=(keys >= first_key) & (keys < end), other=0).to(tl.int64)
        else:
            page = tl.load(ptrs).to(tl.int64)
        return page, keys % PAGE_SIZE


@triton.jit
def _load_head(
    ptr, head, rows, key_mask, strides,
    SIZE: tl.constexpr, PARTS: tl.constexpr, ROW_AXIS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Load rows of the KV head that is `head` heads after the one that is pointed to."""
    # A cache whose heads lie far apart has more elements than 32 bits can count.
    ptr += head * tl.cast(strides[2], tl.int64)
    return load_rows(ptr, rows, key_mask, strides[3], SIZE, PARTS, tl.int64, ROW_AXIS, MASKED)


@triton.jit
def _attend(
    acc, row_max, row_sum, q, k_ptr, v_ptr, table_ptr, first, first_key, end, positions, slopes,
    qk_scale, cap, window, table_stride, k_strides, v_strides,
    SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, PARTS: tl.constexpr, VALUE_PARTS: tl.constexpr,
    PAGE_SIZE: tl.constexpr, CAUSAL: tl.constexpr, E4M3_BITS: tl.constexpr, MASKED: tl.constexpr,
    PRE_LOAD_V: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Take the keys first..end into the online softmax; MASKED where a row may not see some.

    q, acc, row_max, row_sum, slopes and qk_scale are tuples with an entry for each KV head. `first`
    is a multiple of BLOCK_N; keys below `first_key` are not read.
    """
    for start in range(first, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        key_mask = (keys >= first_key) & (keys < end)
        pages, slots = _pages_and_slots(
            table_ptr, table_stride, start, keys, first_key, end, PAGE_SIZE, BLOCK_N, MASKED
        )
        k_rows = pages * k_strides[0] + slots.to(tl.int64) * k_strides[1]
        v_rows = pages * v_strides[0] + slots.to(tl.int64) * v_strides[1]
        # Keys of all heads first, then values of all heads: they lie side by side in memory.
        scores, v = tl.tuple(()), tl.tuple(())
        for head in tl.static_range(KV_HEADS):
            k = _load_head(k_ptr, head, k_rows, key_mask, k_strides, SIZE, PARTS, 1, MASKED)
            if PRE_LOAD_V:
                v += (
                    _load_head(
                        v_ptr, head, v_rows, key_mask, v_strides, VALUE_SIZE, VALUE_PARTS, 0, MASKED
                    ),
                )
            k = _dequantize(k, q[head][0].dtype, E4M3_BITS)
            slope = slopes[head] if len(slopes) > 0 else None
            scores += (compute_scores(q[head], k, qk_scale[head], cap, slope, keys, positions),)
        p, rescale = tl.tuple(()), tl.tuple(())
        new_max, new_sum, new_acc = tl.tuple(()), tl.tuple(()), tl.tuple(())
        for head in tl.static_range(KV_HEADS):
            masked = scores[head]
            if MASKED:
                masked = mask_scores(masked, key_mask, keys, positions, window, CAUSAL)
            updated = update_softmax(masked, row_max[head], row_sum[head])
            p += (updated[0],)
            rescale += (updated[1],)
            new_max += (updated[2],)
            new_sum += (updated[3],)
        for head in tl.static_range(KV_HEADS):
            if not PRE_LOAD_V:
                v += (
                    _load_head(
                        v_ptr, head, v_rows, key_mask, v_strides, VALUE_SIZE, VALUE_PARTS, 0, MASKED
                    ),
                )
            values = _dequantize(v[head], q[head][0].dtype, E4M3_BITS)
            new_acc += (accumulate_values(acc[head], p[head], rescale[head], values),)
        acc, row_max, row_sum = new_acc, new_max, new_sum
    return acc, row_max, row_sum


@triton.jit(do_not_specialize=["num_seqs", "window", "num_rows", "table_strides"])
def paged_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, block_table_ptr, seq_lens_ptr, cu_seqlens_q_ptr,
    slopes_ptr, sinks_ptr, k_scale_ptr, v_scale_ptr, num_seqs, num_rows, scale, window, softcap,
    q_strides, k_strides, v_strides, out_strides, table_strides, scale_strides,
    GROUP: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, PAGE_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr, E4M3_BITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_SPLITS: tl.constexpr,
    SPLIT_HEAD: tl.constexpr, PRE_LOAD_V: tl.constexpr, PEEL: tl.constexpr,
    KV_HEADS: tl.constexpr = 1,
):  # fmt: skip
    """Compute softmax(q k^T scale) v for BLOCK_M rows of a sequence under each of KV_HEADS heads.

    With one split, `out` is the result. With more, it has `num_rows` dense rows for each split: the
    softmax over its keys; and lse, log2 of the sum that it was divided by. What is absent is None:
    window, softcap, slopes, sinks and the cache's scales. E4M3_BITS: the cache's bytes are fp8
    numbers of a format that the device does not know. PEEL: full blocks, whose keys every row sees,
    are visited without a mask. Strides are (token, head, dim) of q and out, (page, slot, KV head,
    dim) of the caches, (sequence, page) of the table.
    """
    PARTS: tl.constexpr = head_parts(SIZE, SPLIT_HEAD)
    VALUE_PARTS: tl.constexpr = head_parts(VALUE_SIZE, SPLIT_HEAD)
    block = tl.program_id(0)
    kv_head = tl.program_id(1) * KV_HEADS
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
    first_heads = kv_head * GROUP + rows % GROUP
    tokens = (first_token + queries).to(tl.int64)
    row_mask = queries < num_queries
    positions = num_keys - num_queries + queries
    table_ptr = block_table_ptr + sequence.to(tl.int64) * table_strides[0]
    k_ptr += kv_head.to(tl.int64) * k_strides[2]
    v_ptr += kv_head.to(tl.int64) * v_strides[2]

    # An entry for each KV head.
    q, qk_scale, slopes = tl.tuple(()), tl.tuple(()), tl.tuple(())
    acc, row_max, row_sum = tl.tuple(()), tl.tuple(()), tl.tuple(())
    cap = None
    for head in tl.static_range(KV_HEADS):
        heads = first_heads + head * GROUP
        q_rows = tokens * q_strides[0] + heads.to(tl.int64) * q_strides[1]
        q += (load_rows(q_ptr, q_rows, row_mask, q_strides[2], SIZE, PARTS, tl.int64, 0, True),)
        head_scale = scale.to(tl.float32)
        if k_scale_ptr is not None:
            ptr = k_scale_ptr + (kv_head + head) * scale_strides[0]
            head_scale *= tl.load(ptr).to(tl.float32)
        head_scale, cap = qk_scale_and_cap(head_scale, softcap)
        qk_scale += (head_scale,)
        if slopes_ptr is not None:
            slopes += (tl.load(slopes_ptr + heads).to(tl.float32) * LOG2_E,)
        # With several splits, the merging kernel takes the sinks in.
        head_max, head_sum = init_softmax(sinks_ptr if NUM_SPLITS == 1 else None, heads, BLOCK_M)
        row_max += (head_max,)
        row_sum += (head_sum,)
        acc += (zero_accumulator(BLOCK_M, VALUE_PARTS),)

    first_position = num_keys - num_queries + first_row // GROUP
    last_query = tl.minimum((first_row + BLOCK_M - 1) // GROUP, num_queries - 1)
    last_position = num_keys - num_queries + last_query
    first, full_first, full_end, end = visible_keys(
        first_position, last_position, num_keys, window, CAUSAL, BLOCK_N
    )
    first, end = split_range(first, end, split, NUM_SPLITS, BLOCK_N)
    # Pages that left the window may be freed: of the first block, only keys in the window are read.
    first_key = first
    if window is not None:
        first_key = tl.maximum(first_position - window + 1, first)
    PHASES: tl.constexpr = phase_order(window is not None, PEEL, False)
    for phase in tl.static_range(len(PHASES)):
        begin, stop = phase_range(PHASES[phase], full_first, full_end, first, end, NUM_SPLITS)
        acc, row_max, row_sum = _attend(
            acc, row_max, row_sum, q, k_ptr, v_ptr, table_ptr, begin, first_key, stop, positions,
            slopes, qk_scale, cap, window, table_strides[1], k_strides, v_strides,
            SIZE, VALUE_SIZE, PARTS, VALUE_PARTS, PAGE_SIZE, CAUSAL, E4M3_BITS,
            PHASES[phase] != "full", PRE_LOAD_V, KV_HEADS, BLOCK_N,
        )  # fmt: skip

    for head in tl.static_range(KV_HEADS):
        heads = first_heads + head * GROUP
        value_scale = None
        if v_scale_ptr is not None:
            ptr = v_scale_ptr + (kv_head + head) * scale_strides[1]
            value_scale = tl.load(ptr).to(tl.float32)
        store_mask = row_mask
        if NUM_SPLITS > 1:
            all_heads = tl.num_programs(1) * KV_HEADS * GROUP
            out_rows = tokens * all_heads + heads + split * num_rows.to(tl.int64)
            tl.store(lse_ptr + out_rows, row_max[head] + tl.log2(row_sum[head]), mask=row_mask)
            out_rows, dim_stride = out_rows * VALUE_SIZE, 1
            # The merging kernel does not read the result of a split without keys.
            store_mask = row_mask & (first < end)
        else:
            out_rows = tokens * out_strides[0] + heads.to(tl.int64) * out_strides[1]
            dim_stride = out_strides[2]
        store_rows(
            out_ptr, out_rows, store_mask, dim_stride, acc[head], row_sum[head], value_scale,
            VALUE_SIZE, VALUE_PARTS,
        )  # fmt: skip


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
        """Return the rows of one sequence and KV head."""
        return self.queries * self.group


_KV_TILES = "num_stages * BLOCK_N * (head_size + value_size)"
_KV_BYTES = "(4 if kv_dtype == 'float32' else 2 if kv_dtype in ('float16', 'bfloat16') else 1)"

#: Of the keys that a CPU's program reads at a time where it has several KV heads.
_TILE_BYTES = 32768

SPACE = Space(
    parameters=(
        Parameter("BLOCK_M", (16, 32, 64, 128), ("cuda", "hip")),
        Parameter("BLOCK_M", (1, 2, 4, 8, 16, 32, 64, 128), ("cpu",)),
        Parameter("BLOCK_N", (16, 32, 64, 128), ("cuda", "hip")),
        Parameter("BLOCK_N", (16, 32, 64, 128, 256), ("cpu",)),
        Parameter("NUM_SPLITS", (1, 2, 4, 8, 16, 32, 64)),
        Parameter("SPLIT_HEAD", (False, True)),
        Parameter("PRE_LOAD_V", (False, True)),
        Parameter("PEEL", (False, True)),
        Parameter("KV_HEADS", (1, 2, 4, 8), ("cpu",)),
        Parameter("num_warps", (1, 2, 4, 8), ("cuda", "hip")),
        Parameter("num_stages", (1, 2, 3, 4), ("cuda",)),
        Parameter("maxnreg", (128, 168, 255), ("cuda",)),
        Parameter("num_stages", (1, 2), ("hip",)),
        Parameter("waves_per_eu", (0, 1, 2, 3, 4), ("hip",)),
        Parameter("matrix_instr_nonkdim", (0, 16, 32), ("hip",)),
        Parameter("kpack", (1, 2), ("hip",)),
        Parameter("micro_m", (0, 2, 4, 6, 8), ("cpu",)),
        Parameter("micro_n", (0, 1, 2, 4), ("cpu",)),
        Parameter("unroll", (0, 2, 4), ("cpu",)),
        PREFETCH,
    ),
    constraints=(
        # A program without a single whole row of work, or a split without a tile, is never best.
        "BLOCK_M <= max(16, 2 * queries * group)",
        "NUM_SPLITS == 1 or NUM_SPLITS * BLOCK_N <= keys",
        # Several KV heads are worth it where rows are few, and all accumulators stay in the cache.
        "kv_heads % KV_HEADS == 0",
        "KV_HEADS == 1 or BLOCK_M <= 16 and KV_HEADS * BLOCK_M * value_size <= 16384",
        # A head of a power of two has one part.
        "not SPLIT_HEAD or head_size & (head_size - 1) or value_size & (value_size - 1)",
        # What the pipeline keeps in shared memory has to fit there.
        f"{_KV_TILES} * {_KV_BYTES} <= shared_memory_bytes",
        # Every thread has a score to compute.
        "BLOCK_M * BLOCK_N >= num_warps * 32",
        # The accumulator and the scores live in registers.
        "num_warps * warp_size * maxnreg <= registers_per_block",
        "BLOCK_M * (BLOCK_N + value_size) <= num_warps * warp_size * maxnreg",
        "matrix_instr_nonkdim != 32 or BLOCK_M >= 32 and BLOCK_N >= 32",
        "matrix_instr_nonkdim != 32 or warp_size == 64",
        "kpack == 1 or arch in ('gfx90a', 'gfx942')",
        "micro_m <= max(BLOCK_M, BLOCK_N)",
        *CPU_ROWS,
    ),
    limits=limits_by_name,
)


def _default_tile(problem: PagedAttentionProblem, family: str, arch: Any) -> tuple[int, int, int]:
    """Return the most rows, keys and warps of a tile that does not spill.

    The addresses of keys that lie in several pages take registers, as does converting the keys.
    """
    size = max(problem.head_size, problem.value_size)
    full = problem.dtype == "float32"
    if family == "cpu":
        if problem.rows <= 16:
            return 64, skinny_block(problem.keys), 0
        return 64, masked_block(problem.queries, problem.keys) if problem.causal else 64, 0
    if family == "hip" and arch.startswith("gfx1"):
        # RDNA has half the registers, and no matrix instruction for fp32.
        if full:
            return 16, 16, 8
        return (32, 32, 4) if size <= 128 else (16, 32, 8)
    if family == "hip":
        return (64, 32, 4) if size * (2 if full else 1) <= 128 else (32, 32, 4)
    if full:
        # No matrix instruction computes in full fp32, so every thread keeps its operands itself.
        return (32, 32, 4) if size <= 64 else (16, 32, 8) if size <= 128 else (16, 16, 8)
    if problem.rows <= 16:
        return 16, 64 if size <= 128 and problem.kv_dtype == problem.dtype else 32, 4
    return (64, 32, 4) if size <= 128 else (64, 32, 8)


def _heads_per_program(problem: PagedAttentionProblem, block_m: int) -> int:
    """Return how many KV heads a program takes on a CPU when it decodes.

    Each has its code, which takes time to compile, and its accumulator, which is read and written
    for every tile of keys.
    """
    heads = 1
    while (
        problem.rows <= 8
        and 2 * heads <= 8
        and problem.kv_heads % (2 * heads) == 0
        and 2 * heads * block_m * problem.value_size <= 4096
    ):
        heads *= 2
    return heads


def default(problem: PagedAttentionProblem, family: str, arch: int | str) -> Config:
    """Return blocks as large as a sequence's rows allow, and splits for few programs."""
    block_m, block_n, warps = _default_tile(problem, family, arch)
    smallest = 1 if family == "cpu" else 16
    block_m = min(block_m, max(triton.next_power_of_2(problem.rows), smallest))
    heads = _heads_per_program(problem, block_m) if family == "cpu" else 1
    if heads > 1:
        # What is read at a time, and asked for while the tile before it is read.
        key_bytes = heads * problem.head_size * element_bytes(problem.kv_dtype)
        block_n = min(block_n, max(16, _TILE_BYTES // triton.next_power_of_2(key_bytes)))
    programs = problem.sequences * problem.kv_heads // heads * triton.cdiv(problem.rows, block_m)
    splits = default_splits(programs, problem.keys, family)
    if family == "cpu" and problem.rows <= 16:
        # The heads of a key lie side by side: with short splits, the pages of memory that one head
        # has touched are still known when the next comes to them.
        splits = max(splits, min(64, triton.next_power_of_2(problem.keys) // 512))
    tile: dict[str, Value] = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "NUM_SPLITS": splits,
        "SPLIT_HEAD": any(n & (n - 1) for n in (problem.head_size, problem.value_size)),
        "PRE_LOAD_V": False,
        "PEEL": not problem.window and not str(arch).startswith("gfx1"),
    }
    if family == "cuda":
        return Config.of(**tile, num_warps=warps, num_stages=2, maxnreg=255)
    if family == "hip":
        own: dict[str, Value] = {"waves_per_eu": 0, "matrix_instr_nonkdim": 0, "kpack": 1}
        stages = 2 if warps == 8 and problem.dtype == "float32" else 1
        return Config.of(**tile, num_warps=warps, num_stages=stages, **own)
    return Config.of(**tile, KV_HEADS=heads, **CPU_CHOOSES)


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
    """Compute attention to the keys and values in the pages, in q's dtype."""
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
    """Return the cached rows of all sequences, dequantized: (keys, KV heads, size)."""
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
    functions=(paged_attention_kernel, merge_splits_kernel),
    space=SPACE,
    default=default,
    reference=reference,
    problem=PagedAttentionProblem,
)
