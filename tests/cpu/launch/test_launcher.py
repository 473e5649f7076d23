"""What a launch takes, what it refuses, and what it reports."""

import math
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tritune.cpu.launch import arguments as packing
from tritune.errors import DeviceAssertionError, LaunchError


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


@triton.jit
def copy_scalar(out, value):
    tl.store(out, value)


@triton.jit
def copy_half(out, value: tl.float16):
    tl.store(out, value)


@triton.jit
def copy_bfloat(out, value: tl.bfloat16):
    tl.store(out, value)


@triton.jit
def copy_double(out, value: tl.float64):
    tl.store(out, value)


@triton.jit
def copy_byte(out, value: tl.int8):
    tl.store(out, value)


@triton.jit
def number_programs(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    nx, ny, nz = tl.num_programs(0), tl.num_programs(1), tl.num_programs(2)
    index = (z * ny + y) * nx + x
    tl.store(out + index, index + nx * ny * nz)


@triton.jit
def sum_tuple(out, values, optional):
    total = values[0] + values[1][0] * tl.load(values[1][1])
    if optional is not None:
        total += optional
    tl.store(out, total)


@triton.jit
def refuse(x, limit):
    i = tl.program_id(0)
    tl.device_assert(tl.load(x + i) < limit, "too large")
    tl.store(x + i, -1.0)


@triton.jit
def announce(value):
    tl.device_print("value", value)


@triton.jit
def copy_block(source, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i[:, None] * BLOCK + i[None, :], source.load([0, 0]))


class TestArguments:
    @pytest.mark.parametrize(
        ("value", "dtype"),
        [
            (5, torch.int32),
            (-7, torch.int32),
            (2**31 - 2, torch.int32),
            (-(2**31), torch.int32),
            (2**40 + 3, torch.int64),
            (-(2**63), torch.int64),
            (0.1, torch.float32),
            (-math.inf, torch.float32),
            (True, torch.bool),
            (False, torch.bool),
        ],
    )
    def test_scalars_arrive_as_they_are(self, value, dtype):
        out = torch.empty(1, dtype=dtype)
        copy_scalar[(1,)](out, value)
        assert torch.equal(out, torch.tensor([value], dtype=dtype))

    def test_an_integer_beyond_the_signed_range_arrives_as_unsigned(self):
        out = torch.empty(1, dtype=torch.uint64)
        copy_scalar[(1,)](out, 2**64 - 5)
        assert out.item() == 2**64 - 5

    @pytest.mark.parametrize("value", [1.0, 0.1, -65504.0, 1e6, -1e6, 6e-8, math.inf])
    def test_half_precision_scalars_are_rounded_and_overflow_to_infinity(self, value):
        out = torch.empty(1, dtype=torch.float16)
        copy_half[(1,)](out, value)
        assert torch.equal(out, torch.tensor([value]).half())

    @pytest.mark.parametrize("value", [1.0, 0.1, 3.3895e38, 1e39, -1e-40, math.inf])
    def test_bfloat16_scalars_are_rounded_to_even(self, value):
        out = torch.empty(1, dtype=torch.bfloat16)
        copy_bfloat[(1,)](out, value)
        assert torch.equal(out, torch.tensor([value]).bfloat16())

    def test_a_double_keeps_all_its_digits(self):
        out = torch.empty(1, dtype=torch.float64)
        copy_double[(1,)](out, 0.1)
        assert out.item() == 0.1

    def test_a_float_too_large_for_its_type_is_infinity(self):
        out = torch.empty(1)
        copy_scalar[(1,)](out, 1e300)
        assert out.item() == math.inf

    def test_numpy_scalars_are_numbers(self):
        out = torch.empty(1)
        copy_double[(1,)](out, numpy.float64(2.5))
        assert out.item() == 2.5

    def test_a_number_that_does_not_fit_is_refused_by_name(self):
        with pytest.raises(LaunchError, match="argument value: 300 cannot be passed as i8"):
            copy_byte[(1,)](torch.empty(1, dtype=torch.int8), 300)

    def test_tuples_and_none_are_taken_apart(self):
        Pair = namedtuple("Pair", ["scale", "pointer"])
        out = torch.empty(1)
        values = (2.0, Pair(3.0, torch.tensor([5.0])))
        sum_tuple[(1,)](out, values, None)
        assert out.item() == 17.0
        sum_tuple[(1,)](out, values, 0.5)
        assert out.item() == 17.5

    def test_a_reinterpreted_tensor_is_its_memory(self):
        out = torch.zeros(1, dtype=torch.int32)
        copy_scalar[(1,)](triton.reinterpret(out, tl.float32), 1.0)
        assert out.item() == 0x3F800000

    def test_a_tensor_descriptor_is_taken_apart(self):
        source = torch.arange(12 * 8, dtype=torch.float32).reshape(12, 8)
        out = torch.empty(8, 8)
        copy_block[(1,)](TensorDescriptor.from_tensor(source, [8, 8]), out, BLOCK=8)
        assert torch.equal(out, source[:8])

    def test_empty_tensors_are_fine(self):
        add[(1,)](torch.empty(0), torch.empty(0), torch.empty(0), 0, BLOCK=16)

    def test_a_tensor_on_another_device_is_refused_by_name(self):
        x = torch.zeros(16)
        with pytest.raises(LaunchError, match=r"argument y is on device meta.*CPU"):
            add[(1,)](x, torch.zeros(16, device="meta"), x, 16, BLOCK=16)

    def test_a_foreign_object_with_an_address_is_accepted(self):
        class Foreign:
            dtype = torch.float32

            def __init__(self, tensor):
                self.tensor = tensor

            def data_ptr(self):
                return self.tensor.data_ptr()

        x, out = torch.ones(16), torch.empty(16)
        add[(1,)](Foreign(x), x, Foreign(out), 16, BLOCK=16)
        assert torch.equal(out, 2 * x)


class TestGrid:
    @pytest.mark.parametrize("grid", [(1,), (7,), (3, 5), (2, 3, 4), (1, 1, 9), (400, 3)])
    def test_every_program_runs_once_with_its_own_index(self, grid):
        total = math.prod(grid)
        out = torch.zeros(total + 1, dtype=torch.int32)
        number_programs[grid](out)
        expected = torch.arange(total, 2 * total, dtype=torch.int32)
        assert torch.equal(out[:-1], expected)
        assert out[-1] == 0

    @pytest.mark.parametrize("grid", [(0,), (4, 0), (2, 2, 0)])
    def test_an_empty_grid_runs_nothing(self, grid):
        out = torch.zeros(8, dtype=torch.int32)
        number_programs[grid](out)
        assert not out.any()

    @pytest.mark.parametrize("grid", [(-1,), (2**31,), (1, -5), (0, 2**40)])
    def test_an_impossible_grid_is_refused(self, grid):
        with pytest.raises(LaunchError, match=r"grid of .* each size must be from 0 to"):
            number_programs[grid](torch.zeros(1, dtype=torch.int32))

    def test_a_fractional_grid_is_refused(self):
        with pytest.raises(LaunchError, match="must be integers"):
            number_programs[(1.5,)](torch.zeros(1, dtype=torch.int32))

    def test_integers_of_other_libraries_make_a_grid(self):
        out = torch.zeros(6, dtype=torch.int32)
        number_programs[(numpy.int64(2), torch.tensor(3))](out)
        assert torch.equal(out, torch.arange(6, 12, dtype=torch.int32))


class TestOutcome:
    def test_a_failed_assertion_names_its_message_line_and_program(self):
        x = torch.zeros(64)
        x[17] = 9.0
        with pytest.raises(DeviceAssertionError) as caught:
            refuse[(64,)](x, 1.0, debug=True)
        text = str(caught.value)
        assert "too large" in text
        assert "test_launcher.py:" in text
        assert "(17, 0, 0)" in text

    def test_the_next_launch_after_a_failure_is_clean(self):
        x = torch.full((4,), 9.0)
        with pytest.raises(DeviceAssertionError):
            refuse[(4,)](x, 1.0, debug=True)
        refuse[(4,)](torch.zeros(4), 1.0, debug=True)

    def test_what_a_kernel_prints_appears_in_order_with_pythons_own_output(self, capfd):
        print("before")
        announce[(1,)](42)
        print("after")
        out = capfd.readouterr().out
        assert out.index("before") < out.index("42") < out.index("after")

    def test_hooks_surround_the_launch(self, monkeypatch):
        out = torch.zeros(1)
        seen = []
        runtime = triton.knobs.runtime
        monkeypatch.setattr(
            runtime, "launch_enter_hook", lambda m: seen.append((m.get()["name"], out.item()))
        )
        monkeypatch.setattr(
            runtime, "launch_exit_hook", lambda m: seen.append((m.get()["name"], out.item()))
        )
        copy_scalar[(1,)](out, 2.5)
        assert seen == [("copy_scalar", 0.0), ("copy_scalar", 2.5)]

    def test_launches_from_several_threads_do_not_disturb_each_other(self):
        def one(seed):
            x = torch.full((5000,), float(seed))
            out = torch.empty(5000)
            for _ in range(20):
                add[(20,)](x, x, out, 5000, BLOCK=256)
                if not torch.equal(out, 2 * x):
                    return False
            return True

        # Compiled before: Python 3.11's parser fails now and then if several threads parse at once.
        assert one(0)
        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(one, range(12)))

    def test_failures_in_several_threads_reach_their_own_callers(self):
        def one(value):
            try:
                refuse[(8,)](torch.full((8,), value), 1.0, debug=True)
            except DeviceAssertionError:
                return True
            return False

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(one, [0.0, 9.0] * 20)) == [False, True] * 20


class TestPacking:
    def test_constants_have_no_slot_and_tuples_are_flattened(self):
        nested = ("fp64", ("*i8", "constexpr"))
        signature = {"x": "*fp32", "n": "i32", "C": "constexpr", "t": nested}
        slots = packing.slots(signature)
        assert [slot.type for slot in slots] == ["*fp32", "i32", "fp64", "*i8"]
        assert [slot.expression for slot in slots] == ["a0", "a1", "a3[0]", "a3[1][0]"]

    def test_a_type_that_cannot_be_passed_is_refused(self):
        with pytest.raises(LaunchError, match="nvTmaDesc"):
            packing.slots({"x": "nvTmaDesc"})

    @pytest.mark.parametrize(
        "value", [0.0, -0.0, 1.0, 1.00390625, 1.01171875, math.pi, 1e-45, math.inf]
    )
    def test_bfloat16_bits_are_torchs(self, value):
        bits = torch.tensor([value]).bfloat16().view(torch.int16).item() & 0xFFFF
        assert packing.bf16(value) == bits

    def test_a_bfloat16_nan_stays_one(self):
        bits = packing.bf16(math.nan)
        assert bits & 0x7F80 == 0x7F80
        assert bits & 0x7F


def test_a_compiled_kernel_can_be_called_without_the_constexprs_at_its_end():
    x = torch.arange(100.0)
    out = torch.empty_like(x)
    compiled = add[(1,)](x, x, out, 100, BLOCK=128)
    out.zero_()
    compiled[(1, 1, 1)](x, x, out, 100)
    assert torch.equal(out, x + x)
