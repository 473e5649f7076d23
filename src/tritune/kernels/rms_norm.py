"""RMS normalisation of rows: y = x / sqrt(mean(x²) + eps) · weight, with a residual added first or
without.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tritune.kernels.kernel import Kernel, Problem
from tritune.kernels.rows import nontemporal_pays, row_offsets
from tritune.space import Config, Parameter, Space


# One binary for any number of rows.
@triton.jit(do_not_specialize=["rows"])
def rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, total_ptr, rows, inner_rows, columns,
    x_outer, x_inner, x_column, residual_outer, residual_inner, residual_column,
    out_outer, out_inner, out_column, total_outer, total_inner, total_column, weight_column, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, STREAM: tl.constexpr = False,
    STAGES: tl.constexpr = 1,
):  # fmt: skip
    """Normalise ROWS rows, in blocks of BLOCK columns; WHOLE: a row is one block, read once.

    `total` takes x + residual; without a residual both are None. STREAM: with nontemporal stores.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    x_row = x_ptr + row_offsets(row, inner_rows, x_outer, x_inner)[:, None]
    out_row = out_ptr + row_offsets(row, inner_rows, out_outer, out_inner)[:, None]
    residual_row = residual_ptr
    total_row = total_ptr
    if residual_ptr is not None:
        residual_row += row_offsets(row, inner_rows, residual_outer, residual_inner)[:, None]
        total_row += row_offsets(row, inner_rows, total_outer, total_inner)[:, None]
    row_mask = (row < rows)[:, None]

    column = tl.arange(0, BLOCK)[None, :]
    if WHOLE:
        mask = row_mask & (column < columns)
        x = _load_sum(x_row, residual_row, total_row, column, x_column, residual_column, mask)
        _store_total(x, total_row, column, total_column, mask, STREAM)
        scale = _inverse_rms(tl.sum(x * x, axis=1), columns, eps)
        _store_norm(
            x, scale, weight_ptr, out_row, column, columns, mask, weight_column, out_column, STREAM
        )
    else:
        square_sum = tl.zeros((ROWS,), tl.float32)
        for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
            cols = start + column
            mask = row_mask & (cols < columns)
            x = _load_sum(x_row, residual_row, total_row, cols, x_column, residual_column, mask)
            square_sum += tl.sum(x * x, axis=1)
        scale = _inverse_rms(square_sum, columns, eps)
        # Add a second time instead of reading the total back: in place, the total overwrites the
        # residual and the output x, and no element may be read after it was written.
        for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
            cols = start + column
            mask = row_mask & (cols < columns)
            x = _load_sum(x_row, residual_row, total_row, cols, x_column, residual_column, mask)
            _store_total(x, total_row, cols, total_column, mask, STREAM)
            _store_norm(
                x, scale, weight_ptr, out_row, cols, columns, mask, weight_column, out_column,
                STREAM,
            )  # fmt: skip


@triton.jit
def _load_sum(x_row, residual_row, total_row, column, x_column, residual_column, mask):
    """Load x, or x + residual rounded as the total is: the caller gets back what is normalised."""
    column = column.to(tl.int64)
    x = tl.load(x_row + column * x_column, mask=mask, other=0.0).to(tl.float32)
    if residual_row is not None:
        residual = tl.load(residual_row + column * residual_column, mask=mask, other=0.0)
        x = (x + residual.to(tl.float32)).to(total_row.dtype.element_ty).to(tl.float32)
    return x


@triton.jit
def _store_total(x, total_row, column, total_column, mask, STREAM: tl.constexpr):
    if total_row is not None:
        ptrs = total_row + column.to(tl.int64) * total_column
        tl.store(ptrs, x, mask=mask, cache_modifier=".cs" if STREAM else "")


@triton.jit
def _store_norm(
    x, scale, weight_ptr, out_row, column, columns, mask, weight_column, out_column,
    STREAM: tl.constexpr,
):  # fmt: skip
    column_mask = column < columns
    column = column.to(tl.int64)
    weight = tl.load(weight_ptr + column * weight_column, mask=column_mask, other=0.0)
    y = x * scale * weight.to(tl.float32)
    tl.store(out_row + column * out_column, y, mask=mask, cache_modifier=".cs" if STREAM else "")


@triton.jit
def _inverse_rms(square_sum, columns, eps):
    return tl.rsqrt(square_sum / tl.cast(columns, tl.float32) + tl.cast(eps, tl.float32))[:, None]


@dataclass(frozen=True)
class RmsNormProblem(Problem):
    rows: int  # rounded up to a power of two
    columns: int
    dtype: str
    adds: bool


SPACE = Space(
    parameters=(
        Parameter("ROWS", (1, 2, 4, 8, 16, 32, 64)),
        Parameter("BLOCK", (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)),
        Parameter("STREAM", (False, True)),
        Parameter("STAGES", (1, 2, 3, 4, 5, 6, 8), families=("cuda", "hip")),
        Parameter("num_warps", (1, 2, 4, 8, 16, 32), families=("cuda",)),
        Parameter("num_warps", (1, 2, 4, 8, 16), families=("hip",)),
        Parameter("waves_per_eu", (0, 2, 4), families=("hip",)),
    ),
    constraints=(
        "ROWS <= rows",
        # A block twice the row does no more than one of its size.
        "BLOCK < 2 * columns or BLOCK == 16",
        # Where rows of a tile are computed side by side, long ones need a program of their own.
        "ROWS == 1 or BLOCK >= columns or family == 'cpu'",
        "ROWS * BLOCK <= 32768",
        # Only a loop has stages.
        "STAGES == 1 or BLOCK < columns",
        # At least one element for each thread, and no more than 64: more would spill.
        "32 * num_warps <= ROWS * BLOCK or num_warps == 1",
        "ROWS * BLOCK <= 64 * 32 * num_warps",
    ),
)


def default(problem: RmsNormProblem, family: str, arch: int | str) -> Config:
    whole = max(16, triton.next_power_of_2(problem.columns))
    if family == "cpu":
        # A block that the row's end cuts is slow, so one that divides the row; else a short one.
        divisor = problem.columns & -problem.columns
        block = whole if divisor == problem.columns else min(max(divisor, 128), 1024, whole)
        block = min(block, 32768)
        # Rows are read, or kept, and read again: few enough to be in the nearest cache by then.
        rows = _rows(problem.rows, 2048 // problem.columns, programs=16)
        stream = nontemporal_pays(problem.rows * problem.columns, problem.dtype)
        return Config.of(ROWS=rows, BLOCK=block, STREAM=stream)
    block = min(whole, 16384)
    rows = _rows(problem.rows, 1024 // block, programs=1024)
    warps = min(max(rows * block // 512, 1), 16)
    config = Config.of(ROWS=rows, BLOCK=block, STREAM=False, STAGES=1, num_warps=warps)
    return Config.of(**config.as_kwargs(), waves_per_eu=0) if family == "hip" else config


def _rows(rows: int, at_most: int, programs: int) -> int:
    """Return the rows of a program, a power of two, that leave about so many programs."""
    most = max(1, min(at_most, rows // programs, 64))
    return 1 << (most.bit_length() - 1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Return the definition, computed in the dtype of the inputs."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the definition: the norm of the sum, and the sum."""
    total = x + residual
    return rms_norm(total, weight, eps), total


KERNEL = Kernel(
    name="rms_norm",
    functions=(rms_norm_kernel,),
    space=SPACE,
    default=default,
    reference=rms_norm,
    problem=RmsNormProblem,
)
