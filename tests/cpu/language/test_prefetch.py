"""What products with few rows ask memory for before they read it.

A kernel is compiled as usual but for its last step: where it would ask for a line of memory, it
calls a function that writes the address down.
"""

from __future__ import annotations

import ctypes
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
from tritune.cpu import codegen, features, loader

LINE = 64
_ASKED = re.compile(r"@llvm\.prefetch\.p0\(ptr ([^,]*%?[\w.]+), i32 \d, i32 \d, i32 \d\)")


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


def asked_by(compiled: Any, tensors: Sequence[torch.Tensor]) -> list[int]:
    """The addresses that one program asks for, in their order."""
    text, count = _ASKED.subn(r"@asked(ptr \1)", compiled.asm["llir"])
    assert count, "nothing is asked for"
    text = re.sub(r"declare void @llvm\.prefetch.*", "declare void @asked(ptr)", text)
    cpu = features.host()
    builder = llvm.JITLibraryBuilder()
    builder.add_object_img(codegen.object_code(text, codegen.assembly(text, cpu), cpu))
    builder.add_current_process()
    parallel = loader._gomp_parallel()
    assert parallel is not None
    builder.import_symbol("GOMP_parallel", parallel)
    found: list[int] = []
    write_down = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(found.append)
    address = ctypes.cast(write_down, ctypes.c_void_p).value
    assert address is not None
    builder.import_symbol("asked", address)
    builder.export_symbol(loader.ENTRY)
    tracker = builder.link(loader._jit(), f"asking{id(found)}")
    entry: Callable[..., None] = loader.Entry(tracker[loader.ENTRY])
    addresses = struct.pack(f"<{len(tensors)}Q", *(tensor.data_ptr() for tensor in tensors))
    entry(addresses, 1, 1, 1, 1, (ctypes.c_int32 * 8)())
    return found


@pytest.mark.parametrize(
    ("dtype", "many", "k", "tiles"),
    [
        pytest.param(torch.float32, 32, 32, 2, id="tiles of 4 kB"),
        pytest.param(torch.float32, 32, 64, 1, id="tiles of 8 kB"),
        pytest.param(torch.float32, 64, 128, 0.25, id="tiles of 32 kB"),
        pytest.param(torch.float16, 32, 64, 2, id="fp16"),
        pytest.param(torch.bfloat16, 32, 64, 2, id="bf16"),
        pytest.param(torch.int8, 32, 128, 2, id="bytes"),
    ],
)
@pytest.mark.parametrize("few", [1, 4])
def test_every_line_is_asked_for_once_and_the_first_ones_at_the_start(
    dtype: torch.dtype, many: int, k: int, tiles: float, few: int
) -> None:
    steps = 8
    weight = normal(dtype, many, k * steps)
    x = normal(torch.bfloat16 if dtype == torch.int8 else dtype, few, k * steps)
    out = torch.empty(few, many)
    compiled = few_rows_kernel[1,](x, weight, out, few, many, k, steps)
    expected = x.double() @ weight.double().T
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-1)

    row, size = k * steps * weight.element_size(), weight.element_size()
    begin = weight.data_ptr()
    asked = [address - begin for address in asked_by(compiled, (x, weight, out))]
    # Every iteration asks for a tile, and the first one for those before which nobody came.
    assert len(asked) == (steps + tiles) * many * k * size // LINE
    inside = [offset for offset in asked if 0 <= offset < many * row]
    lines = Counter(offset // LINE for offset in inside)
    every = {(r * row + b) // LINE for r in range(many) for b in range(0, row, LINE)}
    assert set(lines) == every, "every line is asked for"

    def tile_of(offset: int) -> int:
        return offset % row // (k * size)

    # Past the end of a row comes the next one, the beginning of which is asked for once more.
    ahead = max(int(tiles), 1)
    later = Counter(offset // LINE for offset in inside if tile_of(offset) >= ahead)
    assert set(later.values()) == {1}, "and once only"
    first = [tile_of(offset) for offset in inside[: int(tiles * many * k * size) // LINE]]
    assert first == sorted(first)
    assert set(first) == set(range(ahead))
