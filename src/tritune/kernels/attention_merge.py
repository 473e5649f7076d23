"""Merge the partial results of attention over splits of the keys: the second half of split-KV.

Few queries make few programs, so the keys of a sequence are split among several. Each of these
writes the softmax over its own keys, in fp32, and log2 of the sum that it was divided by.
"""

import triton
import triton.language as tl

from tritune.kernels.online_softmax import LN_2, head_parts, init_softmax, width_of

#: Rows, each a token and a head, that a program of the merging kernel takes.
MERGED_ROWS = 4

#: Programs that keep a device busy; with fewer, the keys are split.
_PROGRAMS = {"cuda": 256, "hip": 512, "cpu": 16}
#: Fewer keys than this are not worth a program of their own.
_KEYS_PER_SPLIT = 256
_MOST_SPLITS = 64


@triton.jit(do_not_specialize=["num_seqs", "num_rows", "num_heads", "inner"])
def merge_splits_kernel(
    partial_ptr, partial_lse_ptr, sinks_ptr, out_ptr, lse_ptr, starts_ptr,
    num_seqs, num_rows, num_heads, inner, out_strides,
    SIZE: tl.constexpr, NUM_SPLITS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Compute the softmax over all keys from those over each split's own.

    With s_i = log2 of split i's sum, out = sum_i 2^s_i partial_i / (sum_i 2^s_i + e^sink). Row r
    is (r // inner // num_heads, r // inner % num_heads, r % inner) of out, whose strides are these
    three's and the dim's; all else is dense. What is absent is None: sinks, lse, and the starts,
    where sequence s has the tokens starts[s] to starts[s + 1]: later tokens belong to no sequence.
    """
    # 32 bits count the rows: results of more would not fit in any memory.
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = rows // inner % num_heads
    row_mask = rows < num_rows
    if starts_ptr is not None:
        row_mask = rows < tl.load(starts_ptr + num_seqs).to(tl.int32) * num_heads
    WIDTH: tl.constexpr = width_of(head_parts(SIZE, False), 0)
    dims = tl.arange(0, WIDTH)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    row_max, row_sum = init_softmax(sinks_ptr, head, ROWS)
    for split in range(NUM_SPLITS):
        partial_rows = split * num_rows.to(tl.int64) + rows
        lse = tl.load(partial_lse_ptr + partial_rows, mask=row_mask, other=float("-inf"))
        # A split without keys has written no result.
        mask = (lse > float("-inf"))[:, None] & (dims[None, :] < SIZE)
        ptrs = partial_ptr + partial_rows[:, None] * SIZE + dims[None, :]
        partial = tl.load(ptrs, mask=mask, other=0.0)
        new_max = tl.maximum(row_max, lse)
        scale = tl.exp2(lse - new_max)
        rescale = tl.exp2(row_max - new_max)
        acc = acc * rescale[:, None] + partial * scale[:, None]
        row_sum = row_sum * rescale + scale
        row_max = new_max
    out = acc / tl.where(row_sum > 0, row_sum, 1.0)[:, None]
    out_rows = (rows // inner // num_heads).to(tl.int64) * out_strides[0]
    out_rows += head.to(tl.int64) * out_strides[1] + (rows % inner).to(tl.int64) * out_strides[2]
    out_ptr += out_rows[:, None] + dims[None, :].to(tl.int64) * out_strides[3]
    mask = row_mask[:, None] & (dims[None, :] < SIZE)
    tl.store(out_ptr, out.to(out_ptr.dtype.element_ty), mask=mask)
    if lse_ptr is not None:
        tl.store(lse_ptr + rows, (row_max + tl.log2(row_sum)) * LN_2, mask=row_mask)


def default_splits(programs: int, keys: int, family: str, most: int = _MOST_SPLITS) -> int:
    """Return how many splits fill a device, as far as there are keys enough for them."""
    splits = 1
    while (
        2 * splits <= most
        and programs * splits < _PROGRAMS[family]
        and keys >= 2 * splits * _KEYS_PER_SPLIT
    ):
        splits *= 2
    return min(splits, _MOST_SPLITS)
