"""GEMM and GEMV with a weight of 8 or 4 bits: out = activation(x @ weight.T + bias).

Every `group` neighbours along K share a scale and a zero point: w = (code - zero) * scale. Codes
are unsigned. Without zero points, codes of 8 bits are signed and zero is 0; of 4 bits, zero is 8.
Codes less their zero are integers of at most eight bits and a sign, which every dtype of x holds
exactly, so products are formed with them and the scale is applied to the sums. So is the zero where
few rows of x make a weight's code worth little work: sum(x * (code - zero)) = sum(x * code) - zero
* sum(x). The terms of that are larger than the result, so x must have 16 bits: a result as short
does not show what fp32 loses.

Codes of 4 bits lie two in a byte: byte j of a group holds element j in its low half and element
j + group / 2 in its high half. A tile of bytes is then two tiles of neighbours, and nothing has to
be interleaved.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tritune.kernels.activations import activation_reference
from tritune.kernels.kernel import Kernel, Problem
from tritune.kernels.linear import (
    SHARED_CONSTRAINTS,
    SHARED_PARAMETERS,
    add_parts_kernel,
    cpu_config,
    epilogue,
    gpu_config,
    multiply,
    sum_along_k,
    tile_of_program,
    zero_accumulator,
)
from tritune.space import Config, Parameter, Space
from tritune.targets.limits import limits_by_name


@triton.jit
def subtract_zero(codes, zero, ZERO_LAST: tl.constexpr):
    """Return codes (BLOCK_N, BLOCK) minus the zero of their row, unless that comes last."""
    if ZERO_LAST:
        return codes
    else:
        return codes.to(tl.float32) - zero[:, None]


@triton.jit
def linear_quantized_kernel(
    x_ptr, codes_ptr, scales_ptr, zeros_ptr, bias_ptr, out_ptr, M, N, K,
    stride_xm, stride_xk, stride_cn, stride_ck,
    stride_sn, stride_sg, stride_zn, stride_zg,
    ACTIVATION: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    ZERO_LAST: tl.constexpr, METHOD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the result, or one split of it. BLOCK_K divides GROUP, which divides K."""
    tile_m, tile_n = tile_of_program(
        tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M
    )
    split = tl.program_id(1)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask = (rows < M)[:, None]
    col_mask = cols < N

    # The loop counts bytes: BLOCK of them hold a tile, GROUP_BYTES a group.
    BLOCK: tl.constexpr = BLOCK_K * BITS // 8
    GROUP_BYTES: tl.constexpr = GROUP * BITS // 8
    k_tiles = K // BLOCK_K
    tiles_per_split = tl.cdiv(k_tiles, SPLIT_K)
    begin = split * tiles_per_split
    end = tl.minimum(begin + tiles_per_split, k_tiles)

    inner = tl.arange(0, BLOCK).to(tl.int64)[None, :]
    columns = cols.to(tl.int64)
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * stride_xm
    codes_rows = codes_ptr + columns[:, None] * stride_cn
    scale_rows = scales_ptr + columns * stride_sn
    if zeros_ptr is not None:
        zero_rows = zeros_ptr + columns * stride_zn
    acc = zero_accumulator(METHOD, BLOCK_M, BLOCK_N, BLOCK)
    for k_tile in range(begin, end):
        byte = tl.cast(k_tile, tl.int64) * BLOCK
        group = byte // GROUP_BYTES
        codes = tl.load(codes_rows + (byte + inner) * stride_ck, mask=col_mask[:, None], other=0)
        scale = tl.load(scale_rows + group * stride_sg, mask=col_mask, other=0.0).to(tl.float32)
        if zeros_ptr is not None:
            zero = tl.load(zero_rows + group * stride_zg, mask=col_mask, other=0).to(tl.float32)
        else:
            zero = tl.full([BLOCK_N], 8 if BITS == 4 else 0, tl.float32)
        # The element in the byte, or in its low half: as far into the group as the byte.
        k = group * GROUP + byte % GROUP_BYTES + inner
        x = tl.load(x_rows + k * stride_xk, mask=row_mask, other=0.0)
        x_sum = x.to(tl.float32)
        low = codes if BITS == 8 else codes & 15
        sums = multiply(x, subtract_zero(low, zero, ZERO_LAST), METHOD)
        if BITS == 4:
            x = tl.load(x_rows + (k + GROUP // 2) * stride_xk, mask=row_mask, other=0.0)
            x_sum += x.to(tl.float32)
            sums += multiply(x, subtract_zero(codes >> 4, zero, ZERO_LAST), METHOD)
        if METHOD == "sum":
            sums = sum_along_k(sums)
        if ZERO_LAST and (BITS == 4 or zeros_ptr is not None):
            if METHOD == "lanes":
                sums -= x_sum[None, :, :] * zero[:, None, None]
            else:
                sums -= tl.sum(x_sum, 1)[:, None] * zero[None, :]
        acc += sums * (scale[:, None, None] if METHOD == "lanes" else scale[None, :])
    if METHOD == "lanes":
        acc = sum_along_k(acc)
    epilogue(acc, out_ptr, bias_ptr, rows, cols, split, M, N, SPLIT_K, ACTIVATION)


@dataclass(frozen=True)
class LinearQuantizedProblem(Problem):
    #: Rows of x, rounded up to a power of two.
    rows: int
    n: int
    k: int
    dtype: str
    bits: int
    group: int
    zero_points: bool


SPACE = Space(
    (
        Parameter("METHOD", ("dot", "sum", "lanes")),
        Parameter("BLOCK_M", (1, 2, 4, 8, 16, 32, 64, 128)),
        Parameter("BLOCK_N", (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        Parameter("BLOCK_K", (8, 16, 32, 64, 128)),
        *SHARED_PARAMETERS,
    ),
    (
        "BLOCK_K <= group",
        # Two products of half a tile each, where two codes share a byte.
        "METHOD != 'dot' or BLOCK_K * bits >= 128",
        *SHARED_CONSTRAINTS,
    ),
    limits_by_name,
)


def default(problem: LinearQuantizedProblem, family: str, arch: int | str) -> Config:
    if family == "cpu":
        return _default_cpu(problem)
    # RDNA would spill with more, as it does for the plain kernel.
    short = problem.dtype == "float32" or str(arch).startswith("gfx1")
    block_k = min(problem.group, 32 if short else 64)
    block_m = min(max(problem.rows, 16), 64)
    block = (block_m, 32 if block_m == 16 else 64, block_k)
    return gpu_config(problem, block, 4, family, arch)


def _default_cpu(problem: LinearQuantizedProblem) -> Config:
    if problem.rows <= 16:
        # What is done once for a group costs the more, the more rows there are, and the more so
        # where a group has half the bytes.
        block_n = 32 if problem.rows == 1 else 64 if problem.bits == 8 else 128
        return cpu_config("dot", (problem.rows, block_n, problem.group))
    if problem.bits == 8:
        return cpu_config("dot", (min(problem.rows, 128), 16, problem.group))
    return cpu_config("dot", (min(problem.rows, 64), 128, problem.group))


def pack(codes: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """Pack codes (N, K), given in a byte each, as the kernel reads them."""
    if bits == 8:
        return codes.contiguous()
    n, k = codes.shape
    halves = codes.reshape(n, k // group, 2, group // 2)
    return (halves[:, :, 0] | (halves[:, :, 1] << 4)).reshape(n, k // 2)


def unpack(packed: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """Return the codes (N, K), in a byte each."""
    if bits == 8:
        return packed
    n, half_k = packed.shape
    groups = packed.reshape(n, 2 * half_k // group, group // 2)
    return torch.cat((groups & 15, groups >> 4), dim=2).reshape(n, 2 * half_k)


def zero_without_points(bits: int) -> int:
    """Return the code of zero for weights without zero points."""
    return 8 if bits == 4 else 0


def dequantize(
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bits: int,
    group: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the weight (N, K) that the codes stand for."""
    codes = unpack(packed, bits, group).to(dtype)
    codes = codes.reshape(codes.shape[0], -1, group)
    zero = zero_without_points(bits) if zeros is None else zeros.to(dtype)[:, :, None]
    return ((codes - zero) * scales.to(dtype)[:, :, None]).flatten(1)


def reference(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    *,
    bits: int,
    group: int,
) -> torch.Tensor:
    """Return the definition, computed in the dtype of x."""
    y = x @ dequantize(packed, scales, zeros, bits, group, x.dtype).T
    return activation_reference(y if bias is None else y + bias, activation)


KERNEL = Kernel(
    name="linear_quantized",
    functions=(linear_quantized_kernel, add_parts_kernel),
    space=SPACE,
    default=default,
    reference=reference,
    problem=LinearQuantizedProblem,
)
