"""Workloads as cases of the tuner."""

from __future__ import annotations

import pytest
import torch

from tests.workloads.small import SMALL, every_op
from tritune import TrituneError
from tritune.space import Config
from tritune.tuning.case import CaseSpec, Launch
from tritune.tuning.measure.verify import verify
from tritune.workloads import WORKLOADS
from tritune.workloads.case import OpCase, open_case
from tritune.workloads.workload import Workload


def case_of(name: str, text: str | None = None, seed: int = 0) -> OpCase:
    problem = WORKLOADS[name].parse(SMALL[name][0] if text is None else text)
    case = CaseSpec(
        "tritune.workloads.case:open_case",
        {"workload": name, "problem": problem.fields(), "device": "cpu", "seed": seed},
    ).open()
    assert isinstance(case, OpCase)
    return case


def configs(case: OpCase) -> list[Config]:
    """The default, and another that is far from it."""
    kernel, problem = case.workload.kernel, case.problem
    default = kernel.default(problem, "cpu", "host")
    first = next(iter(kernel.space.configs("cpu", "host", problem.fields())))
    return [default, first]


@every_op
def test_configs_pass_the_gate(name):
    case = case_of(name)
    expected = case.expected()
    for config in configs(case):
        assert verify(case, config, expected) is None


@every_op
def test_compile_gives_the_launches_that_run_makes(name):
    case = case_of(name)
    config = configs(case)[1]
    launches = case.compile(config)
    assert all(isinstance(launch, Launch) for launch in launches)
    main = case.workload.kernel.functions[0].__name__
    assert launches[0].compiled.metadata.name == main
    assert all(launch.grid and min(launch.grid) > 0 for launch in launches)


def test_compile_uses_the_config():
    case = case_of("rms_norm", "rows=64 columns=512")
    (one,), (two,) = (case.compile(Config.of(ROWS=rows, BLOCK=512)) for rows in (1, 4))
    assert (one.grid, two.grid) == ((64,), (16,))
    assert one.compiled.kernel != two.compiled.kernel


def test_numbers_that_a_launch_is_given_are_part_of_it():
    case = case_of("rms_norm", "rows=64 columns=512")
    (launch,) = case.compile(Config.of(ROWS=1, BLOCK=512))
    assert launch.scalars[:3] == (64, 1, 512)
    assert 1e-6 in launch.scalars


def test_compile_launches_nothing(monkeypatch):
    case = case_of("rope", "tokens=8 inplace=true")
    inputs = case.workload.inputs(case.problem)
    before = inputs["q"].clone()
    monkeypatch.setattr(Workload, "empty_inputs", lambda *_: inputs)
    assert case.compile(configs(case)[0])
    assert torch.equal(inputs["q"], before)
    # Nor is anything left that would keep others from launching.
    case.workload.run(inputs)
    assert not torch.equal(inputs["q"], before)


def test_a_config_that_cannot_be_compiled_leaves_launching_as_it_was():
    case = case_of("rms_norm", "rows=64 columns=512")
    good = Config.of(ROWS=1, BLOCK=512)
    with pytest.raises(Exception, match=r"BLOCK|arange|power"):
        case.compile(Config.of(ROWS=1, BLOCK=500))
    assert case.run(good)[0].isfinite().all()


def test_restore_puts_back_what_was_overwritten():
    case = case_of("rope", "tokens=8 inplace=true")
    config = configs(case)[0]
    first = [output.clone() for output in case.run(config)]
    again = [output.clone() for output in case.run(config)]
    assert not torch.equal(first[0], again[0])
    case.restore()
    assert all(map(torch.equal, case.run(config), first))


def test_what_to_expect_does_not_depend_on_earlier_runs():
    fresh, used = (case_of("rope", "tokens=8 inplace=true") for _ in range(2))
    used.run(configs(used)[0])
    assert all(map(torch.equal, fresh.expected().reference, used.expected().reference))


def test_inputs_that_are_overwritten_are_not_read_only():
    case = case_of("rope", "tokens=8 inplace=true")
    shapes = [tuple(tensor.shape) for tensor in case.read_only()]
    assert (8, 32, 128) not in shapes and len(shapes) == 3
    assert len(case_of("rms_norm").read_only()) == 2
    packed, scales = case_of("linear_quantized").read_only()[1:]
    assert packed.dtype == torch.uint8 and scales.dtype == torch.float16


def test_large_outputs_are_compared_in_part():
    case = case_of("linear", "rows=1 n=65536 k=1024 dtype=float32")
    (out,), expected = case.run(configs(case)[0]), case.expected()
    assert out.shape == expected.reference[0].shape == expected.plain[0].shape
    assert 1000 < out.numel() < 65536


def test_vendors_are_made_once():
    case = case_of("attention")
    assert case.vendors() is case.vendors()
    assert set(case.vendors()) == {"torch eager", "torch sdpa"}


def test_softcap_is_what_torch_has_no_fused_kernel_for():
    assert set(case_of("attention", "queries=16 heads=4 softcap=true").vendors()) == {"torch eager"}


def test_batches_that_decode_are_offered_padded_too():
    decoding, prefilling = (
        case_of("paged_attention", f"queries={n} keys=64 kv_heads=1").vendors() for n in (1, 2)
    )
    assert set(decoding) - set(prefilling) == {"torch sdpa_padded"}


def test_a_problem_that_no_call_has_is_refused():
    fields = {**WORKLOADS["rms_norm"].parse("").fields(), "rows": 1000}
    with pytest.raises(TrituneError, match="rows=1000; the nearest has rows=1024"):
        open_case("rms_norm", fields)
