"""What may be passed to a kernel: scalars, tuples, None, constants, odd tensors, empty grids."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_same, normal
from tritune.testing import launch

N = 16


@triton.jit
def scalars_kernel(out_ptr, real_ptr, a, b, c, flag, x):
    tl.store(out_ptr + 0, a)
    tl.store(out_ptr + 1, b)
    tl.store(out_ptr + 2, c)
    tl.store(out_ptr + 3, flag)
    tl.store(real_ptr, x)


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        (5, -7, 2**40 + 3),
        (1, 16, 2**31),
        (0, -(2**31), -(2**63)),
        (2**31 - 1, 2**32 - 1, 2**63 - 1),
    ],
)
@pytest.mark.parametrize("flag", [False, True])
def test_integers_of_every_size_and_booleans(a, b, c, flag):
    outs = torch.zeros(4, dtype=torch.int64), torch.zeros(1)
    out, real = launch(scalars_kernel, (1,), *outs, a, b, c, flag, 0.1)
    assert out.tolist() == [a, b, c, int(flag)]
    assert real.item() == torch.tensor(0.1).item()


def test_an_unsigned_64_bit_scalar():
    out = torch.zeros(1, dtype=torch.uint64)
    (out,) = launch(store_kernel, (1,), out, 2**64 - 1)
    assert out.item() == 2**64 - 1


@triton.jit
def store_kernel(out_ptr, value):
    tl.store(out_ptr, value)


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 1e-45]
)
def test_special_float_scalars(value):
    (out,) = launch(store_kernel, (1,), torch.zeros(1), value)
    assert_same(out, torch.tensor([value]))


@triton.jit
def typed_kernel(out_ptr, a: tl.int8, b: tl.float64, c: tl.float16):
    tl.store(out_ptr + 0, a)
    tl.store(out_ptr + 1, b)
    tl.store(out_ptr + 2, c)


def test_annotated_scalars_have_their_dtype():
    (out,) = launch(typed_kernel, (1,), torch.zeros(3, dtype=torch.float64), -3, 0.1, 0.1)
    assert out.tolist() == [-3.0, 0.1, torch.tensor(0.1, dtype=torch.float16).item()]


@triton.jit
def optional_kernel(x_ptr, y_ptr, scale, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    if y_ptr is not None:
        x += tl.load(y_ptr + i)
    if scale is not None:
        x *= scale
    tl.store(out_ptr + i, x)


@pytest.mark.parametrize("with_y", [False, True])
@pytest.mark.parametrize("scale", [None, 2.5])
def test_none_is_a_constant(with_y, scale):
    x, y = normal(torch.float32, N), normal(torch.float32, N, seed=1)
    out = launch(optional_kernel, (1,), x, y if with_y else None, scale, torch.zeros(N), N=N)[-1]
    expected = (x + y if with_y else x) * (scale or 1)
    assert_same(out, expected)


@triton.jit
def tuple_kernel(inputs, shape, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for k in tl.static_range(len(inputs)):
        total += tl.load(inputs[k] + i) * (k + 1)
    rows, inner = shape
    cols, scale = inner
    tl.store(out_ptr + i, total * scale + rows * 100 + cols)


@pytest.mark.parametrize("count", [1, 3])
def test_tuples_of_tensors_and_nested_tuples_of_scalars(count):
    inputs = tuple(normal(torch.float32, N, seed=k) for k in range(count))
    out = launch(tuple_kernel, (1,), inputs, (3, (7, 0.5)), torch.zeros(N), N=N)[-1]
    expected = sum((k + 1) * x for k, x in enumerate(inputs)) * 0.5 + 307
    torch.testing.assert_close(out, expected)


@triton.jit
def mixed_tuple_kernel(things, out_ptr):
    pointer, nothing, value = things
    total = tl.load(pointer) + value
    if nothing is None:
        total += 1000
    tl.store(out_ptr, total)


def test_a_tuple_may_hold_none():
    x = torch.tensor([5], dtype=torch.int32)
    out = launch(mixed_tuple_kernel, (1,), (x, None, 7), torch.zeros(1, dtype=torch.int32))[-1]
    assert out.item() == 1012


@triton.jit
def local_tuple_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    pair = (x, x * 2)
    pair = (pair[1], pair[0] + pair[1])
    chosen = pair[0] - pair[1]
    tl.store(out_ptr + i, chosen)


def test_tuples_inside_a_kernel():
    x = normal(torch.float32, N)
    _, out = launch(local_tuple_kernel, (1,), x, torch.zeros(N), N=N)
    assert_same(out, x * 2 - (x + x * 2))


@triton.jit
def constants_kernel(
    out_ptr, FLAG: tl.constexpr, NAME: tl.constexpr, NUMBERS: tl.constexpr, REAL: tl.constexpr
):
    value = NUMBERS[0] + NUMBERS[1]
    if FLAG:
        value += 100
    if NAME == "loud":
        value += 1000
    tl.store(out_ptr, value + REAL)


def test_constants_of_every_kind():
    (out,) = launch(
        constants_kernel, (1,), torch.zeros(1), FLAG=True, NAME="loud", NUMBERS=(3, 4), REAL=0.5
    )
    assert out.item() == 1107.5


@triton.jit
def defaults_kernel(out_ptr, a, b=5, C: tl.constexpr = 7):
    tl.store(out_ptr, a * 100 + b * 10 + C)


def test_default_and_keyword_arguments():
    out = torch.zeros(1, dtype=torch.int32)
    defaults_kernel[(1,)](out, 1)
    assert out.item() == 157
    defaults_kernel[(1,)](out, a=2, C=3, b=4)
    assert out.item() == 243


@triton.jit
def strided_kernel(x_ptr, out_ptr, rows, cols, s0, s1, N: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, N)
    x = tl.load(x_ptr + row * s0 + i * s1, mask=i < cols)
    tl.store(out_ptr + row * cols + i, x, mask=i < cols)


@pytest.mark.parametrize("view", ["transposed", "sliced", "stepped", "expanded", "offset"])
def test_tensors_that_are_not_contiguous(view):
    base = torch.arange(24 * 24, dtype=torch.float32).reshape(24, 24)
    x = {
        "transposed": base.T[:5, :13],
        "sliced": base[3:8, 2:15],
        "stepped": base[::4, ::2][:5, :11],
        "expanded": base[0, :13].expand(5, 13),
        "offset": base.flatten()[1:66].reshape(5, 13),
    }[view]
    out = torch.zeros(x.shape)
    _, out = launch(strided_kernel, (x.shape[0],), x, out, *x.shape, *x.stride(), N=N)
    assert_same(out, x.contiguous())


def test_a_zero_size_tensor_can_be_passed_and_is_not_touched():
    x = torch.zeros(0)
    out = torch.full((2, 5), 7.0)
    _, out = launch(strided_kernel, (2,), x, out, 2, 0, 0, 1, N=N)
    assert_same(out, torch.full((2, 5), 7.0))


@pytest.mark.parametrize("grid", [(0,), (0, 3), (3, 0, 2)])
def test_a_grid_without_programs_does_nothing(grid):
    out = torch.zeros(1, dtype=torch.int32)
    store_kernel[grid](out, 5)
    assert out.item() == 0


@triton.jit
def many_kernel(out_ptr, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p):
    tl.store(out_ptr, a + b + c + d + e + f + g + h + i + j + k + l + m + n + o + p)


def test_many_arguments():
    (out,) = launch(
        many_kernel, (1,), torch.zeros(1, dtype=torch.int64), *(2**k for k in range(16))
    )
    assert out.item() == 2**16 - 1


@triton.jit(do_not_specialize=["n"])
def unspecialised_kernel(out_ptr, n):
    tl.store(out_ptr, n + 1)


@pytest.mark.parametrize("n", [1, 16, 17, 2**40])
def test_an_argument_that_is_not_specialised(n):
    (out,) = launch(unspecialised_kernel, (1,), torch.zeros(1, dtype=torch.int64), n)
    assert out.item() == n + 1


def test_gpu_options_are_accepted():
    out = torch.zeros(1, dtype=torch.int32)
    store_kernel[(1,)](out, 5, num_warps=8, num_stages=4)
    assert out.item() == 5


@triton.jit
def aliased_kernel(x_ptr, y_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(y_ptr + i, x + 1)
    tl.store(y_ptr + i, tl.load(x_ptr + i) * 2)


def test_two_arguments_may_be_the_same_memory():
    x = torch.arange(N, dtype=torch.int32)
    aliased_kernel[(1,)](x, x, N=N)
    assert_same(x, (torch.arange(N, dtype=torch.int32) + 1) * 2)
