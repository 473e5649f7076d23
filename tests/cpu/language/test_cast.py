"""Conversions between all dtypes, with their rounding, and bit casts."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given

from tests.cpu.values import (
    ALL,
    FLOATS,
    FP8,
    INTEGERS,
    assert_same,
    difference,
    dtype_of,
    edge_pairs,
    from_bits,
    patterns,
    prop,
    take,
    wide,
)
from tritune.testing import launch

N = 256
#: Bits of the significand with the hidden one, least and greatest exponent of a normal number.
FORMATS = {
    torch.float8_e4m3fn: (4, -6, 8),
    torch.float8_e5m2: (3, -14, 15),
    torch.float16: (11, -14, 15),
    torch.bfloat16: (8, -126, 127),
    torch.float32: (24, -126, 127),
}


def rounded(values: np.ndarray, dtype: torch.dtype, *, to_zero: bool = False) -> torch.Tensor:
    """float64 values rounded once; too large ones become infinite (NaN in e4m3)."""
    if dtype == torch.float64:
        return torch.from_numpy(values)
    precision, least, _ = FORMATS[dtype]
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(np.where(np.isfinite(values), values, 0.0))
        scale = np.maximum(exponent - 1, least) - (precision - 1)
        scaled = np.ldexp(values, -scale)
        whole = np.ldexp(np.trunc(scaled) if to_zero else np.rint(scaled), scale)
    return torch.from_numpy(whole).to(dtype)


@triton.jit
def cast_kernel(x_ptr, outs, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    for k in tl.static_range(len(outs)):
        tl.store(outs[k] + i, x.to(outs[k].dtype.element_ty))


def cast_to_all(x: torch.Tensor, targets: list[str]) -> dict[str, torch.Tensor]:
    outs = tuple(torch.zeros(len(x), dtype=dtype_of(target)) for target in targets)
    _, *results = launch(cast_kernel, (1,), x, outs, N=len(x))
    return dict(zip(targets, results, strict=True))


def assert_all(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], **rules: object
) -> None:
    problems = [
        f"to {target}: {problem}"
        for target, want in expected.items()
        if (problem := difference(found[target], want, **rules))  # type: ignore[arg-type]
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("source", ["bool", *INTEGERS])
def test_integers_convert_to_integers_by_truncation_or_extension(source):
    x = torch.arange(N) % 2 == 0 if source == "bool" else edge_pairs(dtype_of(source), N)[0]
    targets = [t for t in ("bool", *INTEGERS) if t != source]
    expected = {t: torch.from_numpy(x.numpy().astype(t)) for t in targets}
    assert_all(cast_to_all(x, targets), expected)


@pytest.mark.parametrize("source", ["bool", *INTEGERS])
def test_integers_convert_to_the_nearest_float(source):
    x = torch.arange(N) % 2 == 0 if source == "bool" else edge_pairs(dtype_of(source), N)[0]
    exact = x.numpy()
    found = cast_to_all(x, list(FLOATS))
    # numpy rounds 64-bit integers to fp32 once; the two half formats are rounded from there, which
    # is the same thing for these values.
    single = exact.astype(np.float32).astype(np.float64)
    expected = {
        "float64": torch.from_numpy(exact.astype(np.float64)),
        "float32": torch.from_numpy(exact.astype(np.float32)),
        "float16": rounded(single, torch.float16),
        "bfloat16": rounded(single, torch.bfloat16),
    }
    assert_all(found, expected)


@pytest.mark.parametrize("source", FLOATS)
def test_floats_convert_to_integers_towards_zero(source):
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [rng.uniform(-127, 127, N - 8), [0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 126.99, -126.99]]
    )
    x = torch.from_numpy(values).to(dtype_of(source)).clamp(-127, 127)
    signed = ["int8", "int16", "int32", "int64"]
    assert_all(
        cast_to_all(x, signed), {t: torch.from_numpy(np.trunc(wide(x)).astype(t)) for t in signed}
    )
    unsigned = ["uint8", "uint16", "uint32", "uint64"]
    x = x.abs()
    assert_all(
        cast_to_all(x, unsigned),
        {t: torch.from_numpy(np.trunc(wide(x)).astype(t)) for t in unsigned},
    )


def test_large_floats_convert_to_large_integers():
    x = torch.tensor([2.0**31, 2.0**32 - 256, 3e9, 2.0**20])
    assert_all(
        cast_to_all(x, ["uint32"]), {"uint32": torch.from_numpy(x.numpy().astype(np.uint32))}
    )
    x = torch.tensor([2.0**62, -(2.0**62), -(2.0**63), 1e18], dtype=torch.float64)
    assert_all(cast_to_all(x, ["int64"]), {"int64": torch.from_numpy(x.numpy().astype(np.int64))})
    x = torch.tensor([2.0**63, 2.0**64 - 2048, 1.5e19, 1.0], dtype=torch.float64)
    assert_all(
        cast_to_all(x, ["uint64"]), {"uint64": torch.from_numpy(x.numpy().astype(np.uint64))}
    )


@pytest.mark.parametrize("source", FLOATS)
def test_a_float_is_true_unless_it_is_zero(source):
    x, _ = edge_pairs(dtype_of(source), N)
    assert_all(cast_to_all(x, ["bool"]), {"bool": torch.from_numpy(wide(x) != 0)})


def narrower(source: str) -> list[str]:
    return {
        "float64": ["float32", "float16", "bfloat16"],
        "float32": ["float64", "float16", "bfloat16"],
        "float16": ["float64", "float32", "bfloat16"],
        "bfloat16": ["float64", "float32", "float16"],
    }[source]


def check_float_casts(x: torch.Tensor, targets: list[str]) -> None:
    assert_all(cast_to_all(x, targets), {t: rounded(wide(x), dtype_of(t)) for t in targets})


@pytest.mark.parametrize("source", FLOATS)
def test_floats_convert_to_floats_with_one_rounding_to_nearest_even(source):
    check_float_casts(edge_pairs(dtype_of(source), N)[0], narrower(source))


@pytest.mark.parametrize("source", FLOATS)
@prop
@given(drawn=patterns(64))
def test_floats_convert_to_floats_on_any_values(source, drawn):
    check_float_casts(take(drawn, dtype_of(source)), narrower(source))


def ties(dtype: torch.dtype) -> np.ndarray:
    """Halfway between neighbours of `dtype`, and a little to either side, as float32 values."""
    width = 8 * dtype.itemsize
    neighbours = wide(from_bits(np.arange(2 ** (width - 1), dtype=np.uint64), dtype))
    if width == 16:
        neighbours = np.concatenate([neighbours[:300], neighbours[15000:15300], neighbours[-1800:]])
    with np.errstate(all="ignore"):
        middle = (neighbours[:-1] + neighbours[1:]) / 2
    middle = middle[np.isfinite(middle)].astype(np.float32)
    values = np.concatenate(
        [middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))]
    )
    values = np.concatenate([values, -values])
    return values[: 1024 * (len(values) // 1024)] if len(values) > 1024 else np.resize(values, 1024)


@pytest.mark.parametrize("target", ["float16", "bfloat16", *FP8])
def test_ties_go_to_even(target):
    for chunk in np.split(ties(dtype_of(target)), len(ties(dtype_of(target))) // 1024):
        found = cast_to_all(torch.from_numpy(chunk), [target])
        assert_all(found, {target: rounded(chunk.astype(np.float64), dtype_of(target))})


@pytest.mark.parametrize("source", FP8)
def test_every_fp8_number_converts_exactly_to_wider_floats(source):
    x = from_bits(np.arange(256, dtype=np.uint64), dtype_of(source))
    assert_all(cast_to_all(x, list(FLOATS)), {t: rounded(wide(x), dtype_of(t)) for t in FLOATS})


@pytest.mark.parametrize("source", FLOATS)
def test_floats_convert_to_the_nearest_fp8_number(source):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal(N) * 10.0 ** rng.integers(-6, 3, N)).clamp(-440, 440)
    # From fp32 values, so that one rounding and two give the same.
    x = x.to(torch.float32).to(dtype_of(source))
    x[:4] = torch.tensor([0.0, -0.0, float("nan"), 448.0], dtype=x.dtype)
    assert_all(cast_to_all(x, list(FP8)), {t: rounded(wide(x), dtype_of(t)) for t in FP8})


def converted(values: np.ndarray, dtype: torch.dtype, rounding: str) -> torch.Tensor:
    """What Triton's conversions make of float64 values: fp8 has no overflow, only a largest number.

    To nearest even, infinity becomes finite with it, where NVIDIA's and AMD's GPUs agree. Towards
    zero nothing grows, so that only infinity is infinite.
    """
    limit = torch.finfo(dtype).max
    limited = np.clip(values, -limit, limit)
    if dtype.itemsize > 1 and rounding == "rtne":
        limited = values
    elif dtype.itemsize > 1 or (dtype == torch.float8_e5m2 and rounding == "rtz"):
        limited = np.where(np.isinf(values), values, limited)
    return rounded(limited, dtype, to_zero=rounding == "rtz")


@triton.jit
def downcast_kernel(x_ptr, out_ptr, ROUNDING: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i).to(out_ptr.dtype.element_ty, fp_downcast_rounding=ROUNDING)
    tl.store(out_ptr + i, x)


def check_downcast(x: torch.Tensor, target: str, rounding: str) -> None:
    out = torch.zeros(len(x), dtype=dtype_of(target))
    _, found = launch(downcast_kernel, (len(x) // 1024,), x, out, ROUNDING=rounding, N=1024)
    expected = converted(wide(x), dtype_of(target), rounding)
    problem = difference(found, expected)
    assert not problem, problem


@pytest.mark.parametrize("rounding", ["rtne", "rtz"])
@pytest.mark.parametrize("target", ["float16", "bfloat16", *FP8])
def test_every_upper_half_of_a_float32_is_rounded_as_asked(target, rounding):
    """Denormals, ties and overflow among them, and what is a little more or less."""
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xCCC0, 0xFFFF, 0x0FFF], dtype=np.uint32)
    upper = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    x = from_bits((upper[:, None] | lower).ravel().astype(np.uint64), torch.float32)
    check_downcast(x, target, rounding)


@pytest.mark.parametrize("rounding", ["rtne", "rtz"])
@pytest.mark.parametrize("target", FP8)
@pytest.mark.parametrize("source", ["float16", "bfloat16"])
def test_every_half_is_rounded_to_fp8_as_asked(source, target, rounding):
    check_downcast(
        from_bits(np.arange(1 << 16, dtype=np.uint64), dtype_of(source)), target, rounding
    )


@pytest.mark.parametrize("rounding", ["rtne", "rtz"])
@pytest.mark.parametrize("target", ["float32", "float16", "bfloat16", *FP8])
def test_float64_is_rounded_once_as_asked(target, rounding):
    """Among all exponents, those around the target's own denormals and its largest number."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**64 - 1, 1 << 15, dtype=np.uint64)
    # Half of them near what a float32 holds, half of those with few bits, which makes ties.
    near = (bits & np.uint64(0x800F_FFFF_FFFF_FFFF)) | (
        rng.integers(1023 - 155, 1023 + 130, 1 << 15, dtype=np.uint64) << np.uint64(52)
    )
    few = near & np.uint64(0xFFFF_FFF0_0000_0000)
    special = np.array([np.inf, -np.inf, np.nan, 1e300, -1e300, 5e-324, 57344, 61440] * 128)
    x = np.concatenate(
        [bits.view(np.float64), near.view(np.float64), few.view(np.float64), special]
    )
    check_downcast(torch.from_numpy(x), target, rounding)


@triton.jit
def copy_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i))


@pytest.mark.parametrize("dtype", ALL)
def test_load_and_store_keep_every_bit(dtype):
    pattern = np.arange(N, dtype=np.uint64) * np.uint64(0x0101_0101_0101_0101)
    x = from_bits(pattern, dtype_of(dtype))
    _, out = launch(copy_kernel, (1,), x, torch.zeros_like(x), N=N)
    assert torch.equal(out.view(torch.uint8), x.view(torch.uint8))


@triton.jit
def bitcast_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(out_ptr.dtype.element_ty, bitcast=True))


BITCASTS = [
    ("float32", "int32"), ("uint32", "float32"), ("float16", "int16"), ("uint16", "bfloat16"),
    ("bfloat16", "float16"), ("float64", "int64"), ("uint64", "float64"),
    ("int8", "float8_e4m3fn"), ("float8_e5m2", "uint8"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), BITCASTS)
def test_a_bitcast_keeps_the_pattern(source, target):
    rng = np.random.default_rng(0)
    x = from_bits(rng.integers(0, 2**64 - 1, N, dtype=np.uint64), dtype_of(source))
    _, out = launch(bitcast_kernel, (1,), x, torch.zeros(N, dtype=dtype_of(target)), N=N)
    assert_same(out, x.view(dtype_of(target)))


@triton.jit
def implicit_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i) + 0.25)


@pytest.mark.parametrize("target", ["float16", "int32", "float64"])
def test_a_store_converts_to_the_element_type_of_the_pointer(target):
    x = torch.arange(16, dtype=torch.float32)
    _, out = launch(implicit_kernel, (1,), x, torch.zeros(16, dtype=dtype_of(target)), N=16)
    assert_same(out, (x + 0.25).to(dtype_of(target)))


@triton.jit
def address_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    address = x_ptr.to(tl.int64) + i.to(tl.int64) * 4
    tl.store(out_ptr + i, tl.load(address.to(tl.pointer_type(tl.float32))))


def test_pointers_convert_to_integers_and_back():
    x = torch.arange(16, dtype=torch.float32)
    _, out = launch(address_kernel, (1,), x, torch.zeros(16), N=16)
    assert_same(out, x)
