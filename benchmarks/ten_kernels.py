"""A program with ten `triton.autotune` kernels that knows nothing of tritune: what
`autotune_start.py` starts. Each kernel is called once, and its result is checked.

Prints a JSON object: how many kernels ran, and how many binaries Triton compiled meanwhile.
"""

import argparse
import json

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

ROWS, COLUMNS = 512, 1024
BLOCKS = [
    triton.Config({"BLOCK": block}, num_warps=warps)
    for block in (256, 1024, 4096)
    for warps in (4, 8)
]
LINES = [triton.Config({"LINES": lines}, num_warps=4) for lines in (1, 2, 4, 8, 16, 32)]
TILES = [
    triton.Config({"M": m, "N": n, "K": k}) for m in (32, 64) for n in (32, 64) for k in (32, 64)
]


@triton.autotune(BLOCKS, key=["n"])
@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@triton.autotune(BLOCKS, key=["n"])
@triton.jit
def silu_times(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, at < n)
    tl.store(out + at, a * tl.sigmoid(a) * tl.load(y + at, at < n), at < n)


@triton.autotune(BLOCKS, key=["n"])
@triton.jit
def relu_squared(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.maximum(tl.load(x + at, at < n), 0.0)
    tl.store(out + at, a * a + tl.load(y + at, at < n), at < n)


@triton.autotune(BLOCKS, key=["n"])
@triton.jit
def interpolate(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + at, at < n), tl.load(y + at, at < n)
    tl.store(out + at, a + 0.25 * (b - a), at < n)


@triton.jit
def _tile(x, LINES: tl.constexpr, COLUMNS: tl.constexpr):
    """The rows of this program: their offsets and values."""
    rows = tl.program_id(0) * LINES + tl.arange(0, LINES)
    at = rows[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return at, tl.load(x + at)


@triton.autotune(LINES, key=["COLUMNS"])
@triton.jit
def softmax(x, y, out, COLUMNS: tl.constexpr, LINES: tl.constexpr):
    at, a = _tile(x, LINES, COLUMNS)
    a = tl.exp(a - tl.max(a, 1)[:, None])
    tl.store(out + at, a / tl.sum(a, 1)[:, None])


@triton.autotune(LINES, key=["COLUMNS"])
@triton.jit
def rms_norm(x, y, out, COLUMNS: tl.constexpr, LINES: tl.constexpr):
    at, a = _tile(x, LINES, COLUMNS)
    tl.store(out + at, a * tl.rsqrt(tl.sum(a * a, 1) / COLUMNS + 1e-6)[:, None])


@triton.autotune(LINES, key=["COLUMNS"])
@triton.jit
def layer_norm(x, y, out, COLUMNS: tl.constexpr, LINES: tl.constexpr):
    at, a = _tile(x, LINES, COLUMNS)
    a -= (tl.sum(a, 1) / COLUMNS)[:, None]
    tl.store(out + at, a * tl.rsqrt(tl.sum(a * a, 1) / COLUMNS + 1e-6)[:, None])


@triton.autotune(LINES, key=["COLUMNS"])
@triton.jit
def running_sum(x, y, out, COLUMNS: tl.constexpr, LINES: tl.constexpr):
    at, a = _tile(x, LINES, COLUMNS)
    tl.store(out + at, tl.cumsum(a, 1))


@triton.autotune(LINES, key=["COLUMNS"])
@triton.jit
def row_maximum(x, y, out, COLUMNS: tl.constexpr, LINES: tl.constexpr):
    at, a = _tile(x, LINES, COLUMNS)
    tl.store(out + at, tl.load(y + at) - tl.max(a, 1)[:, None])


@triton.autotune(TILES, key=["rows", "columns"])
@triton.jit
def matmul(x, y, out, rows, columns, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """x @ x transposed: the same rows on both sides."""
    m = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for begin in range(0, columns, K):
        k = begin + tl.arange(0, K)
        a = tl.load(x + m[:, None] * columns + k[None, :])
        b = tl.load(x + n[None, :] * columns + k[:, None])
        total += tl.dot(a, b)
    tl.store(out + m[:, None] * rows + n[None, :], total)


KERNELS = {
    add: lambda x, y: x + y,
    silu_times: lambda x, y: F.silu(x) * y,
    relu_squared: lambda x, y: F.relu(x) ** 2 + y,
    interpolate: lambda x, y: torch.lerp(x, y, 0.25),
    softmax: lambda x, y: F.softmax(x, 1),
    rms_norm: lambda x, y: F.rms_norm(x, (COLUMNS,), eps=1e-6),
    layer_norm: lambda x, y: F.layer_norm(x, (COLUMNS,), eps=1e-6),
    running_sum: lambda x, y: x.cumsum(1),
    row_maximum: lambda x, y: y - x.amax(1, keepdim=True),
    matmul: lambda x, y: x @ x.T,
}


def launch(kernel, x, y, out):
    """Call a kernel with the arguments of its kind."""
    if kernel is matmul:
        grid = lambda meta: (ROWS // meta["M"], ROWS // meta["N"])  # noqa: E731
        kernel[grid](x, y, out, ROWS, COLUMNS)
    elif "LINES" in kernel.arg_names:
        kernel[lambda meta: (ROWS // meta["LINES"],)](x, y, out, COLUMNS)
    else:
        kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=len(KERNELS), help="only the first N")
    count = parser.parse_args().kernels
    compiled = 0

    def listen(*, cache_hit, **_):
        nonlocal compiled
        compiled += not cache_hit

    triton.knobs.compilation.listener = listen
    torch.manual_seed(0)
    x, y = torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)
    for kernel, reference in list(KERNELS.items())[:count]:
        expected = reference(x, y)
        out = torch.empty_like(expected)
        launch(kernel, x, y, out)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-3)
    print(json.dumps({"kernels": count, "compiled": compiled}))


if __name__ == "__main__":
    main()
