"""The lines that skinny GEMM prefetches.

A kernel is compiled as usual, except that instead of a prefetch it calls a function that records
the address.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import normal
from tritune.cpu import codegen, features
from tritune.cpu.launch import loader

LINE = 64
#: The JIT wants a name of its own for each library.
_NUMBERS = itertools.count()
_PREFETCH = re.compile(r"@llvm\.prefetch\.p0\(ptr ([^,]*%?[\w.]+), i32 \d, i32 \d, i32 \d\)")


@triton.jit
def few_rows_kernel(
    x_ptr, weight_ptr, out_ptr,
    FEW: tl.constexpr, MANY: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """x (FEW, K * STEPS) times the transposed weight (MANY, K * STEPS)."""
    few, many = tl.arange(0, FEW), tl.arange(0, MANY)
    acc = tl.zeros([FEW, MANY], tl.float32)
    for step in range(STEPS):
        k = step * K + tl.arange(0, K)
        x = tl.load(x_ptr + few[:, None] * (K * STEPS) + k[None, :])
        weight = tl.load(weight_ptr + many[:, None] * (K * STEPS) + k[None, :])
        acc = tl.dot(x, weight.to(x.dtype).T, acc)
    tl.store(out_ptr + few[:, None] * MANY + many[None, :], acc)


def prefetched_by(
    compiled: Any, tensors: Sequence[torch.Tensor], *numbers: int, programs: int = 1
) -> list[int]:
    """Return the addresses that programs prefetch, in order."""
    text, count = _PREFETCH.subn(r"@prefetched(ptr \1)", compiled.asm["llir"])
    assert count, "nothing is prefetched"
    text = re.sub(r"declare void @llvm\.prefetch.*", "declare void @prefetched(ptr)", text)
    cpu = features.host()
    builder = llvm.JITLibraryBuilder()
    builder.add_object_img(codegen.object_code(text, codegen.assembly(text, cpu), cpu))
    builder.add_current_process()
    parallel = loader._gomp_parallel()
    assert parallel is not None
    builder.import_symbol("GOMP_parallel", parallel)
    found: list[int] = []
    record = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(found.append)
    address = ctypes.cast(record, ctypes.c_void_p).value
    assert address is not None
    builder.import_symbol("prefetched", address)
    builder.export_symbol(loader.ENTRY)
    tracker = builder.link(loader._jit(), f"prefetching{next(_NUMBERS)}")
    entry: Callable[..., None] = loader.Entry(tracker[loader.ENTRY])
    addresses = struct.pack(f"<{len(tensors)}Q", *(tensor.data_ptr() for tensor in tensors))
    addresses += struct.pack(f"<{len(numbers)}q", *numbers)
    entry(addresses, programs, 1, 1, 1, (ctypes.c_int32 * 8)())
    return found


@pytest.mark.parametrize(
    ("dtype", "many", "k", "ahead_bytes", "tiles"),
    [
        pytest.param(torch.float32, 32, 32, 0, 2, id="tiles of 4 kB"),
        pytest.param(torch.float32, 32, 64, 0, 1, id="tiles of 8 kB"),
        pytest.param(torch.float32, 64, 128, 0, 0.25, id="tiles of 32 kB"),
        pytest.param(torch.float16, 32, 64, 0, 2, id="fp16"),
        pytest.param(torch.bfloat16, 32, 64, 0, 2, id="bf16"),
        pytest.param(torch.int8, 32, 128, 0, 2, id="bytes"),
        pytest.param(torch.float32, 64, 64, 4096, 0.25, id="not as far as by default"),
        pytest.param(torch.bfloat16, 32, 128, 32768, 4, id="farther than by default"),
    ],
)
@pytest.mark.parametrize("few", [1, 4])
def test_every_line_is_prefetched_once_and_the_first_ones_in_the_prologue(
    dtype: torch.dtype, many: int, k: int, ahead_bytes: int, tiles: float, few: int
) -> None:
    steps = 8
    weight = normal(dtype, many, k * steps)
    x = normal(torch.bfloat16 if dtype == torch.int8 else dtype, few, k * steps)
    out = torch.empty(few, many)
    compiled = few_rows_kernel[1,](x, weight, out, few, many, k, steps, prefetch_bytes=ahead_bytes)
    expected = x.double() @ weight.double().T
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-1)

    row, size = k * steps * weight.element_size(), weight.element_size()
    begin = weight.data_ptr()
    prefetched = [address - begin for address in prefetched_by(compiled, (x, weight, out))]
    # Every iteration prefetches a tile, and the prologue those that no iteration could.
    assert len(prefetched) == (steps + tiles) * many * k * size // LINE
    inside = [offset for offset in prefetched if 0 <= offset < many * row]
    lines = Counter(offset // LINE for offset in inside)
    every = {(r * row + b) // LINE for r in range(many) for b in range(0, row, LINE)}
    assert set(lines) == every, "every line is prefetched"

    def tile_of(offset: int) -> int:
        return offset % row // (k * size)

    # Past the end of a row comes the next one, the beginning of which is prefetched again.
    ahead = max(int(tiles), 1)
    later = Counter(offset // LINE for offset in inside if tile_of(offset) >= ahead)
    assert set(later.values()) == {1}, "and once only"
    first = [tile_of(offset) for offset in inside[: int(tiles * many * k * size) // LINE]]
    assert first == sorted(first)
    assert set(first) == set(range(ahead))


@triton.jit
def rows_by_table_kernel(
    x_ptr, cache_ptr, table_ptr, out_ptr, steps,
    FEW: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr, WRITES: tl.constexpr,
):  # fmt: skip
    """The sum of x times the transposed pages that a table names; WRITES: and names them anew."""
    few, rows, k = tl.arange(0, FEW), tl.arange(0, ROWS), tl.arange(0, K)
    x = tl.load(x_ptr + few[:, None] * K + k[None, :])
    acc = tl.zeros([FEW, ROWS], tl.float32)
    for step in range(steps):
        page = tl.load(table_ptr + step).to(tl.int64)
        tile = tl.load(cache_ptr + page * (ROWS * K) + rows[:, None] * K + k[None, :])
        acc = tl.dot(x, tile.T, acc)
        if WRITES:
            tl.store(table_ptr + step, page.to(tl.int32))
    tl.store(out_ptr + few[:, None] * ROWS + rows[None, :], acc)


def prefetched_pages(dtype: torch.dtype, rows: int, writes: bool = False) -> list[list[int]]:
    """The lines of pages 5, 2, 7, 0, 3, of 64 numbers in each row, as they are prefetched."""
    few, k, pages = 4, 64, torch.tensor([5, 2, 7, 0, 3], dtype=torch.int32)
    cache, x = normal(dtype, 8 * rows, k), normal(dtype, few, k)
    out = torch.empty(few, rows)
    tensors = (x, cache, pages, out)
    compiled = rows_by_table_kernel[1,](*tensors, len(pages), few, rows, k, writes)
    expected = x.double() @ cache.double().view(8, rows, k)[pages.long()].sum(0).T
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-1)
    page_bytes = rows * k * cache.element_size()
    found = [a - cache.data_ptr() for a in prefetched_by(compiled, tensors, len(pages))]
    return [[offset // page_bytes, offset % page_bytes // LINE] for offset in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_are_prefetched_through_the_table(dtype: torch.dtype) -> None:
    rows = 16
    found = prefetched_pages(dtype, rows)
    lines = rows * 64 * dtype.itemsize // LINE
    # Each page while the one before it is read; after the last there is none but itself.
    assert [page for page, _ in found[::lines]] == [2, 7, 0, 3, 3]
    for first in range(0, len(found), lines):
        assert sorted(found[first : first + lines]) == [[found[first][0], n] for n in range(lines)]


def test_the_page_after_a_large_tile_is_prefetched_through_the_table() -> None:
    rows = 64
    found = prefetched_pages(torch.float32, rows)
    lines = rows * 64 * 4 // LINE
    half = [sorted(found[first : first + lines // 2]) for first in range(0, len(found), lines // 2)]
    lower, upper = range(lines // 2), range(lines // 2, lines)
    tiles = [(5, upper), (2, lower), (2, upper), (7, lower), (7, upper), (0, lower), (0, upper)]
    tiles += [(3, lower), (3, upper), (3, lower)]
    assert half == [[[page, line] for line in part] for page, part in tiles]


def test_a_table_that_the_loop_writes_is_not_used_for_prefetching() -> None:
    rows = 16
    found = prefetched_pages(torch.float32, rows, writes=True)
    pages = [page for page, _ in found]
    assert set(pages) <= {5, 2, 7, 0, 3}
    assert pages[: len(pages) // 5] == [5] * (len(pages) // 5)


@triton.jit
def wrapped_columns_kernel(
    x_ptr, weight_ptr, out_ptr, n, k,
    FEW: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """x (FEW, k) times the weight (k, n), the columns past whose end begin again."""
    few, steps = tl.arange(0, FEW), tl.arange(0, K)
    columns = tl.program_id(0) * N + tl.arange(0, N)
    x_ptrs = x_ptr + few[:, None] * k + steps[None, :]
    weight_ptrs = weight_ptr + steps[:, None] * n + (columns % n)[None, :]
    acc = tl.zeros([FEW, N], tl.float32)
    for step in range(0, tl.cdiv(k, K)):
        x = tl.load(x_ptrs, mask=steps[None, :] < k - step * K, other=0.0)
        weight = tl.load(weight_ptrs, mask=steps[:, None] < k - step * K, other=0.0)
        acc = tl.dot(x, weight, acc)
        x_ptrs += K
        weight_ptrs += K * n
    tl.store(out_ptr + few[:, None] * n + columns[None, :], acc, mask=columns[None, :] < n)


@triton.jit
def descriptor_kernel(
    x_ptr, weight_ptr, out_ptr, n, k,
    FEW: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """x (FEW, k) times the transposed weight (n, k), both by descriptors."""
    first = tl.program_id(0) * N
    x_tiles = tl.make_tensor_descriptor(x_ptr, [FEW, k], [k, 1], [FEW, K])
    weight_tiles = tl.make_tensor_descriptor(weight_ptr, [n, k], [k, 1], [N, K])
    acc = tl.zeros([FEW, N], tl.float32)
    for step in range(0, tl.cdiv(k, K)):
        acc = tl.dot(x_tiles.load([0, step * K]), weight_tiles.load([first, step * K]).T, acc)
    few, columns = tl.arange(0, FEW)[:, None], first + tl.arange(0, N)[None, :]
    tl.store(out_ptr + few * n + columns, acc, mask=columns < n)


@triton.jit
def chunks_kernel(
    x_ptr, weight_ptr, out_ptr, n, k,
    FEW: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """x (FEW, k) times the transposed weight (n, k), by addresses of 64 bits with bounds."""
    few, columns = tl.arange(0, FEW), (tl.program_id(0) * N + tl.arange(0, N)).to(tl.int64)
    acc = tl.zeros([FEW, N], tl.float32)
    for step in range(0, tl.cdiv(k, K)):
        steps = (step * K + tl.arange(0, K)).to(tl.int64)
        inside = (steps[:, None] < k) & (columns[None, :] < n)
        x = tl.load(x_ptr + few[:, None] * k + steps[None, :], mask=steps[None, :] < k, other=0.0)
        weight = tl.load(weight_ptr + steps[:, None] + columns[None, :] * k, mask=inside, other=0.0)
        acc = tl.dot(x, weight, acc)
    tl.store(out_ptr + few[:, None] * n + columns[None, :], acc, mask=columns[None, :] < n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("few", [1, 16])
@pytest.mark.parametrize("kernel", [wrapped_columns_kernel, descriptor_kernel, chunks_kernel])
def test_lines_are_prefetched_where_columns_have_addresses_of_their_own(
    kernel: Any, few: int, dtype: torch.dtype
) -> None:
    n, k, block, depth = 96, 208, 64, 32
    programs = triton.cdiv(n, block)
    x, weight = normal(dtype, few, k), normal(dtype, n, k)
    stored = weight.T.contiguous() if kernel is wrapped_columns_kernel else weight
    out = torch.empty(few, n)
    compiled = kernel[programs,](x, stored, out, n, k, few, block, depth)
    torch.testing.assert_close(out.double(), x.double() @ weight.double().T, rtol=1e-4, atol=1e-4)
    begin, size = stored.data_ptr(), stored.numel() * stored.element_size()
    prefetched = prefetched_by(compiled, (x, stored, out), n, k, programs=programs)
    lines = {(address - begin) // LINE for address in prefetched if 0 <= address - begin < size}
    assert len(lines) > size // LINE // 2
