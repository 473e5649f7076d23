"""A program that runs masked accesses right up to a page that must not be touched.

A lane that touches it ends the process, so `test_memory.py` runs this in another one and reads
what got done.
"""

import ctypes
import mmap

import torch
import triton
import triton.language as tl

PAGE = mmap.PAGESIZE


@triton.jit
def load_kernel(x_ptr, out_ptr, count, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < count, other=-1.0))


@triton.jit
def store_kernel(x_ptr, out_ptr, count, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x_ptr + i, tl.load(out_ptr + i), mask=i < count)


@triton.jit
def sparse_kernel(x_ptr, out_ptr, count, N: tl.constexpr):
    # Lane 0 alone is on, and every other address is far outside of any memory of ours.
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i.to(tl.int64) * (1 << 40), mask=i < 1, other=2.0))


@triton.jit
def scalar_kernel(x_ptr, out_ptr, count, N: tl.constexpr):
    tl.store(out_ptr, tl.load(x_ptr + N * 1024, mask=count < 0, other=3.0))
    tl.store(x_ptr + N * 1024, 1.0, mask=count < 0)


@triton.jit
def matrix_kernel(x_ptr, out_ptr, count, N: tl.constexpr):
    m = tl.arange(0, 4)[:, None]
    n = tl.arange(0, N // 4)[None, :]
    i = m * (N // 4) + n
    mask = i < count
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=mask, other=-1.0))
    tl.store(x_ptr + i, i.to(tl.float32), mask=mask)


@triton.jit
def atomic_kernel(x_ptr, out_ptr, count, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(x_ptr + i, 1.0, mask=i < count)


CASES = {
    "load": load_kernel,
    "store": store_kernel,
    "sparse": sparse_kernel,
    "scalar": scalar_kernel,
    "matrix": matrix_kernel,
    "atomic": atomic_kernel,
}


def guarded(count: int) -> torch.Tensor:
    """`count` floats whose end is the end of readable memory."""
    area = mmap.mmap(-1, 2 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start + PAGE), ctypes.c_size_t(PAGE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    floats = torch.frombuffer(area, dtype=torch.float32)[: PAGE // 4]
    return floats[PAGE // 4 - count :]


def expected(
    case: str, x: torch.Tensor, out: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    x, out = x.clone(), out.clone()
    if case in ("load", "matrix"):
        out[:] = -1.0
        out[:count] = x
    if case == "store":
        x[:] = out[:count]
    if case == "sparse":
        out[:] = 2.0
        out[0] = x[0]
    if case == "scalar":
        out[0] = 3.0
    if case == "matrix":
        x[:] = torch.arange(count)
    if case == "atomic":
        x += 1
    return x, out


def main() -> None:
    for case, kernel in CASES.items():
        right = True
        for count in (3, 7, 33, 63):
            x = guarded(count)
            x[:] = torch.arange(count) + 10.0
            out = torch.arange(64, dtype=torch.float32)
            want = expected(case, x, out, count)
            kernel[(1,)](x, out, count, N=64)
            right &= torch.equal(x, want[0]) and torch.equal(out, want[1])
        print(f"{case}: {'right' if right else 'wrong'}", flush=True)


if __name__ == "__main__":
    main()
