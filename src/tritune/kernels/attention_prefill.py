"""Attention over keys and values that lie in tensors: flash attention, forward.

One kernel serves two layouts. *Strided*: (batch, head, token, dim) tensors with any strides.
*Packed*: the tokens of all sequences in a row, sequence b being tokens starts[b] to starts[b + 1].

Queries and keys of a sequence are aligned at their ends: query i is at position i + keys - queries,
its own key's. A head that is no power of two wide is either padded to one, or split into parts that
are (80 = 64 + 16): products over the parts add up to the product over the head.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from tritune.kernels.kernel import Kernel, Problem
from tritune.space import Config, Parameter, Space

LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2))

#: Where a running maximum begins. Unlike -inf it can be subtracted from itself, so rows that have
#: seen no key need no care: their weights are exp2(-inf - LOWEST) = 0.
LOWEST = tl.constexpr(-3.4e38)

#: A bias below this stays above LOWEST in units of log2. Masks made of the lowest finite number
#: hide a key from rows that see others, and weigh all alike where a row sees no other.
LOWEST_BIAS = tl.constexpr(-2e38)


@triton.constexpr_function
def head_parts(size, split):
    """(first dim, width) of the tiles that a head is read in; a product needs a width of 16."""
    parts, first = [], 0
    while first < size:
        width = 16
        while 2 * width <= size - first or (not split and width < size):
            width *= 2
        parts.append((first, width))
        first += width
    return tuple(parts)


@triton.constexpr_function
def width_of(parts, part):
    return parts[part][1]


@triton.constexpr_function
def phase_order(windowed, masked_first):
    """In which order the blocks of keys come that every row sees (whole), and those around them."""
    order = ("after", "whole") if masked_first else ("whole", "after")
    return ("before", *order) if windowed else order


@triton.jit
def _load(
    ptr, rows, inside, dim_stride,
    SIZE: tl.constexpr, PARTS: tl.constexpr, OFFSET: tl.constexpr, ROW_AXIS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The head's dims of each row, a tile for each part of it; `rows` are offsets from the pointer.

    Rows run along axis ROW_AXIS. MASKED: those that are not `inside` are zero, and are not read.
    """
    tiles = tl.tuple(())
    rows = tl.expand_dims(rows, 1 - ROW_AXIS)
    inside = tl.expand_dims(inside, 1 - ROW_AXIS)
    for part in tl.static_range(len(PARTS)):
        dims = tl.expand_dims(PARTS[part][0] + tl.arange(0, PARTS[part][1]), ROW_AXIS)
        places = ptr + rows + dims.to(OFFSET) * dim_stride
        if PARTS[part][0] + PARTS[part][1] > SIZE:
            mask = (dims < SIZE) & inside if MASKED else dims < SIZE
            tiles += (tl.load(places, mask=mask, other=0.0),)
        elif MASKED:
            tiles += (tl.load(places, mask=inside, other=0.0),)
        else:
            tiles += (tl.load(places),)
    return tiles


@triton.jit
def _visit_keys(
    acc, row_max, row_sum, q, k_ptr, v_ptr, mask_ptr, mask_rows, real, positions, slopes,
    first, end, num_keys, score_scale, softcap, window, k_strides, v_strides, mask_strides,
    SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, PARTS: tl.constexpr, VALUE_PARTS: tl.constexpr,
    OFFSET: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, PRE_LOAD_V: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Fold the keys first..end into the running softmax; MASKED where some may be out of sight.

    Scores are in units of log2: `score_scale`, `softcap` and `slopes` have log2(e) in them.
    """
    columns = tl.arange(0, BLOCK_N)
    for start in range(first, end, BLOCK_N):
        keys = start + columns
        exist = keys < num_keys
        k_block = k_ptr + tl.cast(start, tl.int64) * k_strides[2]
        v_block = v_ptr + tl.cast(start, tl.int64) * v_strides[2]
        k_rows = columns.to(OFFSET) * k_strides[2]
        v_rows = columns.to(OFFSET) * v_strides[2]
        k = _load(k_block, k_rows, exist, k_strides[3], SIZE, PARTS, OFFSET, 1, MASKED)
        if PRE_LOAD_V:
            v = _load(
                v_block, v_rows, exist, v_strides[3], VALUE_SIZE, VALUE_PARTS, OFFSET, 0, MASKED
            )

        scores = tl.dot(q[0], k[0], input_precision="ieee")
        for part in tl.static_range(1, len(PARTS)):
            scores = tl.dot(q[part], k[part], scores, input_precision="ieee")
        scores *= score_scale
        if softcap is not None:
            scores = softcap * libdevice.tanh(scores)
        if slopes is not None:
            scores += slopes[:, None] * (keys[None, :] - positions[:, None]).to(tl.float32)
        if mask_ptr is not None:
            place = mask_ptr + mask_rows[:, None] + keys[None, :].to(tl.int64) * mask_strides[3]
            mask = tl.load(place, mask=real[:, None] & exist[None, :], other=0)
            if mask_ptr.dtype.element_ty.is_floating():
                bias = mask.to(tl.float32)
                scores += tl.maximum(bias, LOWEST_BIAS) * LOG2_E
                scores = tl.where(bias > float("-inf"), scores, float("-inf"))
            else:
                scores = tl.where(mask != 0, scores, float("-inf"))
        if MASKED:
            visible = exist[None, :]
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
            v = _load(
                v_block, v_rows, exist, v_strides[3], VALUE_SIZE, VALUE_PARTS, OFFSET, 0, MASKED
            )
        weights = weights.to(v_ptr.dtype.element_ty)
        new_acc = tl.tuple(())
        for part in tl.static_range(len(VALUE_PARTS)):
            shrunk = acc[part] * shrink[:, None]
            new_acc += (tl.dot(weights, v[part], shrunk, input_precision="ieee"),)
        acc = new_acc
    return acc, row_max, row_sum


# Counts change from call to call, and code made for some of them would hardly be better.
@triton.jit(do_not_specialize=["window", "tiles", "heads", "group", "num_queries", "num_keys"])
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, mask_ptr, slopes_ptr, sinks_ptr,
    q_starts_ptr, k_starts_ptr, scale, softcap, window,
    tiles, heads, group, num_queries, num_keys,
    q_strides, k_strides, v_strides, mask_strides,
    SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, CAUSAL: tl.constexpr, OFFSET: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT_HEAD: tl.constexpr,
    PACK_HEADS: tl.constexpr, PRE_LOAD_V: tl.constexpr, MASKED_FIRST: tl.constexpr,
    HEADS_INSIDE: tl.constexpr, LAST_TILE_FIRST: tl.constexpr,
):  # fmt: skip
    """softmax(q k^T scale) v for BLOCK_M rows of one sequence.

    A row is a query of one head; with PACK_HEADS, the rows of a program are those of all `group`
    heads that share a head of keys, and row r is query r // group. What is absent is None: the mask
    (bytes, or a bias), slopes, sinks, lse, softcap, window, and the starts where the layout is
    strided. Strides are (batch, head, token, dim); the mask's are (batch, head, query, key). Out
    and lse are dense: (batch, head, token[, dim]), or packed (token, head[, dim]).
    """
    PARTS: tl.constexpr = head_parts(SIZE, SPLIT_HEAD)
    VALUE_PARTS: tl.constexpr = head_parts(VALUE_SIZE, SPLIT_HEAD)

    # What this program does: which rows of which sequence.
    slots = heads // group if PACK_HEADS else heads
    program = tl.program_id(0)
    if HEADS_INSIDE:
        slot = program % slots
        tile = program // slots % tiles
    else:
        slot = program // tiles % slots
        tile = program % tiles
    if LAST_TILE_FIRST:
        tile = tiles - 1 - tile
    batch = (program // (tiles * slots)).to(tl.int64)
    first_q = tl.full([], 0, tl.int64)
    first_k = tl.full([], 0, tl.int64)
    if q_starts_ptr is not None:
        first_q = tl.load(q_starts_ptr + batch).to(tl.int64)
        first_k = tl.load(k_starts_ptr + batch).to(tl.int64)
        num_queries = (tl.load(q_starts_ptr + batch + 1) - first_q).to(tl.int32)
        num_keys = (tl.load(k_starts_ptr + batch + 1) - first_k).to(tl.int32)
    first_row = tile * BLOCK_M
    rows = first_row + tl.arange(0, BLOCK_M)
    if PACK_HEADS:
        kv_head = slot
        head = slot * group + rows % group
        queries = rows // group
        first_query = first_row // group
        last_query = (first_row + BLOCK_M - 1) // group
    else:
        kv_head = slot // group
        head = slot
        queries = rows
        first_query = first_row
        last_query = first_row + BLOCK_M - 1
    if first_query >= num_queries:
        return
    last_query = tl.minimum(last_query, num_queries - 1)
    real = queries < num_queries
    positions = queries + (num_keys - num_queries)
    first_position = first_query + (num_keys - num_queries)
    last_position = last_query + (num_keys - num_queries)

    tokens = first_q + queries
    q_rows = batch * q_strides[0] + head.to(tl.int64) * q_strides[1] + tokens * q_strides[2]
    q = _load(q_ptr, q_rows, real, q_strides[3], SIZE, PARTS, tl.int64, 0, True)
    kv_head = kv_head.to(tl.int64)
    k_ptr += batch * k_strides[0] + kv_head * k_strides[1] + first_k * k_strides[2]
    v_ptr += batch * v_strides[0] + kv_head * v_strides[1] + first_k * v_strides[2]
    mask_rows = None
    if mask_ptr is not None:
        mask_rows = head.to(tl.int64) * mask_strides[1] + tokens * mask_strides[2]
        mask_rows += batch * mask_strides[0]

    score_scale = scale.to(tl.float32)
    if softcap is not None:
        score_scale /= softcap.to(tl.float32)
        softcap = softcap.to(tl.float32) * LOG2_E
    else:
        score_scale *= LOG2_E
    slopes = None
    if slopes_ptr is not None:
        slopes = tl.load(slopes_ptr + head).to(tl.float32) * LOG2_E
        slopes = slopes + tl.zeros([BLOCK_M], tl.float32)

    row_max = tl.full([BLOCK_M], LOWEST, tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    if sinks_ptr is not None:
        # A sink is a key without a value: the softmax begins with it.
        sinks = tl.load(sinks_ptr + head).to(tl.float32) * LOG2_E
        row_max = tl.maximum(row_max, sinks)
        row_sum = tl.exp2(sinks - row_max)
    acc = tl.tuple(())
    for part in tl.static_range(len(VALUE_PARTS)):
        acc += (tl.zeros([BLOCK_M, width_of(VALUE_PARTS, part)], tl.float32),)

    # Some row sees the keys first..end, and every row those of whole_first..whole_end. The blocks
    # of the latter need no mask.
    first = 0
    end = num_keys
    whole_first = 0
    whole_end = num_keys
    if CAUSAL:
        end = tl.minimum(last_position + 1, num_keys)
        whole_end = tl.maximum(tl.minimum(first_position + 1, num_keys), 0)
    if window is not None:
        first = tl.maximum(first_position - window + 1, 0) // BLOCK_N * BLOCK_N
        whole_first = tl.cdiv(tl.maximum(last_position - window + 1, 0), BLOCK_N) * BLOCK_N
    whole_end = tl.maximum(whole_end // BLOCK_N * BLOCK_N, whole_first)

    PHASES: tl.constexpr = phase_order(window is not None, MASKED_FIRST)
    for phase in tl.static_range(len(PHASES)):
        if PHASES[phase] == "before":
            begin, stop = first, tl.minimum(whole_first, end)
        elif PHASES[phase] == "whole":
            begin, stop = whole_first, whole_end
        else:
            begin, stop = whole_end, end
        acc, row_max, row_sum = _visit_keys(
            acc, row_max, row_sum, q, k_ptr, v_ptr, mask_ptr, mask_rows, real, positions, slopes,
            begin, stop, num_keys, score_scale, softcap, window,
            k_strides, v_strides, mask_strides, SIZE, VALUE_SIZE, PARTS, VALUE_PARTS, OFFSET,
            CAUSAL, PHASES[phase] != "whole", PRE_LOAD_V, BLOCK_N,
        )  # fmt: skip

    # A row that saw nothing has a sum of 0; its result is 0, its log-sum-exp -inf.
    divisor = tl.where(row_sum > 0, row_sum, 1.0)
    if q_starts_ptr is not None:
        out_rows = tokens * heads + head
    else:
        out_rows = (batch * heads + head) * num_queries + queries
    for part in tl.static_range(len(VALUE_PARTS)):
        dims = VALUE_PARTS[part][0] + tl.arange(0, VALUE_PARTS[part][1])
        out = (acc[part] / divisor[:, None]).to(out_ptr.dtype.element_ty)
        places = out_ptr + out_rows[:, None] * VALUE_SIZE + dims[None, :]
        tl.store(places, out, mask=real[:, None] & (dims[None, :] < VALUE_SIZE))
    if lse_ptr is not None:
        tl.store(lse_ptr + out_rows, (row_max + tl.log2(row_sum)) * LN_2, mask=real)


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
        return 4 if self.dtype == "float32" else 2

    def fields(self) -> dict[str, Any]:
        return {**super().fields(), "element_bytes": self.element_bytes}


SPACE = Space(
    (
        Parameter("BLOCK_M", (16, 32, 64, 128, 256), ("cuda", "hip")),
        Parameter("BLOCK_M", (4, 8, 16, 32, 64, 128, 256), ("cpu",)),
        Parameter("BLOCK_N", (16, 32, 64, 128, 256)),
        Parameter("SPLIT_HEAD", (False, True)),
        Parameter("PACK_HEADS", (False, True)),
        Parameter("PRE_LOAD_V", (False, True)),
        Parameter("MASKED_FIRST", (False, True)),
        Parameter("HEADS_INSIDE", (False, True)),
        Parameter("LAST_TILE_FIRST", (False, True)),
        Parameter("num_warps", (1, 2, 4, 8, 16), ("cuda",)),
        Parameter("num_stages", (1, 2, 3, 4), ("cuda",)),
        Parameter("num_warps", (1, 2, 4, 8), ("hip",)),
        Parameter("num_stages", (1, 2, 3), ("hip",)),
        Parameter("waves_per_eu", (0, 1, 2, 3, 4), ("hip",)),
        Parameter("matrix_instr_nonkdim", (16, 32), ("hip",)),
        Parameter("micro_m", (0, 4, 6, 8, 12), ("cpu",)),
        Parameter("micro_n", (0, 1, 2, 4), ("cpu",)),
        Parameter("unroll", (0, 2, 8), ("cpu",)),
    ),
    (
        # A head of a power of two has one part; heads of one's own cannot be packed.
        "not SPLIT_HEAD or head_size & (head_size - 1) or value_size & (value_size - 1)",
        "not PACK_HEADS or group > 1",
        # Orders that only matter where tiles are not alike.
        "not LAST_TILE_FIRST or causal or window",
        "not MASKED_FIRST or causal or window",
        # Rows past the last query and columns past the last key are wasted work.
        "BLOCK_M <= max(16, 2 * queries * (group if PACK_HEADS else 1))",
        "BLOCK_N <= max(64, 2 * keys)",
        # The accumulator and the scores live in registers.
        "family != 'cuda' or BLOCK_M * (BLOCK_N + value_size) <= num_warps * 32 * 256",
        "family != 'hip' or BLOCK_M * (BLOCK_N + value_size) <= num_warps * 64 * 512",
        # Every thread has a score to compute.
        "BLOCK_M * BLOCK_N >= num_warps * 32",
        # Keys and values in flight live in shared memory.
        "family != 'cuda'"
        " or max(num_stages, 1) * BLOCK_N * (head_size + value_size) * element_bytes"
        " + BLOCK_M * head_size * element_bytes"
        " <= (101376 if arch in (86, 89, 120, 121) else 166912 if arch < 90 else 232448)",
        "family != 'hip'"
        " or max(num_stages - 1, 1) * BLOCK_N * (head_size + value_size) * element_bytes"
        " <= (163840 if arch == 'gfx950' else 65536)",
        "matrix_instr_nonkdim == 16"
        " or (BLOCK_M >= 32 and BLOCK_N >= 32 and arch in ('gfx90a', 'gfx942', 'gfx950'))",
        # On the CPU a tile of scores, the accumulator and a block of keys share a core's L2 cache,
        # and a micro-tile the registers.
        "family != 'cpu' or 4 * BLOCK_M * (BLOCK_N + head_size + value_size) <= 1048576",
        "micro_m * micro_n <= 48",
    ),
)


def _default_tile(size: int, full: bool, family: str, arch: Any) -> tuple[int, int, int]:
    """Rows, columns and warps of a large tile that does not spill; `full`: in full fp32."""
    if family == "cpu":
        return 64, 64, 0
    if family == "hip" and arch.startswith("gfx1"):
        # RDNA has half the registers, and no matrix instruction for fp32.
        if full:
            return 16, 16, 8
        return (64, 64, 4) if size <= 64 else (32, 32, 4) if size <= 128 else (32, 16, 8)
    if family == "hip":
        return (64, 32, 4) if full or size > 128 else (128, 64, 4)
    if full:
        # No matrix instruction computes in full fp32, so every thread keeps its operands itself.
        return (32, 32, 8) if size <= 128 else (16, 16, 8)
    if size <= 128:
        return 128, 64, 8
    return (64, 32, 8) if 90 <= arch < 120 else (32, 32, 4)


def default_config(problem: AttentionProblem, family: str, arch: int | str) -> Config:
    """Sizes that fit everywhere: smaller tiles for wide heads and for few queries."""
    size = max(problem.head_size, problem.value_size)
    full = problem.dtype == "float32"
    block_m, block_n, warps = _default_tile(size, full, family, arch)
    # Few queries leave most rows of a tile unused, unless the heads that share keys fill them.
    pack = problem.group > 1 and problem.queries < block_m
    rows = problem.queries * (problem.group if pack else 1)
    if rows < block_m:
        block_m = max(4 if family == "cpu" else 16, triton.next_power_of_2(rows))
        warps = warps if full else 4
    tile = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "SPLIT_HEAD": any(n & (n - 1) for n in (problem.head_size, problem.value_size)),
        "PACK_HEADS": pack,
        "PRE_LOAD_V": False,
        "MASKED_FIRST": False,
        "HEADS_INSIDE": False,
        "LAST_TILE_FIRST": problem.causal,
    }
    if family == "cuda":
        return Config.of(**tile, num_warps=warps, num_stages=2)
    if family == "hip":
        return Config.of(
            **tile, num_warps=warps, num_stages=1, waves_per_eu=0, matrix_instr_nonkdim=16
        )
    return Config.of(**tile, micro_m=0, micro_n=0, unroll=0)


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
    """Attention of (batch, heads, tokens, dims) tensors and its log-sum-exp, in q's dtype."""
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
    weights = scores.softmax(3).masked_fill(lse[..., None] == -math.inf, 0.0)
    return weights[..., :keys] @ v, lse


def attention_varlen_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    **flags: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for packed (tokens, heads, dims) tensors, one sequence after the other."""
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
    functions=(attention_kernel, _visit_keys, _load, head_parts, width_of, phase_order),
    space=SPACE,
    default=default_config,
    reference=attention_reference,
    problem=AttentionProblem,
)
