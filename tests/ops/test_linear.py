"""linear against its definition, with plain weights and with quantized ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.layouts import BF16, DTYPES, FP16, FP32, far_apart, normal, wide
from tritune.kernels import activations
from tritune.kernels import linear as plain
from tritune.kernels import linear_quantized as quantized
from tritune.kernels.activations import activation_reference
from tritune.kernels.linear import cpu_config
from tritune.ops.linear import linear
from tritune.ops.quantize import QuantizedWeight, quantize_weight
from tritune.policy import forced
from tritune.space import Config
from tritune.testing import assert_within_rule, surrounded

ACTIVATIONS = (None, *activations.ACTIVATIONS)


def weights(n: int, k: int, dtype: torch.dtype = FP32, seed: int = 1) -> torch.Tensor:
    return (normal(n, k, seed=seed) / max(k, 1) ** 0.5).to(dtype)


def check(
    x: torch.Tensor,
    weight: torch.Tensor | QuantizedWeight,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    out = linear(x, weight, bias, activation=activation)
    assert out.dtype == x.dtype and out.is_contiguous()
    if isinstance(weight, QuantizedWeight):
        exact, rounded = weight.dequantize(wide(x).dtype), weight.dequantize(x.dtype)
    else:
        exact, rounded = wide(weight), weight
    expected = plain.reference(wide(x), exact, None if bias is None else wide(bias), activation)
    given = torch.nn.functional.linear(x, rounded, bias)
    assert_within_rule(out, expected, activation_reference(given, activation))
    assert torch.equal(linear(x, weight, bias, activation=activation), out)
    return out


@settings(max_examples=25)
@given(
    leading=st.sampled_from([(), (1,), (2,), (3,), (4,), (7,), (16,), (2, 9), (70,)]),
    n=st.sampled_from([1, 33, 130]),
    k=st.sampled_from([1, 32, 150, 384]),
    dtype=st.sampled_from(DTYPES),
    biased=st.booleans(),
    turned=st.booleans(),
)
def test_any_shape_and_dtype(
    leading: tuple[int, ...], n: int, k: int, dtype: torch.dtype, biased: bool, turned: bool
) -> None:
    weight = weights(n, k, dtype)
    if turned:
        weight = weight.T.contiguous().T
    check(normal(*leading, k, dtype=dtype), weight, normal(n, dtype=dtype) if biased else None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", activations.ACTIVATIONS)
def test_activations(activation: str, dtype: torch.dtype) -> None:
    x, bias = 3 * normal(20, 64, dtype=dtype), normal(48, dtype=dtype, seed=2)
    check(x, weights(48, 64, dtype), bias, activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_extreme_values_are_those_of_torch(activation: str | None) -> None:
    bias = torch.tensor([float("nan"), float("inf"), -1e30, 1e30, -100.0, 100.0, 0.0, -0.0])
    out = linear(torch.zeros(1, 32), torch.zeros(8, 32), bias, activation=activation)[0]
    # In float64, because torch's vectorised gelu makes NaN of an infinity on some machines.
    exact = activation_reference(bias.double(), activation).float()
    torch.testing.assert_close(out, exact, equal_nan=True)


@settings(max_examples=18)
@given(
    rows=st.sampled_from([1, 2, 4, 30]),
    n=st.sampled_from([1, 33, 130]),
    group=st.sampled_from([32, 64, 128]),
    groups=st.integers(1, 4),
    bits=st.sampled_from([8, 4]),
    zero_points=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_quantized_weights(
    rows: int, n: int, group: int, groups: int, bits: int, zero_points: bool, dtype: torch.dtype
) -> None:
    k = groups * group
    weight = quantize_weight(weights(n, k, dtype), bits, group, zero_points=zero_points)
    check(normal(rows, k, dtype=dtype), weight, normal(n, dtype=dtype, seed=2), "silu")


@settings(max_examples=20)
@given(
    bits=st.sampled_from([8, 4]),
    group=st.sampled_from([32, 64, 128]),
    zero_points=st.booleans(),
    shift=st.sampled_from([0.0, 3.0, -3.0]),
    dtype=st.sampled_from(DTYPES),
)
def test_quantizing_is_off_by_half_a_step_at_most(
    bits: int, group: int, zero_points: bool, shift: float, dtype: torch.dtype
) -> None:
    weight = (normal(5, 256) + shift).to(dtype)
    rounded = quantize_weight(weight, bits, group, zero_points=zero_points)
    off = (rounded.dequantize(torch.float64) - weight.double()).abs().reshape(5, -1, group)
    steps = rounded.scales.double()[:, :, None]
    # The scale itself is rounded to the weight's dtype: the largest code is off by that too, and
    # zero points by half a step of their own.
    slack = 2**bits * torch.finfo(dtype).eps / 2 + 1e-6
    assert (off <= (0.5 + 0.5 * zero_points + slack) * steps).all()


def test_zero_points_serve_weights_on_one_side_of_zero() -> None:
    weight = normal(4, 64).abs() + 1
    errors = [
        (quantize_weight(weight, 4, 64, zero_points=z).dequantize() - weight).abs().mean()
        for z in (False, True)
    ]
    assert errors[1] < 0.6 * errors[0]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("zero_points", [False, True])
def test_what_the_codes_hold_is_kept(bits: int, zero_points: bool) -> None:
    largest = 2 ** (bits - 1) - 1
    codes = torch.randint(
        -largest, largest + 1, (6, 128), generator=torch.Generator().manual_seed(0)
    )
    codes[:, ::32] = largest
    codes[:, 1::32] = -largest
    weight = 0.25 * codes.float()
    packed = quantize_weight(weight, bits, 32, zero_points=zero_points)
    if not zero_points:
        assert torch.equal(packed.dequantize(), weight)
    assert packed.packed.shape == (6, 128 * bits // 8)
    assert packed.shape == (6, 128) and packed.dtype == FP32


@pytest.mark.parametrize("zero_points", [False, True])
def test_a_group_of_zeros_stays_zero(zero_points: bool) -> None:
    weight = weights(4, 128)
    weight[:, 32:64] = 0
    rounded = quantize_weight(weight, 4, 32, zero_points=zero_points)
    assert torch.equal(rounded.dequantize()[:, 32:64], torch.zeros(4, 32))


def test_a_quantized_weight_says_what_it_is() -> None:
    weight = quantize_weight(weights(96, 256, BF16), bits=4, group=64, zero_points=True)
    assert repr(weight) == (
        "QuantizedWeight(96 x 256, 4 bits, groups of 64, bfloat16 scales, zero points, "
        f"{96 * 128 + 96 * 4 * 3} bytes on cpu)"
    )
    assert weight.to("meta").device.type == "meta"


EACH_METHOD = {
    "dot": cpu_config("dot", (4, 16, 32)),
    "sum": cpu_config("sum", (2, 4, 32)),
    "lanes": cpu_config("lanes", (2, 4, 16)),
}


@pytest.mark.parametrize("method", EACH_METHOD)
@pytest.mark.parametrize("split", [1, 4])
@pytest.mark.parametrize("bits", [None, 8, 4])
def test_each_method_and_split(method: str, split: int, bits: int | None) -> None:
    values = {**EACH_METHOD[method].as_kwargs(), "SPLIT_K": split, "GROUP_M": 4}
    kernel = plain.KERNEL if bits is None else quantized.KERNEL
    # Nine tiles of K, which four parts do not share evenly.
    k = 9 * 32
    weight: Any = weights(40, k, BF16)
    if bits is not None:
        weight = quantize_weight(weight, bits, 32, zero_points=True)
    bias = normal(40, dtype=BF16, seed=2)
    with forced(kernel, Config.of(**values)):
        for seed in range(3):
            check(normal(7, k, dtype=BF16, seed=seed), weight, bias, "gelu")


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("layout", ["rows apart", "columns apart", "turned"])
def test_any_strides(rows: int, layout: str) -> None:
    def laid_out(tensor: torch.Tensor) -> torch.Tensor:
        if layout == "rows apart":
            return surrounded(tensor, 0.0)
        if layout == "columns apart":
            return tensor.repeat_interleave(2, dim=-1)[..., ::2]
        return tensor.mT.contiguous().mT

    x, weight, bias = normal(3, rows, 96), weights(50, 96), normal(50, seed=2)
    bias = bias.repeat_interleave(2)[::2]
    check(laid_out(x), laid_out(weight), bias)
    check(x.transpose(0, 1), weight, bias)
    check(x[:1].expand(3, rows, 96), weight, bias)


@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("bits", [None, 8, 4])
def test_memory_around_the_operands_is_not_read(rows: int, bits: int | None) -> None:
    k = 160
    x, weight, bias = normal(rows, k), weights(50, k), normal(50, seed=2)
    results = []
    for filler in (0.0, float("nan")):
        around: Any = surrounded(weight, filler)
        if bits is not None:
            whole = quantize_weight(weight, bits, 32)
            around = QuantizedWeight(
                surrounded(whole.packed, 0.0 if filler == 0 else 77),
                surrounded(whole.scales, filler),
                None,
                bits,
                32,
            )
        results.append(linear(surrounded(x, filler), around, surrounded(bias, filler)))
    assert not results[0].isnan().any()
    assert torch.equal(*results)


def test_nan_in_a_row_stays_in_that_row() -> None:
    x = normal(6, 64)
    x[2, 5] = float("nan")
    out = linear(x, weights(40, 64))
    assert out[2].isnan().all()
    assert not out[[0, 1, 3, 4, 5]].isnan().any()


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64), (0,)])
def test_nothing_comes_of_nothing(shape: tuple[int, ...]) -> None:
    k = shape[-1]
    out = linear(torch.zeros(shape), weights(40, k), normal(40))
    assert out.shape == (*shape[:-1], 40)
    if out.numel():
        # The sum of no products is zero.
        assert torch.equal(out, normal(40))


def test_a_weight_without_rows() -> None:
    assert linear(normal(3, 64), torch.empty(0, 64)).shape == (3, 0)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("rows", [2, 20])
def test_offsets_past_32_bits(dim: int, rows: int) -> None:
    x, weight = normal(rows, 34, dtype=BF16), weights(33, 34, BF16)
    check(far_apart(x, dim), weight)
    check(x, far_apart(weight, dim))


def test_offsets_past_32_bits_in_a_quantized_weight() -> None:
    whole = quantize_weight(weights(33, 64), 8, 32)
    far = QuantizedWeight(far_apart(whole.packed, 0), far_apart(whole.scales, 0), None, 8, 32)
    assert torch.equal(linear(normal(2, 64), far), linear(normal(2, 64), whole))


def test_opcheck() -> None:
    x, weight, bias = normal(2, 3, 64), weights(40, 64), normal(40, seed=2)
    ops = torch.ops.tritune
    torch.library.opcheck(ops.linear.default, (x, weight, bias, "silu"))
    torch.library.opcheck(ops.linear.default, (x.transpose(0, 1), weight, None, None))
    packed = quantize_weight(weight, 4, 32, zero_points=True)
    tensors = (packed.packed, packed.scales, packed.zeros)
    torch.library.opcheck(ops.linear_quantized.default, (x, *tensors, bias, None, 4, 32))


class Layers(torch.nn.Module):
    """A plain layer and a quantized one."""

    def forward(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, second: QuantizedWeight
    ) -> torch.Tensor:
        return linear(linear(x, weight, bias, activation="gelu"), second)


def layers_inputs(tokens: int) -> tuple[Any, ...]:
    second = quantize_weight(weights(32, 64, seed=3), 4, 32, zero_points=True)
    return normal(tokens, 48), weights(64, 48), normal(64, seed=2), second


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.cxx)])
def test_compiles_as_one_graph_with_dynamic_shapes(backend: str) -> None:
    compiled = torch.compile(Layers(), fullgraph=True, dynamic=True, backend=backend)
    for tokens in (3, 10):
        given = layers_inputs(tokens)
        assert torch.equal(compiled(*given), Layers()(*given))


def test_exports() -> None:
    tokens = torch.export.Dim("tokens", min=2, max=64)
    example = layers_inputs(3)
    shapes = ({0: tokens}, None, None, [None, None, None])
    program = torch.export.export(Layers(), example, dynamic_shapes=shapes)
    given = layers_inputs(9)
    assert torch.equal(program.module()(*given), Layers()(*given))


def test_exports_with_a_quantized_weight_of_its_own() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = quantize_weight(weights(32, 64), 8, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return linear(x, self.weight)

    layer = Layer()
    program = torch.export.export(layer, (normal(3, 64),))
    assert torch.equal(program.module()(normal(3, 64)), layer(normal(3, 64)))


@pytest.mark.parametrize(
    ("call", "reasons"),
    [
        (lambda x, w: linear(x, w[:, :60]), ["x (4, 64)", "weight (40, 60)"]),
        (lambda x, w: linear(x, quantize_weight(w[:, :32], 8, 32)), ["x (4, 64)", "(40, 32)"]),
        (lambda x, w: linear(x, w, normal(39)), ["bias (39)", "weight (40, 64)"]),
        (lambda x, w: linear(x.double(), w), ["x is float64", "float32, float16, bfloat16"]),
        (lambda x, w: linear(x, w.half()), ["weight is float16, allowed: float32"]),
        (lambda x, w: linear(x, w, normal(40, dtype=FP16)), ["bias is float16, allowed: float32"]),
        (lambda x, w: linear(x, w[0]), ["weight has 1 dimensions, allowed: 2"]),
        (lambda x, w: linear(x[0, 0], w), ["x has no dimensions"]),
        (lambda x, w: linear(x, w, w), ["bias has 2 dimensions, allowed: 1"]),
        (lambda x, w: linear(x, w.to("meta")), ["x on cpu", "weight on meta"]),
        (lambda x, w: linear(x.requires_grad_(), w), ["x requires a gradient", "no_grad"]),
        (lambda x, w: linear(x, [1.0]), ["weight is a list, not a tensor"]),
        (
            lambda x, w: linear(x.int(), w[0], activation="tanh"),
            ["x is int32", "weight has 1", "activation is 'tanh'", "'silu'"],
        ),
        (lambda x, w: quantize_weight(w, 3, 100), ["bits is 3", "group is 100", "32, 64, 128"]),
        (
            lambda x, w: quantize_weight(w, 4, 128),
            ["weight (40, 64)", "64 columns", "groups of 128"],
        ),
        (lambda x, w: quantize_weight(w[0], 4, 32), ["weight has 1 dimensions"]),
        (lambda x, w: quantize_weight(w.int(), 4, 32), ["weight is int32"]),
    ],
)
def test_what_does_not_fit_is_refused_with_all_reasons(
    call: Callable[..., Any], reasons: list[str]
) -> None:
    with pytest.raises(ValueError, match=r"^(linear|quantize_weight): ") as error:
        call(normal(4, 64), weights(40, 64))
    for reason in reasons:
        assert reason in str(error.value)


ARCHS = (("cpu", "host"), ("cuda", 80), ("cuda", 120), ("hip", "gfx942"), ("hip", "gfx1100"))


@pytest.mark.parametrize(("family", "arch"), ARCHS)
@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 64, 2048])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_defaults_are_points_of_the_spaces(
    family: str, arch: int | str, rows: int, dtype: str
) -> None:
    for contiguous in (True, False):
        problem = plain.LinearProblem(rows, 4096, 1024, dtype, contiguous)
        config = plain.default(problem, family, arch)
        plain.SPACE.check(config, family, arch, problem.fields())
    for bits in (8, 4):
        for group in (32, 128):
            packed = quantized.LinearQuantizedProblem(rows, 4096, 1024, dtype, bits, group, True)
            config = quantized.default(packed, family, arch)
            quantized.SPACE.check(config, family, arch, packed.fields())


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_group_of_zeros_adds_nothing(dtype, bits, zero_points):
    """However large x is there."""
    x = torch.full((1, 256), 1000.0 / 3).to(dtype)
    x[:, :128] = 0.0
    weight = torch.randn(64, 256, generator=torch.manual_seed(0)).to(dtype)
    weight[:, 128:] = 0.0
    packed = quantize_weight(weight, bits, 128, zero_points=zero_points)
    assert not linear(x, packed).any()
    assert not packed.dequantize()[:, 128:].any()


@pytest.mark.parametrize("bits", [8, 4])
def test_zero_points_cost_fp32_no_accuracy(bits):
    """Sums that are small beside what they are made of: x and the codes are far from zero."""
    generator = torch.manual_seed(0)
    x = 100 + torch.randn(4, 128, generator=generator)
    weight = 1 + torch.rand(64, 128, generator=generator) / 100
    weight[:, ::2] *= -1
    packed = quantize_weight(weight, bits, 128, zero_points=True)
    exact = x.double() @ packed.dequantize(torch.float64).T
    usual = x @ packed.dequantize().T
    ours = linear(x, packed)
    assert (ours - exact).abs().max() <= 2 * (usual - exact).abs().max()


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_codes_at_the_ends_of_their_range(dtype, bits, zero_points, rows):
    n, groups, group = 36, 3, 32
    ends = [0, 1, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1]
    codes = torch.tensor(ends, dtype=torch.uint8).repeat(n * groups * group)
    codes = codes[: n * groups * group].reshape(n, groups * group)
    signed = bits == 8 and not zero_points
    packed = quantized.pack(codes.view(torch.int8) if signed else codes, bits, group)
    scales = (0.01 + 0.01 * normal(n, groups, seed=3).abs()).to(dtype)
    zeros = torch.tensor([0, 2**bits - 1, 1], dtype=torch.uint8).expand(n, groups)
    given = zeros.contiguous() if zero_points else None
    weight = QuantizedWeight(packed, scales, given, bits, group)
    check(normal(rows, groups * group, dtype=dtype), weight)


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_sums_that_are_small_beside_what_they_are_made_of(dtype, bits, zero_points):
    """x is far from zero, and weights cancel each other."""
    x = (100 + normal(2, 256)).to(dtype)
    weight = 1 + normal(64, 256, seed=1).abs() / 100
    weight[:, ::2] *= -1
    check(x, quantize_weight(weight.to(dtype), bits, 128, zero_points=zero_points))


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_weights_and_x_in_any_strides(bits, rows):
    weight = quantize_weight(weights(40, 256, BF16), bits, 64)
    x = normal(rows, 256, dtype=BF16)
    expected = check(x, weight)
    for laid_out in (x.repeat_interleave(2, dim=-1)[..., ::2], x.mT.contiguous().mT):
        assert torch.equal(linear(laid_out, weight), expected)
    far = surrounded(weight.packed, 77)
    scales = weight.scales.mT.contiguous().mT
    assert torch.equal(linear(x, QuantizedWeight(far, scales, None, bits, 64)), expected)
