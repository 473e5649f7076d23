"""Device code that the attention kernels share: scores, the online softmax, tiles of a head.

Keys are visited a block at a time. Of the keys visited so far, each row keeps the maximum score m
(`row_max`), the sum l of exp2(score - m) (`row_sum`), and the sum of the values weighted with
exp2(score - m) (`acc`). When a block raises the maximum, both sums are rescaled by
exp2(m - new m). Scores are in units of log2, as exp(x) = exp2(x log2(e)).

A head dimension that is no power of two is either padded to one, or split into parts that are
(80 = 64 + 16): products over the parts add up to the product over the head.
"""

import math

import triton
import triton.language as tl
from triton.language.extra import libdevice

LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2))

#: Where a running maximum begins. Unlike -inf it can be subtracted from itself, so rows that have
#: seen no key need no care: their probabilities are exp2(-inf - LOWEST) = 0.
LOWEST = tl.constexpr(-3.4e38)


@triton.constexpr_function
def head_parts(size, split):
    """Return (first dim, width) of the tiles that a head is read in; `tl.dot` needs a width of 16.

    Without `split` there is one tile, padded to a power of two.
    """
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
def phase_order(windowed, peel, masked_first):
    """Return the order of the loops over keys: full blocks, which every row sees and which need no
    mask, and the partial blocks before and after them.
    """
    if not peel:
        return ("all",)
    order = ("after", "full") if masked_first else ("full", "after")
    return ("before", *order) if windowed else order


@triton.jit
def visible_keys(
    first_position, last_position, num_keys, window, CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Return (first, full_first, full_end, end) for rows at positions from the first to the last.

    Some row sees the keys first..end, and every row those of full_first..full_end. All but the end
    are multiples of BLOCK_N.
    """
    first = 0
    end = num_keys
    full_first = 0
    full_end = num_keys
    if CAUSAL:
        end = tl.minimum(last_position + 1, num_keys)
        full_end = tl.maximum(tl.minimum(first_position + 1, num_keys), 0)
    if window is not None:
        first = tl.maximum(first_position - window + 1, 0) // BLOCK_N * BLOCK_N
        full_first = tl.cdiv(tl.maximum(last_position - window + 1, 0), BLOCK_N) * BLOCK_N
    full_end = tl.maximum(full_end // BLOCK_N * BLOCK_N, full_first)
    return first, full_first, full_end, end


@triton.jit
def split_range(first, end, split, NUM_SPLITS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the keys of first..end that a split visits; the last splits may have none."""
    if NUM_SPLITS > 1:
        keys_per_split = tl.cdiv(tl.cdiv(tl.maximum(end - first, 0), BLOCK_N), NUM_SPLITS) * BLOCK_N
        first += split * keys_per_split
        end = tl.minimum(end, first + keys_per_split)
    return first, end


@triton.jit
def phase_range(PHASE: tl.constexpr, full_first, full_end, first, end, NUM_SPLITS: tl.constexpr):
    """Return the keys of a split's first..end that a phase visits."""
    begin, stop = first, end
    if PHASE == "before":
        stop = tl.minimum(full_first, end)
    elif PHASE == "full":
        begin, stop = full_first, full_end
        if NUM_SPLITS > 1:
            begin, stop = tl.maximum(begin, first), tl.minimum(stop, end)
    elif PHASE == "after":
        begin = tl.maximum(full_end, first) if NUM_SPLITS > 1 else full_end
    return begin, stop


@triton.jit
def load_rows(
    ptr, row_offsets, row_mask, dim_stride,
    SIZE: tl.constexpr, PARTS: tl.constexpr, OFFSET: tl.constexpr, ROW_AXIS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Load the head's dims of each row, a tile for each part of the head.

    Rows run along axis ROW_AXIS. MASKED: rows that are not in the mask are zero, and are not read.
    """
    tiles = tl.tuple(())
    row_offsets = tl.expand_dims(row_offsets, 1 - ROW_AXIS)
    row_mask = tl.expand_dims(row_mask, 1 - ROW_AXIS)
    for part in tl.static_range(len(PARTS)):
        dims = tl.expand_dims(PARTS[part][0] + tl.arange(0, PARTS[part][1]), ROW_AXIS)
        ptrs = ptr + row_offsets + dims.to(OFFSET) * dim_stride
        if PARTS[part][0] + PARTS[part][1] > SIZE:
            mask = (dims < SIZE) & row_mask if MASKED else dims < SIZE
            tiles += (tl.load(ptrs, mask=mask, other=0.0),)
        elif MASKED:
            tiles += (tl.load(ptrs, mask=row_mask, other=0.0),)
        else:
            tiles += (tl.load(ptrs),)
    return tiles


@triton.jit
def qk_scale_and_cap(scale, softcap):
    """Return what makes scores of products: score = qk * qk_scale, or cap * tanh(qk * qk_scale)."""
    qk_scale = scale.to(tl.float32)
    if softcap is not None:
        qk_scale /= softcap.to(tl.float32)
        softcap = softcap.to(tl.float32) * LOG2_E
    else:
        qk_scale *= LOG2_E
    return qk_scale, softcap


@triton.jit
def compute_scores(q, k, qk_scale, cap, slopes, keys, positions):
    """Return the scores of rows (q) and keys (k, transposed), with ALiBi where there are slopes."""
    scores = tl.dot(q[0], k[0], input_precision="ieee")
    for part in tl.static_range(1, len(q)):
        scores = tl.dot(q[part], k[part], scores, input_precision="ieee")
    scores *= qk_scale
    if cap is not None:
        scores = cap * libdevice.tanh(scores)
    if slopes is not None:
        scores += slopes[:, None] * (keys[None, :] - positions[:, None]).to(tl.float32)
    return scores


@triton.jit
def mask_scores(scores, key_mask, keys, positions, window, CAUSAL: tl.constexpr):
    """Set scores to -inf for keys past the last, after the row's position, or before its window."""
    visible = key_mask[None, :]
    if CAUSAL:
        visible = visible & (keys[None, :] <= positions[:, None])
    if window is not None:
        visible = visible & (keys[None, :] > positions[:, None] - window)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def zero_accumulator(ROWS: tl.constexpr, PARTS: tl.constexpr):
    acc = tl.tuple(())
    for part in tl.static_range(len(PARTS)):
        acc += (tl.zeros([ROWS, width_of(PARTS, part)], tl.float32),)
    return acc


@triton.jit
def init_softmax(sinks_ptr, head, ROWS: tl.constexpr):
    """Return the maximum and the sum of each row before any key."""
    row_max = tl.full([ROWS], LOWEST, tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    if sinks_ptr is not None:
        # A sink is a key without a value: the softmax begins with it.
        sinks = tl.load(sinks_ptr + head).to(tl.float32) * LOG2_E
        row_max = tl.maximum(row_max, sinks)
        row_sum = tl.exp2(sinks - row_max)
    return row_max, row_sum


@triton.jit
def update_softmax(scores, row_max, row_sum):
    """Return (p, rescale, row_max, row_sum) with a block of keys taken in.

    p are the block's probabilities before the division by the sum; `rescale` is what the sums so
    far are multiplied with.
    """
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    p = tl.exp2(scores - new_max[:, None])
    rescale = tl.exp2(row_max - new_max)
    return p, rescale, new_max, row_sum * rescale + tl.sum(p, axis=1)


@triton.jit
def accumulate_values(acc, p, rescale, v):
    """Return acc * rescale + p @ v."""
    new_acc = tl.tuple(())
    for part in tl.static_range(len(acc)):
        rescaled = acc[part] * rescale[:, None]
        new_acc += (tl.dot(p.to(v[part].dtype), v[part], rescaled, input_precision="ieee"),)
    return new_acc


@triton.jit
def store_rows(
    ptr, row_offsets, row_mask, dim_stride, acc, row_sum, value_scale, SIZE: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Store acc / row_sum; a row that saw no key, with a sum of 0, is 0."""
    divisor = tl.where(row_sum > 0, row_sum, 1.0)
    for part in tl.static_range(len(PARTS)):
        dims = PARTS[part][0] + tl.arange(0, PARTS[part][1])
        out = acc[part] / divisor[:, None]
        if value_scale is not None:
            out *= value_scale
        mask = row_mask[:, None]
        if PARTS[part][0] + PARTS[part][1] > SIZE:
            mask = mask & (dims[None, :] < SIZE)
        ptrs = ptr + row_offsets[:, None] + dims[None, :].to(tl.int64) * dim_stride
        tl.store(ptrs, out.to(ptr.dtype.element_ty), mask=mask)
