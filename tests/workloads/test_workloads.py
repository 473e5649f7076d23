"""Every workload: its inputs, its results, what it is compared with, and its work."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tritune
from tests.workloads.small import SMALL, every_op, every_problem
from tritune.kernels.kernel import Problem
from tritune.ops.call import trace
from tritune.targets.roofline import PeakRates
from tritune.testing import assert_within_rule
from tritune.workloads import WORKLOADS, workload_named, workload_of
from tritune.workloads import attention as attention_module
from tritune.workloads.libraries.library import LIBRARIES
from tritune.workloads.reference import attention as visible
from tritune.workloads.workload import Inputs, Outputs, Work, Workload


def made(name: str, text: str) -> tuple[Workload, Problem, Inputs]:
    workload = WORKLOADS[name]
    problem = workload.parse(text)
    return workload, problem, workload.inputs(problem)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Problem]]:
    """The kernels and problems that ops ask a config for."""
    found: list[tuple[str, Problem]] = []

    def listening(config_for: Any) -> Any:
        def listen(kernel: Any, problem: Problem, device: torch.device) -> Any:
            found.append((kernel.name, problem))
            return config_for(kernel, problem, device)

        return listen

    monkeypatch.setattr(trace, "config_for", listening(trace.config_for))
    return found


def restored_run(workload: Workload, inputs: Inputs) -> Outputs:
    """The outputs of a run, which leaves the inputs as they were."""
    before = {name: inputs[name].clone() for name in workload.written(inputs)}
    outputs = tuple(output.clone() for output in workload.run(inputs))
    for name, value in before.items():
        inputs[name].copy_(value)
    return outputs


def test_there_is_a_workload_for_every_op_and_a_problem_for_every_workload():
    ops = {"attention", "attention_varlen", "paged_attention", "rms_norm", "add_rms_norm", "rope"}
    ops |= {"silu_mul", "gelu_mul", "linear"}
    assert ops < set(tritune.__all__)
    assert set(WORKLOADS) == {*ops, "linear_quantized"} == set(SMALL)


@every_problem
def test_the_op_computes_exactly_the_problem_from_its_inputs(name, text, asked):
    workload, problem, inputs = made(name, text)
    workload.run(inputs)
    assert asked == [(workload.kernel.name, problem)]


@every_problem
def test_results_are_within_the_rule(name, text):
    workload, problem, inputs = made(name, text)
    outputs = restored_run(workload, inputs)
    part, slack = workload.part(inputs), workload.slack_for(problem)
    references, plains = workload.reference(inputs), workload.plain(inputs)
    for out, reference, plain in zip(outputs, references, plains, strict=True):
        assert reference.dtype.itemsize > out.dtype.itemsize
        assert_within_rule(out[part], reference, plain, slack)


@every_problem
def test_vendors_compute_the_same(name, text):
    workload, _, inputs = made(name, text)
    references, plains = workload.reference(inputs), workload.plain(inputs)
    part = workload.part(inputs)
    vendors = workload.offers(inputs)
    assert vendors
    for vendor in vendors.values():
        outputs = vendor()
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for out, reference, plain in zip(outputs, references, plains, strict=True):
            # What torch fuses rounds elsewhere than plain torch does.
            assert_within_rule(out[part], reference, plain, slack=8.0)


@pytest.mark.parametrize("present", [False, True])
def test_compiled_code_is_offered_where_there_is_a_compiler(present, tmp_path, monkeypatch):
    workload, _, inputs = made("rms_norm", "rows=4 columns=64")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    if present:
        (tmp_path / "g++").touch(mode=0o755)
    assert ("compiled" in LIBRARIES["torch"].offers(workload, inputs)) is present


@every_op
def test_inputs_are_the_same_for_the_same_seed_only(name):
    workload = WORKLOADS[name]
    problem = workload.parse(SMALL[name][0])
    first, again, other = (tensors(workload.inputs(problem, seed=seed)) for seed in (1, 1, 2))
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))


@every_problem
def test_empty_inputs_have_the_same_form(name, text):
    workload, problem, inputs = made(name, text)
    empty = workload.empty_inputs(problem)
    for value, form in zip(tensors(inputs), tensors(empty), strict=True):
        assert value.shape == form.shape and value.dtype == form.dtype
        assert value.stride() == form.stride()


def tensors(inputs: Inputs) -> list[torch.Tensor]:
    leaves, _ = torch.utils._pytree.tree_flatten(inputs)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


@every_problem
def test_a_problem_is_found_again_by_its_fields_and_kernel(name, text):
    workload = WORKLOADS[name]
    problem = workload.parse(text)
    assert workload.exactly(problem.fields()) == problem
    assert workload_of(workload.kernel.name, problem) is workload


@pytest.mark.parametrize("name", ["attention", "attention_varlen", "paged_attention"])
def test_a_part_of_the_reference_is_that_part_of_the_whole(name, monkeypatch):
    text = {
        "attention": "batch=2 queries=64 keys=128 heads=8 head_size=16 window=40 alibi=true",
        "attention_varlen": "batch=3 queries=64 keys=128 heads=8 head_size=16",
        "paged_attention": "queries=32 keys=128 sequences=3 kv_heads=2 head_size=16 sinks=true",
    }[name]
    workload, _, inputs = made(name, text)
    (whole,) = workload.reference(inputs)
    monkeypatch.setitem(visible._SCORES, torch.float16, 2**13)
    part = workload.part(inputs)
    assert len(whole[part]) and whole[part].numel() < whole.numel() / 4
    assert torch.allclose(workload.reference(inputs)[0], whole[part], rtol=1e-4, atol=1e-5)


def test_every_dimension_that_is_thinned_out_keeps_its_end(monkeypatch):
    monkeypatch.setitem(visible._SCORES, torch.float16, 1)
    workload, _, inputs = made("attention", "batch=4 queries=128 heads=8 head_size=16")
    q = inputs["q"]
    for part, size in zip(workload.part(inputs), q.shape[:3], strict=True):
        indices = range(*part.indices(size))
        assert indices[-1] == size - 1
        assert indices.step % 2 == 1
        assert 1 < indices.step <= max(size, attention_module.ROW_STEP)


@pytest.mark.parametrize("window", [None, 1, 5, 40])
@pytest.mark.parametrize(("queries", "keys"), [(1, 7), (7, 7), (5, 20), (9, 4)])
def test_visible_pairs_are_those_that_no_mask_hides(queries, keys, window):
    distance = torch.arange(keys) - torch.arange(keys - queries, keys)[:, None]
    hidden = visible.hidden_keys(distance, {"causal": True, "window": window})
    assert visible.visible_pairs(queries, keys, True, window) == int((~hidden).sum())


def test_work_counts_what_has_to_be_done():
    attention = WORKLOADS["attention"]
    full, causal = (
        attention.work(attention.parse(f"queries=1024 heads=32 causal={flag}"))
        for flag in ("false", "true")
    )
    assert full.flops == 4 * 1024 * 1024 * 128 * 32
    assert causal.flops / full.flops == pytest.approx(0.5, abs=0.001)
    assert full.read_bytes == causal.read_bytes == 2 * 1024 * 128 * (32 + 2 * 8)
    assert full.written_bytes == causal.written_bytes == 2 * 1024 * 128 * 32
    linear = WORKLOADS["linear"]
    work = linear.work(linear.parse("n=2048 k=4096"))
    assert (work.read_bytes, work.written_bytes) == (2 * (2048 * 4096 + 4096), 2 * 2048)
    quantized = WORKLOADS["linear_quantized"]
    work = quantized.work(quantized.parse("n=4096 k=4096 bits=4 group=128"))
    assert work.read_bytes == 4096 * 4096 / 2 + 2 * (4096 * 32 + 4096)


PEAKS = PeakRates({"float32": 1e12, "float16": 4e12}, 1e11, 2e11, cache_bytes=1000)


@pytest.mark.parametrize(
    ("work", "dtype", "seconds"),
    [
        (Work(1e12, 0, 0), "float32", 1.0),
        (Work(1e12, 0, 0), "float16", 0.25),
        (Work(1e12, 2e11, 0), "float32", 2.0),
        # What is written may be on its way while the next is read, and the last of it in caches.
        (Work(0, 1e11, 1e11), "float32", 1.0),
        (Work(0, 1e11, 2e11 + 1000), "float32", 1.5),
        (Work(0, 10, 1000), "float32", 1e-10),
    ],
)
def test_the_slowest_of_arithmetic_and_memory_bounds_the_work(work, dtype, seconds):
    assert work.bound(dtype, PEAKS).seconds == pytest.approx(seconds)


def test_inputs_are_read_once_for_several_calls():
    work = Work(1e9, 1e11, 0)
    assert work.bound("float32", PEAKS, calls=10).seconds == pytest.approx(0.1)
    assert work.bound("float32", PEAKS, calls=10**6).kind == "float32"


@pytest.mark.parametrize("name", ["attention_varlen", "paged_attention"])
def test_sequences_of_a_batch_differ_in_length(name):
    _, problem, inputs = made(name, "queries=64 keys=256")
    starts = inputs["cu_seqlens_q"]
    lengths = (starts[1:] - starts[:-1]).tolist()
    assert lengths[0] == max(lengths) == problem.queries
    assert len(set(lengths)) > 1


def test_pages_lie_in_no_order():
    _, _, inputs = made("paged_attention", "keys=1024")
    pages = inputs["block_table"].flatten()
    assert torch.equal(pages.sort().values, torch.arange(pages.numel(), dtype=pages.dtype))
    assert not torch.equal(pages.sort().values, pages)


def test_an_unknown_op_is_told_with_the_nearest():
    with pytest.raises(tritune.TrituneError, match=r"rms_nrom.*did you mean rms_norm"):
        workload_named("rms_nrom")
