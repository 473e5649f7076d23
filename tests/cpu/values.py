"""Values worth testing in every dtype, and comparison of results down to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
FLOATS = ("float16", "bfloat16", "float32", "float64")
FP8 = ("float8_e4m3fn", "float8_e5m2")
ALL = ("bool", *INTEGERS, *FLOATS, *FP8)

_BITS_DTYPE = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}

#: One examples budget for every property: repeatable, and small because each example is a launch.
prop = settings(derandomize=True, max_examples=20, deadline=None, database=None)


def dtype_of(name: str) -> torch.dtype:
    return getattr(torch, name)


def is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point


def bits(tensor: torch.Tensor) -> np.ndarray:
    """The bit patterns, as unsigned numpy integers."""
    return tensor.contiguous().view(_BITS_DTYPE[tensor.element_size()]).numpy()


def from_bits(pattern: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """The low bits of each unsigned 64-bit number, read as `dtype`."""
    if dtype == torch.bool:
        return torch.from_numpy((pattern & 1).astype(bool))
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.from_numpy(pattern.astype(f"uint{8 * size}")).view(dtype)


def edges(dtype: torch.dtype) -> torch.Tensor:
    """The values at which implementations differ."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not is_float(dtype):
        info = torch.iinfo(dtype)
        wanted = {0, 1, 2, 3, 7, info.max, info.max - 1, info.max // 2, info.min, info.min + 1}
        wanted |= {v for v in (-1, -2, -3, -7) if v >= info.min}
        return torch.from_numpy(np.array(sorted(wanted), dtype=str(dtype).split(".")[1]))
    info = torch.finfo(dtype)
    numbers = [
        0.0,
        1.0,
        1.5,
        2.0,
        3.0,
        0.1,
        info.tiny,
        info.smallest_normal / 2,
        info.max,
        info.eps,
    ]
    if dtype != torch.float8_e4m3fn:
        numbers.append(float("inf"))
    values = torch.tensor([*numbers, *(-n for n in numbers), float("nan")], dtype=torch.float64)
    return values.to(dtype)


def take(pattern: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Drawn 64-bit numbers as values of `dtype`: the top bit chooses an edge or any bits at all."""
    special = edges(dtype)
    chosen = torch.from_numpy((pattern % len(special)).astype(np.int64))
    edge_bits = bits(special)[chosen.numpy()].astype(np.uint64)
    return from_bits(np.where((pattern >> np.uint64(63)) == 1, edge_bits, pattern), dtype)


def patterns(*shape: int) -> st.SearchStrategy[np.ndarray]:
    """Arrays for `take`: the same draw serves every dtype."""
    return hnp.arrays(np.uint64, shape, elements=st.integers(0, 2**64 - 1), fill=st.nothing())


def edge_pairs(dtype: torch.dtype, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of edges, then random bits, `count` in all."""
    values = bits(edges(dtype)).astype(np.uint64)
    left, right = (grid.ravel() for grid in np.meshgrid(values, values))
    rng = np.random.default_rng(len(values))
    noise = rng.integers(0, 2**64 - 1, (2, count), dtype=np.uint64)
    return (
        from_bits(np.concatenate([left, noise[0]])[:count], dtype),
        from_bits(np.concatenate([right, noise[1]])[:count], dtype),
    )


def normal(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Gaussian values; small integers where `dtype` is one."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator)
    return values.to(dtype) if is_float(dtype) else (values * 20).round().to(dtype)


def wide(tensor: torch.Tensor) -> np.ndarray:
    """As numpy float64, from any float dtype."""
    return tensor.to(torch.float64).numpy()


def _is_nan(tensor: torch.Tensor) -> np.ndarray:
    return np.isnan(wide(tensor)) if is_float(tensor.dtype) else np.zeros(tensor.shape, dtype=bool)


def difference(
    actual: torch.Tensor,
    expected: torch.Tensor,
    *,
    signed_zero: bool = True,
    where: np.ndarray | None = None,
) -> str:
    """Empty when equal to the bit, any NaN as good as another; else the first differences."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        got, want = (f"{t.dtype}{list(t.shape)}" for t in (actual, expected))
        return f"got {got}, expected {want}"
    same = (bits(actual) == bits(expected)) | (_is_nan(actual) & _is_nan(expected))
    if not signed_zero and is_float(actual.dtype):
        same |= (wide(actual) == 0) & (wide(expected) == 0)
    if where is not None:
        same |= ~where
    return _describe(~same, actual, expected)


def _describe(wrong: np.ndarray, actual: torch.Tensor, expected: torch.Tensor) -> str:
    places = np.argwhere(wrong)
    if not len(places):
        return ""
    shown = []
    for place in places[:4]:
        index = tuple(int(i) for i in place)
        got, want = actual[index].item(), expected[index].item()
        shown.append(f"at {list(index)} got {got!r}, expected {want!r}")
    return f"{len(places)} of {wrong.size} wrong: " + "; ".join(shown)


def assert_same(actual: torch.Tensor, expected: torch.Tensor, **rules: object) -> None:
    problem = difference(actual, expected, **rules)  # type: ignore[arg-type]
    assert not problem, problem


def assert_rows(
    names: Sequence[str],
    actual: torch.Tensor,
    expected: Sequence[torch.Tensor],
    compare: Callable[[torch.Tensor, torch.Tensor], str] = difference,
) -> None:
    """Compare row by row of `actual` and name every row that is wrong."""
    assert len(names) == len(actual) == len(expected)
    problems = [
        f"{name}: {problem}"
        for name, row, want in zip(names, actual, expected, strict=True)
        if (problem := compare(row, want))
    ]
    assert not problems, "\n".join(problems)


def ulps_off(actual: torch.Tensor, exact: np.ndarray, ulps: float) -> str:
    """Empty when every value is within `ulps` units in the last place of the exact result."""
    got = wide(actual)
    numpy_type = {torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64}[
        actual.dtype
    ]
    with np.errstate(all="ignore"):
        rounded = exact.astype(numpy_type)
        unit = np.spacing(np.minimum(np.abs(rounded), np.finfo(numpy_type).max)).astype(np.float64)
        close = np.abs(got - exact) <= ulps * unit
        close |= (np.isnan(got) & np.isnan(exact)) | (got == rounded)
        # Just below the overflow threshold an infinity is within one ulp.
        close |= (
            np.isinf(got)
            & (np.abs(exact) >= np.finfo(numpy_type).max)
            & (np.sign(got) == np.sign(exact))
        )
    return _describe(~close, actual, torch.from_numpy(np.atleast_1d(exact)))


def assert_ulps(actual: torch.Tensor, exact: np.ndarray, ulps: float) -> None:
    problem = ulps_off(actual, exact, ulps)
    assert not problem, problem


def assert_accurate(
    out: torch.Tensor, plain: torch.Tensor, reference: torch.Tensor, factor: float = 2
) -> None:
    """The project's rule: not much further from the reference than plain torch is."""
    reference = reference.to(torch.float64)
    error = (out.to(torch.float64) - reference).abs().max().item()
    torch_error = (plain.to(torch.float64) - reference).abs().max().item()
    shaken = reference.to(out.dtype if out.dtype.itemsize > 1 else torch.float32)
    noise = (shaken + 0.3 - 0.3 - shaken).to(torch.float64).abs().max().item()
    limit = factor * torch_error + 2 * noise
    assert error <= limit, (
        f"largest error {error:.3g}, allowed {limit:.3g} (torch's own is {torch_error:.3g})"
    )
