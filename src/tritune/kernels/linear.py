"""GEMM and GEMV with an epilogue: out = activation(x @ weight.T + bias).

Three ways to multiply, chosen by METHOD:

- "dot" multiplies tiles as matrices; right for many rows.
- "sum" multiplies tiles element by element and reduces each tile along K; for the few rows of
  decoding, where reading the weight is all the work.
- "lanes" does so too, but accumulates each element of a tile, and reduces along K at the end.

With few rows and few columns there are not enough tiles for a whole device. K is then split
(split-K): each split writes its partial sums to a workspace, and a second kernel adds them in a
fixed order, so that the result does not depend on which came first.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from tritune.dtypes import element_bytes
from tritune.kernels.activations import activate, activation_reference
from tritune.kernels.cpu_options import CPU_CHOOSES, CPU_ROWS, PREFETCH
from tritune.kernels.kernel import Kernel, Problem
from tritune.space import Config, Parameter, Space
from tritune.targets.limits import limits_by_name


@triton.jit
def tile_of_program(program, m_tiles, n_tiles, GROUP_M: tl.constexpr):
    """Return the row and column of a tile, in grouped order.

    GROUP_M rows of tiles are walked column by column, so that tiles that run at the same time share
    rows of x and of the weight.
    """
    first_m = program // (GROUP_M * n_tiles) * GROUP_M
    group_size = tl.minimum(m_tiles - first_m, GROUP_M)
    in_group = program % (GROUP_M * n_tiles)
    return first_m + in_group % group_size, in_group // group_size


@triton.jit
def zero_accumulator(
    METHOD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr
):
    """Return zeros in the shape of METHOD's accumulator."""
    if METHOD == "lanes":
        return tl.zeros([BLOCK_N, BLOCK_M, BLOCK], tl.float32)
    else:
        return tl.zeros([BLOCK_M, BLOCK_N], tl.float32)


@triton.jit
def multiply(x, w, METHOD: tl.constexpr):
    """Return x @ w.T of tiles x (BLOCK_M, BLOCK) and w (BLOCK_N, BLOCK); where METHOD is not "dot",
    the products (BLOCK_N, BLOCK_M, BLOCK) before the reduction along K.
    """
    if METHOD == "dot":
        return tl.dot(x, w.to(x.dtype).T, input_precision="ieee")
    else:
        return w.to(tl.float32)[:, None, :] * x.to(tl.float32)[None, :, :]


@triton.jit
def sum_along_k(products):
    """Reduce products (BLOCK_N, BLOCK_M, BLOCK) to sums (BLOCK_M, BLOCK_N)."""
    return tl.sum(products, axis=2).T


@triton.jit
def epilogue(
    acc, out_ptr, bias_ptr, rows, cols, split, M, N,
    SPLIT_K: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Store bias and activation of the sums; with split-K, the partial sums in the workspace
    (SPLIT_K, M, N).
    """
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    offsets = rows.to(tl.int64)[:, None] * N + cols[None, :]
    if SPLIT_K > 1:
        tl.store(out_ptr + split.to(tl.int64) * M * N + offsets, acc, mask=mask)
    else:
        if bias_ptr is not None:
            acc += tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
        y = activate(acc, ACTIVATION)
        tl.store(out_ptr + offsets, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def linear_kernel(
    x_ptr, w_ptr, bias_ptr, out_ptr, M, N, K,
    stride_xm, stride_xk, stride_wn, stride_wk,
    ACTIVATION: tl.constexpr, EVEN_K: tl.constexpr, METHOD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the result, or one split of it. EVEN_K: every split is whole tiles."""
    tile_m, tile_n = tile_of_program(
        tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M
    )
    split = tl.program_id(1)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)

    k_per_split = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLIT_K) * BLOCK_K
    begin = split * k_per_split
    end = tl.minimum(begin + k_per_split, K)

    k = (begin + inner).to(tl.int64)
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * stride_xm + k[None, :] * stride_xk
    w_ptrs = w_ptr + cols.to(tl.int64)[:, None] * stride_wn + k[None, :] * stride_wk
    row_mask = (rows < M)[:, None]
    col_mask = (cols < N)[:, None]

    acc = zero_accumulator(METHOD, BLOCK_M, BLOCK_N, BLOCK_K)
    for start in range(begin, end, BLOCK_K):
        if EVEN_K:
            x = tl.load(x_ptrs, mask=row_mask, other=0.0)
            w = tl.load(w_ptrs, mask=col_mask, other=0.0)
        else:
            k_mask = (start + inner < K)[None, :]
            x = tl.load(x_ptrs, mask=row_mask & k_mask, other=0.0)
            w = tl.load(w_ptrs, mask=col_mask & k_mask, other=0.0)
        if METHOD == "dot":
            acc = tl.dot(x, w.to(x.dtype).T, acc, input_precision="ieee")
        elif METHOD == "sum":
            acc += sum_along_k(multiply(x, w, METHOD))
        else:
            acc += multiply(x, w, METHOD)
        x_ptrs += tl.full([], BLOCK_K, tl.int64) * stride_xk
        w_ptrs += tl.full([], BLOCK_K, tl.int64) * stride_wk
    if METHOD == "lanes":
        acc = sum_along_k(acc)
    epilogue(acc, out_ptr, bias_ptr, rows, cols, split, M, N, SPLIT_K, ACTIVATION)


@triton.jit
def add_parts_kernel(
    parts_ptr, bias_ptr, out_ptr, M, N,
    ACTIVATION: tl.constexpr, SPLIT_K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the partial sums (SPLIT_K, M, N) of split-K in their order, then bias and activation."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < N
    acc = tl.zeros([BLOCK], tl.float32)
    for split in range(SPLIT_K):
        acc += tl.load(parts_ptr + (split * M + row) * N + cols, mask=mask, other=0.0)
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    y = activate(acc, ACTIVATION)
    tl.store(out_ptr + row * N + cols, y.to(out_ptr.dtype.element_ty), mask=mask)


@dataclass(frozen=True)
class LinearProblem(Problem):
    #: Rows of x, rounded up to a power of two.
    rows: int
    n: int
    k: int
    dtype: str
    #: Whether the weight is contiguous along K, as a torch.nn.Linear keeps it.
    inner_contiguous: bool


#: Constraints of the plain and the quantized kernel.
SHARED_CONSTRAINTS = (
    # Element by element: for few rows, and a tile that fits in registers.
    "METHOD == 'dot' or (BLOCK_M <= 8 and BLOCK_M <= rows and BLOCK_N <= 32)",
    "METHOD != 'lanes' or BLOCK_M * BLOCK_N * BLOCK_K <= (2048 if family == 'cpu' else 8192)",
    "METHOD != 'sum' or BLOCK_K >= 32",
    "METHOD == 'dot' or family == 'cpu' or 1024 <= BLOCK_M * BLOCK_N * BLOCK_K <= 8192",
    "METHOD == 'dot' or (num_stages == 2 and num_warps <= 4)",
    "METHOD == 'dot' or (matrix_instr_nonkdim == 0 and kpack == 1)",
    "METHOD == 'dot' or (micro_m == 0 and micro_n == 0 and unroll == 0 and prefetch_bytes == 0)",
    # As matrices: the units' smallest tile, and tiles that are worth the copy of their operands.
    "METHOD != 'dot' or BLOCK_M >= (1 if family == 'cpu' else 16)",
    "METHOD != 'dot' or (BLOCK_N >= 16 and BLOCK_K >= 32)",
    "METHOD != 'dot' or BLOCK_M * BLOCK_N >= (16 if family == 'cpu' else 512)",
    *CPU_ROWS,
    "METHOD != 'dot' or num_warps * 128 <= BLOCK_M * BLOCK_N <= num_warps * 8192",
    "BLOCK_M <= max(rows, 16)",
    # With one row of tiles there is but one order.
    "GROUP_M == 1 or BLOCK_M * GROUP_M <= rows",
    # Splitting is for few rows, and for parts of some length.
    "SPLIT_K == 1 or (rows <= 64 and SPLIT_K * BLOCK_K * 2 <= k)",
    # Operands of all stages in shared memory.
    "BLOCK_K * (BLOCK_M + BLOCK_N) * (4 if dtype == 'float32' else 2) * num_stages"
    " <= shared_memory_bytes",
    # The width of a matrix instruction is a choice on CDNA only, whose warps have 64 lanes.
    "matrix_instr_nonkdim < 32 or (BLOCK_M >= 32 and BLOCK_N >= 32)",
    "matrix_instr_nonkdim == 0 or warp_size == 64",
    "kpack == 1 or arch in ('gfx90a', 'gfx942')",
)

#: Parameters of both, beside the method and the blocks.
SHARED_PARAMETERS = (
    Parameter("GROUP_M", (1, 4, 8)),
    Parameter("SPLIT_K", (1, 2, 4, 8, 16)),
    Parameter("num_warps", (1, 2, 4, 8), ("cuda", "hip")),
    Parameter("num_stages", (2, 3, 4, 5), ("cuda",)),
    Parameter("num_stages", (1, 2, 3), ("hip",)),
    Parameter("waves_per_eu", (0, 2, 4), ("hip",)),
    Parameter("matrix_instr_nonkdim", (0, 16, 32), ("hip",)),
    Parameter("kpack", (1, 2), ("hip",)),
    Parameter("micro_m", (0, 4, 6), ("cpu",)),
    Parameter("micro_n", (0, 2, 4), ("cpu",)),
    Parameter("unroll", (0, 1, 8), ("cpu",)),
    PREFETCH,
)

SPACE = Space(
    (
        Parameter("METHOD", ("dot", "sum", "lanes")),
        Parameter("BLOCK_M", (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        Parameter("BLOCK_N", (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        Parameter("BLOCK_K", (8, 16, 32, 64, 128, 256, 512)),
        *SHARED_PARAMETERS,
    ),
    (
        # Neighbours along K must be neighbours in memory, to be read as such.
        "METHOD == 'dot' or inner_contiguous",
        *SHARED_CONSTRAINTS,
    ),
    limits_by_name,
)


def default(problem: LinearProblem, family: str, arch: int | str) -> Config:
    if family == "cpu":
        return _default_cpu(problem)
    fp32 = problem.dtype == "float32"
    if problem.rows <= 16:
        block, warps = (16, 32, 64 if fp32 else 128), 4
    elif problem.rows <= 64 or fp32:
        block, warps = (min(problem.rows, 64), 64, 32 if fp32 else 64), 4
    else:
        # RDNA holds both operands in registers, twice over: half as much of K does not spill.
        block, warps = (128, 128, 32 if str(arch).startswith("gfx1") else 64), 8
    return gpu_config(problem, block, warps, family, arch)


def gpu_config(
    problem: Any, block: tuple[int, int, int], warps: int, family: str, arch: int | str
) -> Config:
    """Return the default config for a tile; each stage has its operands in shared memory."""
    block_m, block_n, block_k = block
    # Split K until a hundred multiprocessors have work, each part being worth a program.
    rows, split = problem.rows, 1
    tiles = triton.cdiv(rows, block_m) * triton.cdiv(problem.n, block_n)
    while rows <= 64 and tiles * split < 128 and split < 16 and split * block_k * 8 <= problem.k:
        split *= 2
    options = {"num_stages": 2, "waves_per_eu": 0, "matrix_instr_nonkdim": 0, "kpack": 1}
    if family == "cuda":
        shared_bytes = limits_by_name(family, arch)["shared_memory_bytes"]
        operand_bytes = block_k * (block_m + block_n) * element_bytes(problem.dtype)
        options = {"num_stages": 3 if 3 * operand_bytes <= shared_bytes else 2}
    return Config.of(
        METHOD="dot",
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP_M=8 if rows >= 8 * block_m else 1,
        SPLIT_K=split,
        num_warps=warps,
        **options,
    )


def _default_cpu(problem: LinearProblem) -> Config:
    if problem.inner_contiguous:
        if problem.rows <= 16:
            # Fewer columns at a time where there are few, so that all cores have some. One row
            # takes sixteen at once: more are more streams than a CPU follows. Of those it takes
            # shorter pieces where a conversion or twice the bytes come with them.
            one = problem.rows == 1
            many = problem.n >= 4096 and not one
            block_k = 128 if one and problem.dtype != "bfloat16" else 256
            return cpu_config("dot", (problem.rows, 32 if many else 16, block_k))
        # All rows at once, so that every tile of the weight is turned around in registers but once.
        # It stays in the first-level cache meanwhile.
        deep = problem.dtype != "float32" and problem.rows > 64
        return cpu_config("dot", (min(problem.rows, 256), 64, 128 if deep else 64))
    rows = max(problem.rows, 4)
    return cpu_config("dot", (min(rows, 32), 128 if rows <= 16 else 256, 128))


def cpu_config(method: str, block: tuple[int, int, int]) -> Config:
    block_m, block_n, block_k = block
    return Config.of(
        METHOD=method,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP_M=1,
        SPLIT_K=1,
        **CPU_CHOOSES,
    )


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """Return the definition, computed in the dtype of the inputs."""
    y = x @ weight.T
    return activation_reference(y if bias is None else y + bias, activation)


KERNEL = Kernel(
    name="linear",
    functions=(linear_kernel, add_parts_kernel),
    space=SPACE,
    default=default,
    reference=reference,
    problem=LinearProblem,
)
