"""Adding two vectors, the smallest Triton program that does something.

    python examples/vector_add.py --elements 1000000

Without a GPU the kernel is compiled for the CPU; it runs unchanged on a GPU.
"""

import argparse

import torch
import triton
import triton.language as tl


@triton.jit
def vector_add_kernel(x_ptr, y_ptr, out_ptr, elements, BLOCK: tl.constexpr):
    """Each program adds BLOCK elements; the last one, those that are left."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < elements
    x = tl.load(x_ptr + offsets, mask=inside)
    y = tl.load(y_ptr + offsets, mask=inside)
    tl.store(out_ptr + offsets, x + y, mask=inside)


def vector_add(
    x: torch.Tensor, y: torch.Tensor, *, out: torch.Tensor | None = None, block: int = 4096
) -> torch.Tensor:
    """x + y for contiguous tensors of one shape."""
    out = torch.empty_like(x) if out is None else out
    programs = triton.cdiv(x.numel(), block)
    vector_add_kernel[(programs,)](x, y, out, x.numel(), BLOCK=block)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=1_000_000)
    elements = parser.parse_args().elements

    device = triton.runtime.driver.active.get_active_torch_device()
    x, y = torch.randn(elements, device=device), torch.randn(elements, device=device)
    torch.testing.assert_close(vector_add(x, y), x + y, rtol=0, atol=0)
    print(f"vector add of {elements} elements on {device}: the same as torch's, to the bit")


if __name__ == "__main__":
    main()
