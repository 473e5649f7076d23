"""Matrix multiplication in tiles, the programs in an order that shares the cache.

    python examples/matmul.py --size 500

Without a GPU the kernel is compiled for the CPU; it runs unchanged on a GPU.
"""

import argparse

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """c = a @ b, a tile of BLOCK_M x BLOCK_N of c per program, for any sizes and strides."""
    # GROUP rows of tiles are walked together, column by column: neighbouring programs then read
    # the same few blocks of a and b while those are still in the cache.
    program = tl.program_id(0)
    programs_per_group = GROUP * tl.cdiv(n, BLOCK_N)
    first_tile_m = program // programs_per_group * GROUP
    group_height = tl.minimum(tl.cdiv(m, BLOCK_M) - first_tile_m, GROUP)
    tile_m = first_tile_m + program % programs_per_group % group_height
    tile_n = program % programs_per_group // group_height

    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    columns = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    inner = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows * stride_am + inner[None, :] * stride_ak
    b_ptrs = b_ptr + inner[:, None] * stride_bk + columns * stride_bn

    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for done in range(0, k, BLOCK_K):
        a = tl.load(a_ptrs, mask=(rows < m) & (inner[None, :] < k - done), other=0.0)
        b = tl.load(b_ptrs, mask=(inner[:, None] < k - done) & (columns < n), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk

    c_ptrs = c_ptr + rows * stride_cm + columns * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(rows < m) & (columns < n))


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    tile: tuple[int, int, int] = (64, 64, 64),
    group: int = 8,
) -> torch.Tensor:
    """a @ b for matrices of any strides; `tile` is (BLOCK_M, BLOCK_N, BLOCK_K)."""
    (m, k), n = a.shape, b.shape[1]
    out = a.new_empty(m, n) if out is None else out
    block_m, block_n, block_k = tile
    matmul_kernel[(triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)](
        a, b, out, m, n, k, *a.stride(), *b.stride(), *out.stride(),
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP=group,
    )  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=500, help="rows and columns of each matrix")
    size = parser.parse_args().size

    device = triton.runtime.driver.active.get_active_torch_device()
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    expected = (a.double() @ b.double()).float()
    # Each element is a sum of `size` products of about 1, and every addition rounds.
    torch.testing.assert_close(matmul(a, b), expected, rtol=1e-5, atol=1e-6 * size)
    print(f"matmul of {size} x {size} matrices on {device}: as torch's in float64")


if __name__ == "__main__":
    main()
