"""Writing new keys and values into vLLM's paged cache."""

import torch
import triton
import triton.language as tl


@triton.jit
def _write(
    new,
    cache,
    slots,
    scale,
    new_stride,
    cache_stride,
    page_size,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Put the heads of one token into its slot; padding has slots below zero."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot >= 0:
        at = tl.arange(0, BLOCK)
        head, element = at // SIZE, at % SIZE
        inside = at < HEADS * SIZE
        source = new + token * new_stride[0] + head * new_stride[1] + element * new_stride[2]
        values = tl.load(source, inside)
        if SCALED:
            values = values.to(tl.float32) / tl.load(scale)
        page, line = (slot // page_size).to(tl.int64), (slot % page_size).to(tl.int64)
        place = cache + page * cache_stride[0] + line * cache_stride[1]
        place += head * cache_stride[2] + element * cache_stride[3]
        tl.store(place, values.to(cache.dtype.element_ty), inside)


def write_cache(
    new: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, scale: torch.Tensor | None
) -> None:
    """Write new keys or values (tokens, heads, size) into the slots of a cache (pages, page size,
    heads, size), divided by the scale if there is one.
    """
    tokens, (heads, size) = slots.shape[0], new.shape[1:]
    if tokens == 0:
        return
    _write[(tokens,)](
        new, cache, slots, scale, new.stride(), cache.stride(), cache.shape[1],
        HEADS=heads, SIZE=size, BLOCK=triton.next_power_of_2(heads * size),
        SCALED=scale is not None,
    )  # fmt: skip
