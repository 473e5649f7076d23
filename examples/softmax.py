"""The softmax of every row of a matrix, fused: each element is read once and written once.

    python examples/softmax.py --rows 1000 --columns 4096

Without a GPU the kernel is compiled for the CPU; it runs unchanged on a GPU.
"""

import argparse

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(
    x_ptr, out_ptr, x_stride, out_stride, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Each program does ROWS rows, one after the other; a row fits in one block."""
    first = tl.program_id(0) * ROWS
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    for row in range(first, tl.minimum(first + ROWS, rows)):
        # A large matrix has more elements than 32 bits can count.
        place = tl.cast(row, tl.int64)
        x = tl.load(x_ptr + place * x_stride + offsets, mask=inside, other=-float("inf"))
        x = x.to(tl.float32)
        # Subtracting the maximum changes nothing but keeps exp from overflowing.
        powers = tl.exp(x - tl.max(x, axis=0))
        y = powers / tl.sum(powers, axis=0)
        y = y.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + place * out_stride + offsets, y, mask=inside)


def softmax(
    x: torch.Tensor, *, out: torch.Tensor | None = None, rows_per_program: int = 4
) -> torch.Tensor:
    """torch.softmax(x, dim=1) of a matrix whose rows are contiguous."""
    rows, columns = x.shape
    out = torch.empty_like(x) if out is None else out
    softmax_kernel[(triton.cdiv(rows, rows_per_program),)](
        x,
        out,
        x.stride(0),
        out.stride(0),
        rows,
        columns,
        ROWS=rows_per_program,
        BLOCK=triton.next_power_of_2(columns),
    )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--columns", type=int, default=4096)
    args = parser.parse_args()

    device = triton.runtime.driver.active.get_active_torch_device()
    x = torch.randn(args.rows, args.columns, device=device)
    expected = x.double().softmax(dim=1).float()
    torch.testing.assert_close(softmax(x), expected, rtol=1e-5, atol=1e-7)
    print(f"softmax of {args.rows} rows of {args.columns} on {device}: as torch's in float64")


if __name__ == "__main__":
    main()
