"""Loads and stores: masks, strides, gathers, aliasing, and the order of effects in a program."""

import mmap
import subprocess
import sys

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu.language.guarded import CASES
from tests.cpu.programs import ROOT
from tests.cpu.values import ALL, assert_same, dtype_of, from_bits, normal, patterns, prop, take
from tritune.testing import interpret, launch

N = 64


@triton.jit
def masked_copy_kernel(x_ptr, mask_ptr, out_ptr, N: tl.constexpr, OTHER: tl.constexpr):
    i = tl.arange(0, N)
    mask = tl.load(mask_ptr + i)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=mask, other=OTHER))


@triton.jit
def masked_store_kernel(x_ptr, mask_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i), mask=tl.load(mask_ptr + i))


def some_mask(count: int = N) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).random(count) < 0.5)


@pytest.mark.parametrize("dtype", [d for d in ALL if not d.startswith("float8")])
def test_masked_off_lanes_of_a_load_hold_other(dtype):
    x = from_bits(np.arange(N, dtype=np.uint64) * np.uint64(0x0301_0703_0501), dtype_of(dtype))
    mask = some_mask()
    *_, out = launch(masked_copy_kernel, (1,), x, mask, torch.zeros_like(x), N=N, OTHER=1)
    assert_same(out, torch.where(mask, x, torch.ones_like(x)))


@pytest.mark.parametrize("dtype", ALL)
def test_masked_off_lanes_of_a_store_keep_what_was_there(dtype):
    x = from_bits(np.arange(N, dtype=np.uint64) * np.uint64(0x0301_0703_0501), dtype_of(dtype))
    there = from_bits(np.full(N, 0x55, dtype=np.uint64), dtype_of(dtype))
    mask = some_mask()
    *_, out = launch(masked_store_kernel, (1,), x, mask, there, N=N)
    whole = torch.from_numpy(
        np.where(mask.numpy(), x.view(torch.uint8).numpy().reshape(N, -1).T, 0).T.copy()
    )
    kept = torch.from_numpy(
        np.where(mask.numpy(), 0, there.view(torch.uint8).numpy().reshape(N, -1).T).T.copy()
    )
    assert torch.equal(out.view(torch.uint8).reshape(N, -1), whole | kept)


@prop
@given(drawn=patterns(N), mask=st.lists(st.booleans(), min_size=N, max_size=N))
def test_any_mask_on_a_load(drawn, mask):
    x, chosen = take(drawn, torch.float32), torch.tensor(mask)
    *_, out = launch(masked_copy_kernel, (1,), x, chosen, torch.zeros_like(x), N=N, OTHER=-2.5)
    assert_same(out, torch.where(chosen, x, torch.full_like(x, -2.5)))


@triton.jit(do_not_specialize=["length", "start"])
def prefix_kernel(x_ptr, out_ptr, length, start, N: tl.constexpr):
    i = start + tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i < length)
    tl.store(out_ptr + i, x + 1, mask=i < length)


@prop
@given(length=st.integers(-3, 2 * N + 3), start=st.integers(0, N))
def test_any_length_and_start_of_a_masked_copy(length, start):
    x = torch.arange(3 * N, dtype=torch.int32)
    _, out = launch(prefix_kernel, (1,), x, torch.full_like(x, -7), length, start, N=N)
    end = max(start, min(length, start + N))
    expected = torch.full_like(x, -7)
    expected[start:end] = x[start:end] + 1
    assert_same(out, expected)


@pytest.mark.parametrize("count", [1, 2, 4, 128])
def test_vectors_of_every_length(count):
    x = torch.arange(count, dtype=torch.float32)
    _, out = launch(prefix_kernel, (1,), x, torch.zeros_like(x), count, 0, N=count)
    assert_same(out, x + 1)


@triton.jit
def scalar_kernel(x_ptr, out_ptr, flag):
    x = tl.load(x_ptr)
    y = tl.load(x_ptr + 1, mask=flag != 0, other=9.0)
    tl.store(out_ptr, x + y)
    tl.store(out_ptr + 1, y, mask=flag != 0)


@pytest.mark.parametrize("flag", [0, 2])
def test_scalar_loads_and_stores_with_masks(flag):
    x = torch.tensor([1.0, 2.0])
    _, out = launch(scalar_kernel, (1,), x, torch.full((2,), -1.0), flag)
    assert_same(out, torch.tensor([3.0, 2.0] if flag else [10.0, -1.0]))


@triton.jit(do_not_specialize=["rows", "cols", "sx0", "so0"])
def rank2_kernel(x_ptr, out_ptr, rows, cols, sx0, sx1, so0, so1, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[None, :]
    mask = (m < rows) & (n < cols)
    x = tl.load(x_ptr + m * sx0 + n * sx1, mask=mask, other=0.0)
    tl.store(out_ptr + m * so0 + n * so1, x, mask=mask)


@prop
@given(
    rows=st.integers(1, 16),
    cols=st.integers(1, 32),
    transposed=st.booleans(),
    step=st.integers(1, 3),
)
def test_matrices_with_any_strides_and_bounds(rows, cols, transposed, step):
    base = torch.arange(32 * 32 * step, dtype=torch.float32).reshape(32, 32 * step)[:, ::step]
    x = (base.T if transposed else base)[:rows, :cols]
    out = torch.zeros(rows, cols)
    args = rows, cols, *x.stride(), *out.stride()
    _, out = launch(rank2_kernel, (1,), x, out, *args, M=16, N=32)
    assert_same(out, x.contiguous())


@triton.jit
def rank3_kernel(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, limit):
    a = tl.arange(0, A)[:, None, None]
    b = tl.arange(0, B)[None, :, None]
    c = tl.arange(0, C)[None, None, :]
    x = tl.load(x_ptr + a * (B * C) + b * C + c, mask=b < limit, other=-1)
    tl.store(out_ptr + c * (A * B) + b * A + a, x)


def test_rank_3_with_a_mask_in_the_middle_and_a_transposed_store():
    x = torch.arange(4 * 8 * 2, dtype=torch.int32).reshape(4, 8, 2)
    _, out = launch(
        rank3_kernel, (1,), x, torch.zeros(2, 8, 4, dtype=torch.int32), A=4, B=8, C=2, limit=5
    )
    expected = x.clone()
    expected[:, 5:] = -1
    assert_same(out, expected.permute(2, 1, 0).contiguous())


@triton.jit
def rank4_kernel(
    x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr
):
    a = tl.arange(0, A)[:, None, None, None]
    b = tl.arange(0, B)[None, :, None, None]
    c = tl.arange(0, C)[None, None, :, None]
    d = tl.arange(0, D)[None, None, None, :]
    i = ((a * B + b) * C + c) * D + d
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=(a + d) % 2 == 0, other=5) * 2)


def test_rank_4():
    x = torch.arange(2 * 4 * 2 * 8, dtype=torch.int32).reshape(2, 4, 2, 8)
    _, out = launch(rank4_kernel, (1,), x, torch.zeros_like(x), A=2, B=4, C=2, D=8)
    a, d = torch.arange(2).reshape(2, 1, 1, 1), torch.arange(8)
    assert_same(out, torch.where((a + d) % 2 == 0, x, 5) * 2)


@triton.jit
def gather_kernel(x_ptr, index_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + tl.load(index_ptr + i)))


@triton.jit
def scatter_kernel(x_ptr, index_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + tl.load(index_ptr + i), tl.load(x_ptr + i))


@pytest.mark.parametrize("index", ["int32", "int64"])
@prop
@given(places=st.lists(st.integers(0, 99), min_size=N, max_size=N))
def test_a_gather_reads_any_places(index, places):
    x, chosen = normal(torch.float32, 100), torch.tensor(places, dtype=dtype_of(index))
    *_, out = launch(gather_kernel, (1,), x, chosen, torch.zeros(N), N=N)
    assert_same(out, x[chosen.long()])


@prop
@given(places=st.permutations(range(N)))
def test_a_scatter_writes_any_places(places):
    x, chosen = normal(torch.float32, N), torch.tensor(places, dtype=torch.int32)
    *_, out = launch(scatter_kernel, (1,), x, chosen, torch.zeros(N), N=N)
    expected = torch.zeros(N)
    expected[chosen.long()] = x
    assert_same(out, expected)


@triton.jit
def strided_kernel(x_ptr, out_ptr, stride, out_stride, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + (N - 1) * 3 + i * out_stride, tl.load(x_ptr + (N - 1) * 3 + i * stride))


@pytest.mark.parametrize(
    ("stride", "out_stride"), [(-1, 1), (1, -1), (-3, -2), (0, 1), (3, -3), (2, 2)]
)
def test_strides_of_either_sign_and_zero(stride, out_stride):
    x = torch.arange(6 * N, dtype=torch.int32)
    _, out = launch(strided_kernel, (1,), x, torch.zeros_like(x), stride, out_stride, N=N)
    expected = torch.zeros_like(x)
    i, base = torch.arange(N), (N - 1) * 3
    expected[base + i * out_stride] = x[base + i * stride]
    assert_same(out, expected)


@triton.jit
def constant_stride_kernel(x_ptr, out_ptr, N: tl.constexpr, STRIDE: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i * STRIDE, tl.load(x_ptr + (N - 1 - i) * STRIDE))


@pytest.mark.parametrize("stride", [1, 2, 5])
def test_reversed_reads_with_a_constant_stride(stride):
    x = torch.arange(N * stride, dtype=torch.int32)
    _, out = launch(constant_stride_kernel, (1,), x, torch.zeros_like(x), N=N, STRIDE=stride)
    expected = torch.zeros_like(x)
    expected[::stride] = x[::stride].flip(0)
    assert_same(out, expected)


@triton.jit
def far_kernel(x_ptr, far, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x_ptr + far + i, tl.load(x_ptr + i) + 1)
    row = tl.full([N], 3, tl.int64)
    tl.store(x_ptr + row * (far // 4) + i, i.to(tl.int8))


def test_offsets_beyond_31_bits():
    far = 5 * 2**30
    # Address space only: no page is used before it is touched.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = torch.frombuffer(mmap.mmap(-1, far + 4096, flags=flags), dtype=torch.int8)
    memory[:16] = torch.arange(16, dtype=torch.int8)
    far_kernel[(1,)](memory, far, N=16)
    assert_same(memory[far : far + 16].clone(), torch.arange(1, 17, dtype=torch.int8))
    assert_same(memory[3 * far // 4 :][:16].clone(), torch.arange(16, dtype=torch.int8))


@triton.jit
def narrow_offset_kernel(x_ptr, offset_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + 128 + tl.load(offset_ptr + i)))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32"])
def test_narrow_offsets_extend_by_their_sign(dtype):
    x = torch.arange(400, dtype=torch.int32)
    low = -100 if dtype.startswith("int") else 0
    offsets = torch.from_numpy(np.linspace(low, 120, 16).astype(dtype))
    *_, out = launch(
        narrow_offset_kernel, (1,), x, offsets, torch.zeros(16, dtype=torch.int32), N=16
    )
    assert_same(out, torch.from_numpy((128 + offsets.numpy().astype(np.int64)).astype(np.int32)))


@triton.jit
def shifted_kernel(x_ptr, shift, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x_ptr + shift + i, tl.load(x_ptr + i) * 10)


@pytest.mark.parametrize("shift", [0, 1, 3, 16, 63])
def test_a_store_that_overlaps_its_load_sees_the_old_values(shift):
    x = torch.arange(2 * N, dtype=torch.int32)
    (out,) = launch(shifted_kernel, (1,), x, shift, N=N)
    expected = x.clone()
    expected[shift : shift + N] = x[:N] * 10
    assert_same(out, expected)


@triton.jit
def swap_rows_kernel(x_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    first = tl.load(x_ptr + i)
    second = tl.load(x_ptr + N + i)
    tl.store(x_ptr + i, second)
    tl.store(x_ptr + N + i, first)


def test_a_value_loaded_before_a_store_is_the_old_one():
    x = torch.arange(2 * N, dtype=torch.float32).reshape(2, N)
    (out,) = launch(swap_rows_kernel, (1,), x, N=N)
    assert_same(out, x.flip(0))


@triton.jit
def transpose_in_place_kernel(x_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i[:, None] * N + i[None, :])
    tl.store(x_ptr + i[None, :] * N + i[:, None], x)


def test_a_matrix_can_be_transposed_in_place():
    x = torch.arange(256, dtype=torch.int32).reshape(16, 16)
    (out,) = launch(transpose_in_place_kernel, (1,), x, N=16)
    assert_same(out, x.T.contiguous())


@triton.jit
def order_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    before = tl.load(x_ptr + i)
    tl.store(x_ptr + i, before + 100)
    after = tl.load(x_ptr + (N - 1 - i))
    tl.store(out_ptr + i, after)
    tl.store(out_ptr + 1 + i, before)
    tl.store(x_ptr + i, i)


def test_effects_happen_in_program_order():
    x = torch.arange(N, dtype=torch.int32)
    changed, out = launch(order_kernel, (1,), x, torch.zeros(N + 1, dtype=torch.int32), N=N)
    expected = torch.cat([torch.tensor([N - 1 + 100], dtype=torch.int32), x])
    assert_same(out, expected)
    assert_same(changed, x)


@triton.jit
def loop_order_kernel(x_ptr, steps, N: tl.constexpr):
    i = tl.arange(0, N)
    for _ in range(steps):
        x = tl.load(x_ptr + i)
        tl.store(x_ptr + 1 + i, x)


def test_a_loop_of_overlapping_copies_moves_one_place_per_step():
    x = torch.arange(2 * N, dtype=torch.int32)
    out = launch(loop_order_kernel, (1,), x, 3, N=N)
    expected = interpret(loop_order_kernel, (1,), x, 3, N=N)
    assert_same(out[0], expected[0])


@triton.jit
def pointers_kernel(x_ptr, y_ptr, out_ptr, steps, N: tl.constexpr):
    i = tl.arange(0, N)
    left = x_ptr + i
    right = y_ptr + i
    total = tl.zeros([N], tl.float32)
    for _ in range(steps):
        total += tl.load(left) * tl.load(right)
        left += N
        right += 2 * N
    chosen = tl.where(i % 2 == 0, x_ptr + i, y_ptr + i)
    tl.store(out_ptr + i, total)
    tl.store(out_ptr + N + i, tl.load(chosen))


def test_pointers_can_be_carried_by_a_loop_and_selected():
    x, y = normal(torch.float32, 4 * N), normal(torch.float32, 8 * N, seed=1)
    *_, out = launch(pointers_kernel, (1,), x, y, torch.zeros(2 * N), 3, N=N)
    *_, expected = interpret(pointers_kernel, (1,), x, y, torch.zeros(2 * N), 3, N=N)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)


@triton.jit
def hints_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i, cache_modifier=".ca", eviction_policy="evict_first", volatile=True)
    tl.store(out_ptr + i, x, cache_modifier=".wb", eviction_policy="evict_last")


def test_cache_hints_change_nothing():
    x = normal(torch.float32, N)
    _, out = launch(hints_kernel, (1,), x, torch.zeros_like(x), N=N)
    assert_same(out, x)


@triton.jit
def streamed_kernel(x_ptr, out_ptr, count, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < count), mask=i < count, cache_modifier=".cs")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("first", [0, 1, 3, 4, 32])
def test_results_can_go_past_the_caches_wherever_they_are(dtype, first):
    """Whole vectors do where they are aligned; the others, and the last elements, do not."""
    count, programs = 3 * N + 17, 4
    x = normal(torch.float32, count).to(dtype_of(dtype))
    around = torch.full((count + 96,), 7).to(dtype_of(dtype))
    out = around[first : first + count]
    streamed_kernel[(programs,)](x, out, count, N=N)
    assert_same(out, x)
    assert (around[:first] == 7).all() and (around[first + count :] == 7).all()


def test_what_goes_past_the_caches_is_there_for_all_threads():
    x = normal(torch.float32, 4 * N)
    compiled = streamed_kernel[(4,)](x, torch.zeros_like(x), 4 * N, N=N)
    assert "!nontemporal" in compiled.asm["llir"]
    assert "fence seq_cst" in compiled.asm["llir"]
    unstreamed = hints_kernel[(1,)](x, torch.zeros_like(x), N=4 * N)
    assert "!nontemporal" not in unstreamed.asm["llir"]
    assert "fence" not in unstreamed.asm["llir"]


@pytest.fixture(scope="module")
def guarded_output() -> str:
    command = [sys.executable, "-m", "tests.cpu.language.guarded"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300).stdout


@pytest.mark.parametrize("case", CASES)
def test_masked_off_lanes_never_touch_memory(case, guarded_output):
    """In another process: reading the protected page would end it."""
    assert f"{case}: right" in guarded_output.splitlines(), guarded_output


@triton.jit
def gaps_kernel(x_ptr, out_ptr, limit, flag, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < limit))
    tl.store(out_ptr + N + i, tl.load(x_ptr + i * 3 % N, mask=i < limit))
    tl.store(out_ptr + 2 * N + i, tl.load(x_ptr + i, mask=i + flag < 0))
    tl.store(
        out_ptr + 3 * N + i, tl.load(x_ptr + flag, mask=flag > 100) + tl.zeros([N], tl.float32)
    )


def test_masked_off_elements_without_other_are_zero():
    """Triton leaves them undefined, but every device gives zero and kernels rely on it."""
    x = torch.full((64,), 7.0)
    out = torch.full((4, 64), float("nan"))
    _, out = launch(gaps_kernel, (1,), x, out, 40, 1, N=64)
    assert out[:, :40].tolist() == [[7.0] * 40, [7.0] * 40, [0.0] * 40, [0.0] * 40]
    assert not out[:, 40:].any()
