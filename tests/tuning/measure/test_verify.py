from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import tritune
from tests.tuning import faulty
from tests.tuning.faulty import config
from tritune.tuning.case import Expected
from tritune.tuning.measure.guard import CANARY_BYTES, Guard, checksums
from tritune.tuning.measure.verify import agrees, judge, verify, within_rule

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn]


def rule(out: torch.Tensor, reference: torch.Tensor) -> str | None:
    return within_rule(out, reference, reference.to(out.dtype))


def test_the_rule_allows_the_rounding_of_the_dtype_and_no_more():
    reference = torch.linspace(-1.0, 1.0, 100, dtype=torch.float64)
    rounded = reference.to(torch.bfloat16)
    assert rule(rounded, reference) is None
    assert "at (7,)" in (rule(rounded.index_fill(0, torch.tensor(7), 2.0), reference) or "")


def test_the_rule_allows_as_many_times_plain_torchs_error_as_it_is_told():
    reference = torch.zeros(4, dtype=torch.float64)
    plain = torch.full((4,), 0.1)
    out = torch.full((4,), 0.25)
    assert within_rule(out, reference, plain, slack=2.0) is not None
    assert within_rule(out, reference, plain, slack=3.0) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_a_number_breaks_the_rule_where_a_number_is_expected(value):
    reference = torch.ones(3, dtype=torch.float64)
    assert rule(torch.tensor([1.0, value, 1.0]), reference) is not None


def test_infinities_must_be_the_same_ones():
    reference = torch.tensor([1.0, float("-inf")], dtype=torch.float64)
    assert rule(torch.tensor([1.0, float("-inf")]), reference) is None
    assert rule(torch.tensor([1.0, float("inf")]), reference) == "infinities differ"


def test_shapes_and_dtypes_must_fit():
    reference = torch.zeros(3, dtype=torch.float64)
    assert "shape (4,)" in (rule(torch.zeros(4), reference) or "")
    assert "float16" in (within_rule(torch.zeros(3).half(), reference, torch.zeros(3)) or "")


def test_nothing_at_all_is_right():
    assert rule(torch.zeros(0, 5), torch.zeros(0, 5, dtype=torch.float64)) is None


def test_without_a_reference_another_configs_result_is_the_measure():
    sample = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    assert agrees(sample * (1 + 1e-7), sample) is None
    assert agrees(sample + 1e-3, sample) is not None
    assert agrees(torch.tensor([1, 2]), torch.tensor([1, 3])) is not None


def test_all_outputs_are_judged_and_the_wrong_one_is_named():
    right = torch.ones(3)
    expected = Expected([right.double(), right.double()], [right, right])
    assert judge([right, right], expected, ()) is None
    assert (judge([right, right + 1], expected, ()) or "").startswith("output 1:")
    assert judge([right], expected, ()) == "gives 1 outputs, expected 2"


@pytest.mark.parametrize("dtype", DTYPES)
def test_uninitialised_memory_is_nan_under_guard(dtype):
    with Guard():
        made = [
            torch.empty(3, 5, dtype=dtype),
            torch.empty_like(torch.zeros(7, dtype=dtype)),
            torch.zeros(2, dtype=dtype).new_empty(4),
            torch.empty_strided((2, 3), (1, 2), dtype=dtype),
        ]
    assert [tuple(each.shape) for each in made] == [(3, 5), (7,), (4,), (2, 3)]
    assert made[-1].stride() == (1, 2)
    assert all(bool(each.double().isnan().all()) for each in made)


def test_initialised_memory_keeps_its_values_under_guard():
    with Guard() as guard:
        zeros, full = torch.zeros(5), torch.full((2, 2), 3, dtype=torch.int8)
    assert torch.equal(zeros, torch.zeros(5))
    assert torch.equal(full, torch.full((2, 2), 3, dtype=torch.int8))
    assert guard.damage() is None


@pytest.mark.parametrize(("place", "where"), [(-1, "before"), (10, "behind")])
def test_a_write_next_to_a_tensor_is_damage(place, where):
    with Guard() as guard:
        out = torch.zeros(10, dtype=torch.float16)
    out.as_strided((1,), (1,), out.storage_offset() + place).fill_(7.0)
    assert where in (guard.damage() or "")
    assert "float16 tensor of shape (10,)" in (guard.damage() or "")


def test_guarded_tensors_are_as_aligned_as_others():
    with Guard():
        assert torch.empty(3).data_ptr() % 64 == 0
    assert CANARY_BYTES % 4096 == 0


def test_the_guard_sees_what_registered_operators_allocate():
    gate, up = torch.randn(3, 64), torch.randn(3, 64)
    with Guard() as guard:
        out = tritune.silu_mul(gate, up)
    assert torch.equal(out, tritune.silu_mul(gate, up))
    out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(7.0)
    assert "(3, 64)" in (guard.damage() or "")


def test_the_guard_does_not_load_torchs_compiler():
    program = (
        "import sys, torch\n"
        "from tritune.tuning.measure.guard import Guard\n"
        "with Guard(): torch.empty(3)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_checksum_covers_what_lies_around_a_view_too():
    memory = torch.zeros(101, dtype=torch.uint8)
    view = memory[:3]
    before = checksums([view])
    memory[100] = 1
    assert checksums([view]) != before


def test_a_good_config_is_verified():
    case = faulty.open_case()
    assert verify(case, config(), case.expected()) is None


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("wrong", "elements are off"),
        ("writes outside", "wrote outside its output"),
        ("writes too little", "nan"),
        ("differs each time", "two runs differ"),
        ("changes its input", "changed an input"),
    ],
)
def test_a_bad_config_is_refused_with_the_reason(fault, message):
    case = faulty.open_case()
    failure = verify(case, config(fault), case.expected())
    assert failure is not None
    assert failure.reason == "wrong_result"
    assert message in failure.message
