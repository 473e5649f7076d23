"""Rotary position embedding: rotate pairs of a head's elements by angles that depend on the token's
position.

A pair is (x[i], x[i + R/2]) in the NeoX layout and (x[2i], x[2i + 1]) in the interleaved one, where
R, the rotary size, is how wide cos and sin are. Elements past R are not rotated.
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
    q_ptr, k_ptr, q_out_ptr, k_out_ptr, cos_ptr, sin_ptr, positions_ptr,
    tokens, inner_tokens, q_heads, k_heads,
    q_outer, q_inner, k_outer, k_inner, q_out_outer, q_out_inner, k_out_outer, k_out_inner,
    cos_outer, cos_inner, sin_outer, sin_inner, positions_outer, positions_inner,
    q_head, q_column, k_head, k_column, q_out_head, q_out_column, k_out_head, k_out_column,
    cos_column, sin_column,
    SIZE: tl.constexpr, ROTARY: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
    INTERLEAVED: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Rotate TOKENS tokens one after the other, HEADS heads at a time.

    PARTS programs share the heads of a token. HALF is ROTARY / 2 and REST is SIZE - ROTARY, rounded
    up to powers of two; REST is 0 if nothing is to be copied. Without positions (None), the tables
    have one row for each token.
    """
    part = tl.program_id(0) % PARTS
    first = (tl.program_id(0) // PARTS) * TOKENS
    pair = tl.arange(0, HALF)
    pair_mask = pair < ROTARY // 2
    # The columns of the two elements of each pair.
    if INTERLEAVED:
        column_a = 2 * pair.to(tl.int64)
        column_b = column_a + 1
    else:
        column_a = pair.to(tl.int64)
        column_b = column_a + ROTARY // 2

    for token in range(first, tl.minimum(first + TOKENS, tokens)):
        if positions_ptr is not None:
            at = row_offsets(token, inner_tokens, positions_outer, positions_inner)
            position = tl.load(positions_ptr + at).to(tl.int64)
            cos_row = cos_ptr + position * cos_inner
            sin_row = sin_ptr + position * sin_inner
        else:
            cos_row = cos_ptr + row_offsets(token, inner_tokens, cos_outer, cos_inner)
            sin_row = sin_ptr + row_offsets(token, inner_tokens, sin_outer, sin_inner)
        cos_a = tl.load(cos_row + column_a * cos_column, mask=pair_mask, other=0.0).to(tl.float32)
        cos_b = tl.load(cos_row + column_b * cos_column, mask=pair_mask, other=0.0).to(tl.float32)
        sin_a = tl.load(sin_row + column_a * sin_column, mask=pair_mask, other=0.0).to(tl.float32)
        sin_b = tl.load(sin_row + column_b * sin_column, mask=pair_mask, other=0.0).to(tl.float32)

        q_row = q_ptr + row_offsets(token, inner_tokens, q_outer, q_inner)
        q_out_row = q_out_ptr + row_offsets(token, inner_tokens, q_out_outer, q_out_inner)
        for start in range(part * HEADS, q_heads, PARTS * HEADS):
            _rotate(
                q_row, q_out_row, q_head, q_column, q_out_head, q_out_column, start, q_heads,
                column_a, column_b, pair_mask, cos_a, cos_b, sin_a, sin_b, SIZE, ROTARY, REST,
                HEADS,
            )  # fmt: skip
        k_row = k_ptr + row_offsets(token, inner_tokens, k_outer, k_inner)
        k_out_row = k_out_ptr + row_offsets(token, inner_tokens, k_out_outer, k_out_inner)
        for start in range(part * HEADS, k_heads, PARTS * HEADS):
            _rotate(
                k_row, k_out_row, k_head, k_column, k_out_head, k_out_column, start, k_heads,
                column_a, column_b, pair_mask, cos_a, cos_b, sin_a, sin_b, SIZE, ROTARY, REST,
                HEADS,
            )  # fmt: skip


@triton.jit
def _rotate(
    x_row, out_row, x_head, x_column, out_head, out_column, start, heads,
    column_a, column_b, pair_mask, cos_a, cos_b, sin_a, sin_b,
    SIZE: tl.constexpr, ROTARY: tl.constexpr, REST: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Store x · cos + rotated(x) · sin, where rotated makes (-b, a) of a pair (a, b)."""
    head = start + tl.arange(0, HEADS)[:, None]
    head_mask = head < heads
    x_row += head.to(tl.int64) * x_head
    out_row += head.to(tl.int64) * out_head
    mask = head_mask & pair_mask
    a = tl.load(x_row + column_a * x_column, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x_row + column_b * x_column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_row + column_a * out_column, a * cos_a - b * sin_a, mask=mask)
    tl.store(out_row + column_b * out_column, b * cos_b + a * sin_b, mask=mask)
    if REST > 0:
        rest = ROTARY + tl.arange(0, REST)
        mask = head_mask & (rest < SIZE)
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
    """Return the definition, for q or k and rows of the tables that fit it, in the dtype of x."""
    rotary = cos.shape[-1]
    rotary_part, rest = x[..., :rotary], x[..., rotary:]
    if interleaved:
        swapped = torch.stack((-rotary_part[..., 1::2], rotary_part[..., ::2]), dim=-1).flatten(-2)
    else:
        a, b = rotary_part.chunk(2, dim=-1)
        swapped = torch.cat((-b, a), dim=-1)
    return torch.cat((rotary_part * cos + swapped * sin, rest), dim=-1)


KERNEL = Kernel(
    name="rope",
    functions=(rope_kernel,),
    space=SPACE,
    default=default,
    reference=rope,
    problem=RopeProblem,
)
