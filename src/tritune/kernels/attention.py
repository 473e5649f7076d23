"""Flash attention, forward: over keys and values that lie in tensors.

Each program holds BLOCK_M rows of queries and visits their keys BLOCK_N at a time:

    scores = q @ k.T * scale, masked
    m' = max(m, rowmax(scores))
    p = exp(scores - m')
    l = l * exp(m - m') + rowsum(p)
    acc = acc * exp(m - m') + p @ v

and stores acc / l. `online_softmax.py` has these steps, in units of log2. Blocks of keys that every
row sees need no mask; they have a loop of their own.

One kernel serves two layouts. *Strided*: (batch, head, token, dim) tensors with any strides.
*Packed*: the tokens of all sequences in a row, sequence b being tokens starts[b] to starts[b + 1].

Queries and keys of a sequence are aligned at their ends: query i is at position i + keys - queries,
its own key's. Where queries are few, as in decoding, the keys of a sequence may be split among
NUM_SPLITS programs, whose results a second kernel merges.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from tritune.dtypes import element_bytes
from tritune.kernels.attention_merge import default_splits, merge_splits_kernel
from tritune.kernels.cpu_options import CPU_CHOOSES, CPU_ROWS, PREFETCH
from tritune.kernels.kernel import Kernel, Problem
from tritune.kernels.online_softmax import (
    LN_2,
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

#: A bias below this stays above LOWEST in units of log2. Masks made of the lowest finite number
#: hide a key from rows that see others, and count all keys alike where a row sees no other.
LOWEST_BIAS = tl.constexpr(-2e38)


@triton.jit
def _load_block(
    source, origin, start, key_mask, strides, SIZE: tl.constexpr, PARTS: tl.constexpr,
    OFFSET: tl.constexpr, TRANSPOSED: tl.constexpr, MASKED: tl.constexpr, PACKED: tl.constexpr,
    USE_DESCRIPTORS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Load a block of keys or values, a tile for each part of the head; masked-out rows are 0.

    The source is a pointer to the sequence's first row, or a tensor descriptor, in which that row
    is at the coordinates `origin`: (batch, head, token).
    """
    if USE_DESCRIPTORS:
        tiles = tl.tuple(())
        for part in tl.static_range(len(PARTS)):
            coordinates = [origin[0], origin[1], origin[2] + start, PARTS[part][0]]
            tile = source[part].load(coordinates).reshape([BLOCK_N, PARTS[part][1]])
            if MASKED and PACKED:
                # Rows past the tensor read as zero, but here the next sequence follows.
                tile = tl.where(key_mask[:, None], tile, 0.0)
            tiles += (tile.T if TRANSPOSED else tile,)
        return tiles
    else:
        row_offsets = tl.arange(0, BLOCK_N).to(OFFSET) * strides[2]
        block_ptr = source + tl.cast(start, tl.int64) * strides[2]
        return load_rows(
            block_ptr, row_offsets, key_mask, strides[3], SIZE, PARTS, OFFSET,
            1 if TRANSPOSED else 0, MASKED,
        )  # fmt: skip


@triton.jit
def _apply_mask(scores, mask_ptr, mask_rows, stride, keys, row_mask, key_mask):
    """Add the user's mask to the scores if it is a bias; where a mask of bytes is 0, set -inf."""
    ptrs = mask_ptr + mask_rows[:, None] + keys[None, :].to(tl.int64) * stride
    mask = tl.load(ptrs, mask=row_mask[:, None] & key_mask[None, :], other=0)
    if mask_ptr.dtype.element_ty.is_floating():
        bias = mask.to(tl.float32)
        scores += tl.maximum(bias, LOWEST_BIAS) * LOG2_E
        return tl.where(bias > float("-inf"), scores, float("-inf"))
    else:
        return tl.where(mask != 0, scores, float("-inf"))


@triton.jit
def _attend(
    acc, row_max, row_sum, q, k, v, origin, mask_ptr, mask_rows, row_mask, positions, slopes,
    first, end, num_keys, qk_scale, cap, window, k_strides, v_strides, mask_strides,
    SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, PARTS: tl.constexpr, VALUE_PARTS: tl.constexpr,
    OFFSET: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, PACKED: tl.constexpr,
    PRE_LOAD_V: tl.constexpr, USE_DESCRIPTORS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Take the keys first..end into the online softmax; MASKED where a row may not see some."""
    for start in range(first, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        key_mask = keys < num_keys
        k_block = _load_block(
            k, origin, start, key_mask, k_strides, SIZE, PARTS, OFFSET, True, MASKED, PACKED,
            USE_DESCRIPTORS, BLOCK_N,
        )  # fmt: skip
        if PRE_LOAD_V:
            v_block = _load_block(
                v, origin, start, key_mask, v_strides, VALUE_SIZE, VALUE_PARTS, OFFSET, False,
                MASKED, PACKED, USE_DESCRIPTORS, BLOCK_N,
            )  # fmt: skip
        scores = compute_scores(q, k_block, qk_scale, cap, slopes, keys, positions)
        if mask_ptr is not None:
            scores = _apply_mask(
                scores, mask_ptr, mask_rows, mask_strides[3], keys, row_mask, key_mask
            )
        if MASKED:
            scores = mask_scores(scores, key_mask, keys, positions, window, CAUSAL)
        p, rescale, row_max, row_sum = update_softmax(scores, row_max, row_sum)
        if not PRE_LOAD_V:
            v_block = _load_block(
                v, origin, start, key_mask, v_strides, VALUE_SIZE, VALUE_PARTS, OFFSET, False,
                MASKED, PACKED, USE_DESCRIPTORS, BLOCK_N,
            )  # fmt: skip
        acc = accumulate_values(acc, p, rescale, v_block)
    return acc, row_max, row_sum


@triton.jit
def _tile_of_program(
    tiles, head_groups, HEADS_INSIDE: tl.constexpr, LAST_TILE_FIRST: tl.constexpr
):  # fmt: skip
    """Return the tile of rows, the group of heads, and the sequence that a program works on."""
    program = tl.program_id(0)
    if HEADS_INSIDE:
        head_group = program % head_groups
        tile = program // head_groups % tiles
    else:
        head_group = program // tiles % head_groups
        tile = program % tiles
    if LAST_TILE_FIRST:
        tile = tiles - 1 - tile
    return tile, head_group, (program // (tiles * head_groups)).to(tl.int64)


# Counts change from call to call, and code specialised for some of them would hardly be better.
@triton.jit(
    do_not_specialize=["window", "tiles", "heads", "group", "num_queries", "num_keys", "num_rows"]
)
def attention_kernel(
    q_ptr, k, v, out_ptr, lse_ptr, mask_ptr, slopes_ptr, sinks_ptr,
    q_starts_ptr, k_starts_ptr, scale, softcap, window,
    tiles, heads, group, num_queries, num_keys, num_rows,
    q_strides, k_strides, v_strides, mask_strides,
    SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, CAUSAL: tl.constexpr, OFFSET: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_SPLITS: tl.constexpr,
    SPLIT_HEAD: tl.constexpr, PACK_HEADS: tl.constexpr, PRE_LOAD_V: tl.constexpr,
    MASKED_FIRST: tl.constexpr, HEADS_INSIDE: tl.constexpr, LAST_TILE_FIRST: tl.constexpr,
    USE_DESCRIPTORS: tl.constexpr = False,
):  # fmt: skip
    """Compute softmax(q k^T scale) v for BLOCK_M rows of one sequence and one split of its keys.

    A row is a query of one head; with PACK_HEADS, the rows of a program are those of all `group`
    heads that share a KV head, and row r is query r // group. What is absent is None: the mask
    (bytes, or a bias), slopes, sinks, lse, softcap, window, and the starts where the layout is
    strided. Strides are (batch, head, token, dim); the mask's are (batch, head, query, key). k and
    v are pointers, or with USE_DESCRIPTORS a tensor descriptor for each part of the head.

    Out and lse are dense: (batch, head, token[, dim]), or packed (token, head[, dim]). With more
    than one split, there are `num_rows` rows of each for every split: the softmax over its keys and
    log2 of the sum that it was divided by.
    """
    PARTS: tl.constexpr = head_parts(SIZE, SPLIT_HEAD)
    VALUE_PARTS: tl.constexpr = head_parts(VALUE_SIZE, SPLIT_HEAD)
    PACKED: tl.constexpr = q_starts_ptr is not None
    head_groups = heads // group if PACK_HEADS else heads
    tile, head_group, batch = _tile_of_program(tiles, head_groups, HEADS_INSIDE, LAST_TILE_FIRST)
    first_q = tl.full([], 0, tl.int64)
    first_k = tl.full([], 0, tl.int64)
    if PACKED:
        first_q = tl.load(q_starts_ptr + batch).to(tl.int64)
        first_k = tl.load(k_starts_ptr + batch).to(tl.int64)
        num_queries = (tl.load(q_starts_ptr + batch + 1) - first_q).to(tl.int32)
        num_keys = (tl.load(k_starts_ptr + batch + 1) - first_k).to(tl.int32)

    # The rows, by their heads, queries and positions among the keys.
    rows_per_query = group if PACK_HEADS else 1
    first_query = tile * BLOCK_M // rows_per_query
    if first_query >= num_queries:
        return
    last_query = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // rows_per_query, num_queries - 1)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    if PACK_HEADS:
        kv_head = head_group
        head = head_group * group + rows % group
        queries = rows // group
    else:
        kv_head = head_group // group
        head = head_group
        queries = rows
    row_mask = queries < num_queries
    positions = queries + (num_keys - num_queries)

    tokens = first_q + queries
    q_rows = batch * q_strides[0] + head.to(tl.int64) * q_strides[1] + tokens * q_strides[2]
    q = load_rows(q_ptr, q_rows, row_mask, q_strides[3], SIZE, PARTS, tl.int64, 0, True)
    origin = None
    if USE_DESCRIPTORS:
        origin = (batch.to(tl.int32) if not PACKED else 0, kv_head, first_k.to(tl.int32))
    else:
        k += batch * k_strides[0] + kv_head.to(tl.int64) * k_strides[1] + first_k * k_strides[2]
        v += batch * v_strides[0] + kv_head.to(tl.int64) * v_strides[1] + first_k * v_strides[2]
    mask_rows = None
    if mask_ptr is not None:
        mask_rows = head.to(tl.int64) * mask_strides[1] + tokens * mask_strides[2]
        mask_rows += batch * mask_strides[0]
    slopes = None
    if slopes_ptr is not None:
        slopes = tl.load(slopes_ptr + head).to(tl.float32) * LOG2_E
        slopes = slopes + tl.zeros([BLOCK_M], tl.float32)
    qk_scale, cap = qk_scale_and_cap(scale, softcap)

    # With several splits, the merging kernel takes the sinks in.
    row_max, row_sum = init_softmax(sinks_ptr if NUM_SPLITS == 1 else None, head, BLOCK_M)
    acc = zero_accumulator(BLOCK_M, VALUE_PARTS)
    position_of_first = num_keys - num_queries
    first, full_first, full_end, end = visible_keys(
        first_query + position_of_first, last_query + position_of_first, num_keys, window, CAUSAL,
        BLOCK_N,
    )  # fmt: skip
    split = tl.program_id(1) if NUM_SPLITS > 1 else 0
    first, end = split_range(first, end, split, NUM_SPLITS, BLOCK_N)
    PHASES: tl.constexpr = phase_order(window is not None, True, MASKED_FIRST)
    for phase in tl.static_range(len(PHASES)):
        begin, stop = phase_range(PHASES[phase], full_first, full_end, first, end, NUM_SPLITS)
        acc, row_max, row_sum = _attend(
            acc, row_max, row_sum, q, k, v, origin, mask_ptr, mask_rows, row_mask, positions,
            slopes, begin, stop, num_keys, qk_scale, cap, window, k_strides, v_strides,
            mask_strides, SIZE, VALUE_SIZE, PARTS, VALUE_PARTS, OFFSET, CAUSAL,
            PHASES[phase] != "full", PACKED, PRE_LOAD_V, USE_DESCRIPTORS, BLOCK_N,
        )  # fmt: skip

    out_rows = tokens * heads + head if PACKED else (batch * heads + head) * num_queries + queries
    store_mask = row_mask
    if NUM_SPLITS > 1:
        out_rows += split * num_rows.to(tl.int64)
        # The merging kernel does not read the result of a split without keys.
        store_mask = row_mask & (first < end)
    store_rows(
        out_ptr, out_rows * VALUE_SIZE, store_mask, 1, acc, row_sum, None, VALUE_SIZE, VALUE_PARTS
    )
    if lse_ptr is not None:
        lse = row_max + tl.log2(row_sum)
        tl.store(lse_ptr + out_rows, lse if NUM_SPLITS > 1 else lse * LN_2, mask=row_mask)


@dataclass(frozen=True)
class AttentionProblem(Problem):
    """Counts of sequences and tokens are rounded up to powers of two; a window of 0 is none."""

    batch: int
    heads: int
    group: int
    queries: int
    keys: int
    head_size: int
    value_size: int
    dtype: str
    causal: bool = False
    window: int = 0
    softcap: bool = False
    mask: str = "none"
    alibi: bool = False
    packed: bool = False

    @property
    def element_bytes(self) -> int:
        return element_bytes(self.dtype)

    def fields(self) -> dict[str, Any]:
        return {**super().fields(), "element_bytes": self.element_bytes}


#: Rows of one sequence and head, or of the heads that share one.
_ROWS = "queries * (group if PACK_HEADS else 1)"

SPACE = Space(
    (
        Parameter("BLOCK_M", (16, 32, 64, 128, 256), ("cuda", "hip")),
        Parameter("BLOCK_M", (1, 2, 4, 8, 16, 32, 64, 128, 256), ("cpu",)),
        Parameter("BLOCK_N", (16, 32, 64, 128, 256)),
        Parameter("NUM_SPLITS", (1, 2, 4, 8, 16, 32, 64)),
        Parameter("SPLIT_HEAD", (False, True)),
        Parameter("PACK_HEADS", (False, True)),
        Parameter("PRE_LOAD_V", (False, True)),
        Parameter("MASKED_FIRST", (False, True)),
        Parameter("HEADS_INSIDE", (False, True)),
        Parameter("LAST_TILE_FIRST", (False, True)),
        Parameter("USE_DESCRIPTORS", (False, True), ("cuda",)),
        Parameter("num_warps", (1, 2, 4, 8, 16), ("cuda",)),
        Parameter("num_stages", (1, 2, 3, 4), ("cuda",)),
        Parameter("maxnreg", (128, 168, 255), ("cuda",)),
        Parameter("num_warps", (1, 2, 4, 8), ("hip",)),
        Parameter("num_stages", (1, 2, 3), ("hip",)),
        Parameter("waves_per_eu", (0, 1, 2, 3, 4), ("hip",)),
        Parameter("matrix_instr_nonkdim", (16, 32), ("hip",)),
        Parameter("micro_m", (0, 4, 6, 8, 12), ("cpu",)),
        Parameter("micro_n", (0, 1, 2, 4), ("cpu",)),
        Parameter("unroll", (0, 2, 8), ("cpu",)),
        PREFETCH,
    ),
    (
        # A head of a power of two has one part; heads of one's own cannot be packed.
        "not SPLIT_HEAD or head_size & (head_size - 1) or value_size & (value_size - 1)",
        "not PACK_HEADS or group > 1",
        # Orders matter where there are several tiles, and where these or their parts differ.
        f"not HEADS_INSIDE or {_ROWS} > BLOCK_M",
        f"not LAST_TILE_FIRST or (causal or window) and {_ROWS} > BLOCK_M",
        "not MASKED_FIRST or causal or window",
        # A split has a block of keys at least, and all of them write no more rows than they read.
        "NUM_SPLITS == 1 or NUM_SPLITS * max(queries, BLOCK_N) <= keys",
        # Rows that a descriptor describes begin at multiples of 16 bytes.
        "not USE_DESCRIPTORS or arch >= 90 and head_size * element_bytes % 16 == 0"
        " and value_size * element_bytes % 16 == 0",
        # Rows past the last query and columns past the last key are wasted work; but the warps of a
        # GPU want rows of their own.
        f"BLOCK_M <= max(16, (2 if family == 'cpu' else 4) * {_ROWS})",
        "BLOCK_N <= max(64, 2 * keys)",
        # The accumulator and the scores live in the registers that a config leaves its threads. A
        # lane of CDNA has its registers for all waves, one of RDNA for each.
        "BLOCK_M * (BLOCK_N + value_size) <= num_warps * warp_size * maxnreg",
        "num_warps * warp_size * maxnreg <= registers_per_block",
        "BLOCK_M * (BLOCK_N + value_size) <= num_warps * warp_size * registers_per_thread"
        " // (max(waves_per_eu, 1) if warp_size == 64 else 1)",
        # Every thread has a score to compute.
        "BLOCK_M * BLOCK_N >= num_warps * 32",
        # Keys and values in flight live in shared memory.
        "family != 'cuda'"
        " or max(num_stages, 1) * BLOCK_N * (head_size + value_size) * element_bytes"
        " + BLOCK_M * head_size * element_bytes"
        " <= shared_memory_bytes",
        "family != 'hip'"
        " or max(num_stages - 1, 1) * BLOCK_N * (head_size + value_size) * element_bytes"
        " <= shared_memory_bytes",
        # Matrix instructions of several widths are CDNA's, as are warps of 64 lanes.
        "matrix_instr_nonkdim == 16 or (BLOCK_M >= 32 and BLOCK_N >= 32 and warp_size == 64)",
        # On the CPU a tile of scores, the accumulator and a block of keys share a core's L2 cache,
        # and a micro-tile the registers.
        "family != 'cpu' or 4 * BLOCK_M * (BLOCK_N + head_size + value_size) <= 1048576",
        "micro_m * micro_n <= 48",
        *CPU_ROWS,
    ),
    limits_by_name,
)


def _default_tile(size: int, full: bool, family: str, arch: Any) -> tuple[int, int, int]:
    """Return rows, columns and warps of a large tile that does not spill; `full`: in full fp32."""
    if family == "cpu":
        return 64, 64, 0
    if family == "hip" and arch.startswith("gfx1"):
        # RDNA has half the registers, and no matrix instruction for fp32.
        if full:
            return 16, 16, 8
        return (64, 64, 4) if size <= 64 else (32, 32, 4) if size <= 128 else (16, 32, 8)
    if family == "hip":
        return (64, 32, 4) if full or size > 128 else (128, 64, 4)
    if full:
        # No matrix instruction computes in full fp32, so every thread keeps its operands itself.
        return (32, 32, 8) if size <= 128 else (16, 16, 8)
    if size <= 128:
        return 128, 64, 8
    return (64, 32, 8) if 90 <= arch < 120 else (32, 32, 4)


def skinny_block(keys: int) -> int:
    """Return the keys of a tile with few rows on a CPU: long tiles keep memory busy."""
    return 256 if keys >= 4096 else 128 if keys >= 1024 else 64


def masked_block(queries: int, keys: int, window: int = 0) -> int:
    """Return the keys of a tile with many rows on a CPU, with a causal mask.

    Masked scores are wasted work, so tiles are small where queries see few keys.
    """
    visible = keys - queries // 2
    return 32 if min(visible, window or visible) <= 1024 else 64


def _tall_block(problem: AttentionProblem, block_m: int) -> int:
    """Return the rows of a tile on a CPU without a mask.

    No work is wasted, and more rows share the reading of a block of keys; but each core needs
    programs.
    """
    rows = problem.batch * problem.heads * problem.queries
    while 2 * block_m <= min(256, problem.queries) and rows >= 32 * 2 * block_m:
        block_m *= 2
    return block_m


def default_config(problem: AttentionProblem, family: str, arch: int | str) -> Config:
    """Return sizes that fit everywhere: smaller tiles for wide heads and for few queries."""
    size = max(problem.head_size, problem.value_size)
    full = problem.dtype == "float32"
    block_m, block_n, warps = _default_tile(size, full, family, arch)
    masked = problem.causal or problem.window > 0
    if family == "cpu" and not masked:
        block_m = _tall_block(problem, block_m)
    # Few queries leave most rows of a tile unused, unless the heads that share keys fill them.
    pack = problem.group > 1 and problem.queries < block_m
    if family == "cpu" and masked and problem.group > 1:
        block_n = masked_block(problem.queries, problem.keys, problem.window)
        # The heads that share keys see the same: the fewer queries a tile has, the less is cut off.
        pack = pack or block_n < 64
    rows = problem.queries * (problem.group if pack else 1)
    if rows < block_m:
        block_m = max(1 if family == "cpu" else 16, triton.next_power_of_2(rows))
        if family == "cpu" and block_m <= 16:
            block_n = skinny_block(problem.keys)
        warps = warps if full or size > 128 else 4
    slots = problem.heads // (problem.group if pack else 1)
    programs = problem.batch * slots * triton.cdiv(rows, block_m)
    visible = problem.keys
    if problem.window:
        visible = min(visible, problem.window + problem.queries)
    tile: dict[str, Value] = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "NUM_SPLITS": default_splits(programs, visible, family, problem.keys // problem.queries),
        "SPLIT_HEAD": any(n & (n - 1) for n in (problem.head_size, problem.value_size)),
        "PACK_HEADS": pack,
        "PRE_LOAD_V": False,
        "MASKED_FIRST": False,
        "HEADS_INSIDE": False,
        # Without a window, the last queries see the most.
        "LAST_TILE_FIRST": problem.causal and not problem.window and rows > block_m,
    }
    if family == "cuda":
        # The queries, and the keys and values of each stage.
        sizes = problem.head_size + problem.value_size
        held = block_m * problem.head_size + 2 * block_n * sizes
        shared_bytes = limits_by_name(family, arch)["shared_memory_bytes"]
        stages = 2 if held * problem.element_bytes <= shared_bytes else 1
        return Config.of(
            **tile, USE_DESCRIPTORS=False, num_warps=warps, num_stages=stages, maxnreg=255
        )
    if family == "hip":
        return Config.of(
            **tile, num_warps=warps, num_stages=1, waves_per_eu=0, matrix_instr_nonkdim=16
        )
    return Config.of(**tile, **CPU_CHOOSES)


def attention_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    mask: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention of (batch, heads, tokens, dims) tensors and the log-sum-exp."""
    queries, keys = q.shape[2], k.shape[2]
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    scores = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    # Negative where the key comes before the query, whose own key is the last that it may see.
    distance = torch.arange(keys, device=q.device) - (
        torch.arange(queries, device=q.device)[:, None] + keys - queries
    )
    if alibi_slopes is not None:
        scores = scores + alibi_slopes.to(q.dtype)[:, None, None] * distance
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask.to(q.dtype)
    if causal or window is not None:
        scores = scores.masked_fill(distance > 0, -math.inf)
    if window is not None:
        scores = scores.masked_fill(distance <= -window, -math.inf)
    if sinks is not None:
        sink = sinks.to(q.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], dim=3)
    lse = scores.logsumexp(3)
    # A row without a key has no softmax; its result is zero.
    p = scores.softmax(3).masked_fill(lse[..., None] == -math.inf, 0.0)
    return p[..., :keys] @ v, lse


def attention_varlen_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    **flags: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the same for packed (tokens, heads, dims) tensors."""
    out = q.new_zeros(*q.shape[:2], v.shape[2])
    lse = q.new_full(q.shape[:2], -math.inf)
    for b in range(len(cu_seqlens_q) - 1):
        at = slice(int(cu_seqlens_q[b]), int(cu_seqlens_q[b + 1]))
        keys = slice(int(cu_seqlens_k[b]), int(cu_seqlens_k[b + 1]))
        sequence = (t.transpose(0, 1)[None] for t in (q[at], k[keys], v[keys]))
        out_b, lse_b = attention_reference(*sequence, **flags)
        out[at], lse[at] = out_b[0].transpose(0, 1), lse_b[0].transpose(0, 1)
    return out, lse


KERNEL = Kernel(
    name="attention",
    functions=(attention_kernel, merge_splits_kernel),
    space=SPACE,
    default=default_config,
    reference=attention_reference,
    problem=AttentionProblem,
)
