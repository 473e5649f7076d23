"""Gated activations, y = act(gate) · up, for the feed-forward layers that have two inputs."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tritune.kernels.activations import activate, activation_reference
from tritune.kernels.kernel import Kernel, Problem
from tritune.kernels.rows import nontemporal_pays, row_offsets
from tritune.space import Config, Parameter, Space


# One binary for any number of rows.
@triton.jit(do_not_specialize=["rows"])
def gated_kernel(
    gate_ptr, up_ptr, out_ptr, rows, inner_rows, columns,
    gate_outer, gate_inner, gate_column, up_outer, up_inner, up_column,
    out_outer, out_inner, out_column,
    ACTIVATION: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STREAM: tl.constexpr = False,
):  # fmt: skip
    """Compute a tile of ROWS rows and BLOCK columns. STREAM: with nontemporal stores."""
    # One axis: the others of a GPU's grid are too short for many rows.
    blocks = tl.cdiv(columns, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int32) * ROWS + tl.arange(0, ROWS)
    # A contiguous tensor is one row, however large: 64 bits for where the block starts, 32 inside.
    start = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows)[:, None] & (column < tl.minimum(columns - start, BLOCK).to(tl.int32))
    gate_row = row_offsets(row, inner_rows, gate_outer, gate_inner) + start * gate_column
    up_row = row_offsets(row, inner_rows, up_outer, up_inner) + start * up_column
    out_row = row_offsets(row, inner_rows, out_outer, out_inner) + start * out_column

    column = column.to(tl.int64)
    gate = tl.load(gate_ptr + gate_row[:, None] + column * gate_column, mask=mask, other=0.0)
    up = tl.load(up_ptr + up_row[:, None] + column * up_column, mask=mask, other=0.0)
    gate, up = gate.to(tl.float32), up.to(tl.float32)
    y = activate(gate, ACTIVATION)
    out_ptrs = out_ptr + out_row[:, None] + column * out_column
    tl.store(out_ptrs, y * up, mask=mask, cache_modifier=".cs" if STREAM else "")


@dataclass(frozen=True)
class GatedProblem(Problem):
    rows: int  # rounded up to a power of two
    columns: int  # likewise, if there is one row only
    dtype: str
    activation: str


SPACE = Space(
    parameters=(
        Parameter("ROWS", (1, 2, 4, 8, 16, 32)),
        Parameter("BLOCK", (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)),
        Parameter("STREAM", (False, True)),
        Parameter("num_warps", (1, 2, 4, 8, 16), families=("cuda", "hip")),
        Parameter("waves_per_eu", (0, 2, 4), families=("hip",)),
    ),
    constraints=(
        "ROWS <= rows",
        # A block twice the row does no more than one of its size.
        "BLOCK < 2 * columns or BLOCK == 64",
        # Several rows only where a row is short.
        "ROWS == 1 or BLOCK >= columns or family == 'cpu'",
        "ROWS * BLOCK <= 32768",
        "32 * num_warps <= ROWS * BLOCK",
        "ROWS * BLOCK <= 32 * 32 * num_warps",
    ),
)


def default(problem: GatedProblem, family: str, arch: int | str) -> Config:
    if family == "cpu":
        # A block that the row's end cuts is slow, so one that divides the row; else a short one.
        divisor = problem.columns & -problem.columns
        block = min(max(divisor if divisor >= 256 else 1024, 64), 4096)
        block = min(block, max(triton.next_power_of_2(problem.columns), 64))
        most = max(1, min(8192 // block, problem.rows // 16, 32))
        stream = nontemporal_pays(problem.rows * problem.columns, problem.dtype)
        return Config.of(ROWS=1 << (most.bit_length() - 1), BLOCK=block, STREAM=stream)
    block = min(max(triton.next_power_of_2(problem.columns), 64), 1024)
    rows = min(1024 // block, problem.rows)
    warps = 4 if rows * block >= 1024 else 1
    config = Config.of(ROWS=rows, BLOCK=block, STREAM=False, num_warps=warps)
    return Config.of(**config.as_kwargs(), waves_per_eu=0) if family == "hip" else config


def gated(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """Return the definition, computed in the dtype of the inputs."""
    return activation_reference(gate, activation) * up


KERNEL = Kernel(
    name="gated",
    functions=(gated_kernel,),
    space=SPACE,
    default=default,
    reference=gated,
    problem=GatedProblem,
)
