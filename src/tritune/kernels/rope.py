"""Rotary position embedding: pairs of a head's elements are turned by an angle that depends on the
token's position.

A pair is (x[i], x[i + R/2]) in the NeoX layout and (x[2i], x[2i + 1]) in the interleaved one, where
R, the rotary size, is how wide cos and sin are. Elements past R are not turned.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tritune.kernels.kernel import Kernel, Problem
from tritune.kernels.rows import row_offsets
from tritune.space import Config, Parameter, Space


# One binary for any number of tokens.
@triton.jit(do_not_specialize=["tokens", "q_heads", "k_heads"])
def rope_kernel(
    q_ptr,
    k_ptr,
    q_out_ptr,
    k_out_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,  # None: the table has one row for each token
    tokens,
    inner_tokens,
    q_heads,
    k_heads,
    q_outer,
    q_inner,
    k_outer,
    k_inner,
    q_out_outer,
    q_out_inner,
    k_out_outer,
    k_out_inner,
    cos_outer,
    cos_inner,
    sin_outer,
    sin_inner,
    positions_outer,
    positions_inner,
    q_head,
    q_column,
    k_head,
    k_column,
    q_out_head,
    q_out_column,
    k_out_head,
    k_out_column,
    cos_column,
    sin_column,
    SIZE: tl.constexpr,
    ROTARY: tl.constexpr,
    HALF: tl.constexpr,  # ROTARY / 2, as a power of two
    REST: tl.constexpr,  # SIZE - ROTARY, as a power of two; 0 if nothing is to be copied
    INTERLEAVED: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Each program takes TOKENS tokens one after the other, and of each HEADS heads at a time.

    PARTS programs share the heads of a token.
    """
    part = tl.program_id(0) % PARTS
    first = (tl.program_id(0) // PARTS) * TOKENS
    pair = tl.arange(0, HALF)
    inside = pair < ROTARY // 2
    # Where the two elements of each pair are.
    if INTERLEAVED:
        one = 2 * pair.to(tl.int64)
        two = one + 1
    else:
        one = pair.to(tl.int64)
        two = one + ROTARY // 2

    for token in range(first, tl.minimum(first + TOKENS, tokens)):
        if positions_ptr is not None:
            at = row_offsets(token, inner_tokens, positions_outer, positions_inner)
            position = tl.load(positions_ptr + at).to(tl.int64)
            cos_row = cos_ptr + position * cos_inner
            sin_row = sin_ptr + position * sin_inner
        else:
            cos_row = cos_ptr + row_offsets(token, inner_tokens, cos_outer, cos_inner)
            sin_row = sin_ptr + row_offsets(token, inner_tokens, sin_outer, sin_inner)
        cos_a = tl.load(cos_row + one * cos_column, mask=inside, other=0.0).to(tl.float32)
        cos_b = tl.load(cos_row + two * cos_column, mask=inside, other=0.0).to(tl.float32)
        sin_a = tl.load(sin_row + one * sin_column, mask=inside, other=0.0).to(tl.float32)
        sin_b = tl.load(sin_row + two * sin_column, mask=inside, other=0.0).to(tl.float32)

        q_row = q_ptr + row_offsets(token, inner_tokens, q_outer, q_inner)
        q_out_row = q_out_ptr + row_offsets(token, inner_tokens, q_out_outer, q_out_inner)
        for start in range(part * HEADS, q_heads, PARTS * HEADS):
            _turn(
                q_row, q_out_row, q_head, q_column, q_out_head, q_out_column, start, q_heads,
                one, two, inside, cos_a, cos_b, sin_a, sin_b, SIZE, ROTARY, REST, HEADS,
            )  # fmt: skip
        k_row = k_ptr + row_offsets(token, inner_tokens, k_outer, k_inner)
        k_out_row = k_out_ptr + row_offsets(token, inner_tokens, k_out_outer, k_out_inner)
        for start in range(part * HEADS, k_heads, PARTS * HEADS):
            _turn(
                k_row, k_out_row, k_head, k_column, k_out_head, k_out_column, start, k_heads,
                one, two, inside, cos_a, cos_b, sin_a, sin_b, SIZE, ROTARY, REST, HEADS,
            )  # fmt: skip


@triton.jit
def _turn(
    x_row, out_row, x_head, x_column, out_head, out_column, start, heads,
    one, two, inside, cos_a, cos_b, sin_a, sin_b,
    SIZE: tl.constexpr, ROTARY: tl.constexpr, REST: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """x · cos + rotated(x) · sin, where rotated makes (-b, a) of a pair (a, b)."""
    head = start + tl.arange(0, HEADS)[:, None]
    present = head < heads
    x_row += head.to(tl.int64) * x_head
    out_row += head.to(tl.int64) * out_head
    mask = present & inside
    a = tl.load(x_row + one * x_column, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x_row + two * x_column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_row + one * out_column, a * cos_a - b * sin_a, mask=mask)
    tl.store(out_row + two * out_column, b * cos_b + a * sin_b, mask=mask)
    if REST > 0:
        rest = ROTARY + tl.arange(0, REST)
        mask = present & (rest < SIZE)
        x = tl.load(x_row + rest.to(tl.int64) * x_column, mask=mask)
        tl.store(out_row + rest.to(tl.int64) * out_column, x, mask=mask)


@dataclass(frozen=True)
class RopeProblem(Problem):
    tokens: int  # rounded up to a power of two
    q_heads: int
    k_heads: int
    size: int
    rotary: int
    interleaved: bool
    inplace: bool
    dtype: str


SPACE = Space(
    parameters=(
        Parameter("TOKENS", (1, 2, 4, 8, 16, 32, 64)),
        Parameter("HEADS", (1, 2, 4, 8, 16, 32, 64, 128)),
        Parameter("PARTS", (1, 2, 4, 8, 16)),
        Parameter("num_warps", (1, 2, 4, 8), families=("cuda", "hip")),
        Parameter("waves_per_eu", (0, 2, 4), families=("hip",)),
    ),
    constraints=(
        "TOKENS <= tokens",
        "HEADS < 2 * max(q_heads, k_heads)",
        # Each part has heads of its own.
        "PARTS == 1 or HEADS * PARTS < 2 * max(q_heads, k_heads)",
        "PARTS == 1 or TOKENS == 1",
        # At least one element for each thread, and no more than 64: more would spill.
        "HEADS * size <= 64 * 32 * num_warps",
        "num_warps == 1 or 32 * num_warps <= HEADS * size",
    ),
)


def default(problem: RopeProblem, family: str, arch: int | str) -> Config:
    heads = max(problem.q_heads, problem.k_heads)
    if family == "cpu":
        # Heads that are not there cost time: as many at once as divide both counts.
        both = problem.q_heads | problem.k_heads
        return Config.of(TOKENS=max(1, min(16, problem.tokens // 16)), HEADS=both & -both, PARTS=1)
    whole = triton.next_power_of_2(heads)
    at_once = min(whole, max(1, 2048 // triton.next_power_of_2(problem.size)))
    # Few tokens leave a GPU idle unless their heads are shared out.
    parts = min(whole // at_once, 16) if problem.tokens < 1024 else 1
    warps = 4 if at_once * problem.size >= 1024 else 1
    config = Config.of(TOKENS=1, HEADS=at_once, PARTS=parts, num_warps=warps)
    return Config.of(**config.as_kwargs(), waves_per_eu=0) if family == "hip" else config


def rope(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False
) -> torch.Tensor:
    """The definition, for q or k and rows of the tables that fit it; in the arithmetic of x."""
    rotary = cos.shape[-1]
    turned, rest = x[..., :rotary], x[..., rotary:]
    if interleaved:
        swapped = torch.stack((-turned[..., 1::2], turned[..., ::2]), dim=-1).flatten(-2)
    else:
        a, b = turned.chunk(2, dim=-1)
        swapped = torch.cat((-b, a), dim=-1)
    return torch.cat((turned * cos + swapped * sin, rest), dim=-1)


KERNEL = Kernel(
    name="rope",
    functions=(rope_kernel,),
    space=SPACE,
    default=default,
    reference=rope,
    problem=RopeProblem,
)
