"""Libraries are compared with by the best that is installed, is right, and runs."""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.workloads.small import SMALL
from tritune.errors import TrituneError
from tritune.tuning.measure.verify import judge, outputs_of
from tritune.workloads.bench import measure
from tritune.workloads.case import OpCase
from tritune.workloads.catalog import WORKLOADS
from tritune.workloads.libraries import crash_check
from tritune.workloads.libraries import library as libraries
from tritune.workloads.libraries.library import LIBRARIES, Library, library_named, usable
from tritune.workloads.workload import Inputs, Vendors, Workload

CPU = torch.device("cpu")
LINEAR = WORKLOADS["linear"].problem(rows=8, n=64, k=64, dtype="float32")


def library(name: str, function: Callable[[torch.Tensor, torch.Tensor], Any]) -> Library:
    """A library with one function, `linear`."""

    def offers(workload: Workload, inputs: Inputs) -> Vendors:
        return {"linear": functools.partial(function, inputs["x"], inputs["weight"])}

    return Library(name, offers)


def slow(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    time.sleep(0.05)
    return functional.linear(x, weight)


def crashing(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no kernel for this shape\nsee the manual")


def unable(workload: Workload, inputs: Inputs) -> Vendors:
    raise ImportError("libmissing.so")


FAST, SLOW = library("fast", functional.linear), library("slow", slow)
WRONG, CRASHING = library("wrong", lambda x, w: x.new_zeros(8, 64)), library("broken", crashing)


def test_the_vendor_is_the_fastest_library() -> None:
    row = measure(WORKLOADS["linear"], LINEAR, CPU, 0.01, [SLOW, FAST])
    assert row.vendor == "fast linear"
    assert row.vendor_ms == row.libraries_ms["fast"] < row.libraries_ms["slow"]


def test_a_library_that_is_wrong_costs_itself_only() -> None:
    row = measure(WORKLOADS["linear"], LINEAR, CPU, 0.01, [WRONG, SLOW])
    assert (row.vendor, set(row.libraries_ms)) == ("slow linear", {"slow"})
    assert set(row.failed) == {"wrong linear"} and "error" in row.failed["wrong linear"]


def test_a_library_that_raises_costs_itself_only() -> None:
    row = measure(WORKLOADS["linear"], LINEAR, CPU, 0.01, [CRASHING, Library("no", unable), SLOW])
    assert row.vendor == "slow linear"
    assert row.failed == {
        "broken linear": "RuntimeError: no kernel for this shape",
        "no": "ImportError: libmissing.so",
    }


def test_a_plug_in_that_ends_its_process_costs_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    aborting = [sys.executable, "-c", "import os; os.abort()"]
    monkeypatch.setattr(crash_check, "_known", {})
    plug_in = replace(FAST, plug_in=True)
    ended = crash_check.failure_of
    monkeypatch.setattr(crash_check, "failure_of", lambda command: ended(aborting))
    row = measure(WORKLOADS["linear"], LINEAR, CPU, 0.01, [plug_in, SLOW])
    assert row.vendor == "slow linear"
    assert "SIGABRT" in row.failed["fast"]


def test_a_process_that_ends_well_has_not_failed() -> None:
    assert crash_check.failure_of([sys.executable, "-c", "pass"]) is None
    assert "status 3" in str(crash_check.failure_of([sys.executable, "-c", "raise SystemExit(3)"]))


def test_the_tuner_compares_with_the_same_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "LIBRARIES", {"fast": FAST})
    case = OpCase(WORKLOADS["linear"], LINEAR, CPU)
    assert list(case.vendors()) == ["fast linear"]
    assert judge(outputs_of(case.vendors()["fast linear"]), case.expected(), ()) is None


def test_a_library_that_is_not_installed_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    libraries._import_failure.cache_clear()
    with pytest.raises(TrituneError, match=r"zentorch is not installed: pip install 'zentorch~="):
        library_named("zentorch", CPU)
    assert [each.name for each in usable(CPU)] == ["torch"]
    libraries._import_failure.cache_clear()


def test_a_library_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zentorch.py").write_text("raise ImportError('made for torch 1.0')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "zentorch", raising=False)
    libraries._import_failure.cache_clear()
    reason = "zentorch cannot be used, its import fails: ImportError: made for torch 1.0"
    assert reason in libraries.broken()
    assert "zentorch" not in [each.name for each in usable(CPU)]
    libraries._import_failure.cache_clear()


def test_plug_ins_for_cpus_have_nothing_for_gpus() -> None:
    with pytest.raises(TrituneError, match="openvino has nothing for cuda"):
        library_named("openvino", torch.device("cuda"))


def test_a_plug_in_works_on_inputs_of_its_own() -> None:
    workload = WORKLOADS["silu_mul"]
    inputs = workload.inputs(workload.parse("rows=4 columns=64 dtype=float32"))
    ((_, call),) = libraries._for_plug_in(workload, inputs)
    copies = call.args[:2]
    for copy, name in zip(copies, ("gate", "up"), strict=True):
        assert torch.equal(copy, inputs[name]) and copy.stride() == inputs[name].stride()
        assert copy.untyped_storage().data_ptr() != inputs[name].untyped_storage().data_ptr()


def test_weights_are_what_compilers_may_rearrange() -> None:
    for name, weights in (("linear", 1), ("rms_norm", 1), ("silu_mul", 0)):
        workload = WORKLOADS[name]
        (call,) = (
            call
            for name, call in workload.offers(workload.inputs(workload.parse(""))).items()
            if name in workload.compilable
        )
        assert sum(isinstance(arg, torch.nn.Parameter) for arg in call.args) == weights


@pytest.mark.cxx
def test_torchs_own_compiler_is_not_left_with_what_a_plug_in_has_set() -> None:
    def plug_in(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        torch._inductor.config.joint_custom_post_pass = lambda graph: None
        return graph.forward

    x = torch.ones(4)
    call = libraries.Compiled(lambda: x + 1, plug_in)
    assert torch.equal(call(), x + 1) and torch.equal(call(), x + 1)
    assert torch._inductor.config.joint_custom_post_pass is None
    assert torch._inductor.config.freezing is False


@pytest.mark.parametrize("name", ["linear", "attention", "rms_norm"])
@pytest.mark.parametrize("library", [name for name in LIBRARIES if name != "torch"])
def test_a_plug_in_that_is_installed_is_right_or_named(library: str, name: str) -> None:
    reason = LIBRARIES[library].missing()
    if reason is not None:
        pytest.skip(reason)
    workload = WORKLOADS[name]
    for text in [SMALL[name][0], SMALL[name][0]]:
        row = measure(workload, workload.parse(text), CPU, 0.01, [LIBRARIES[library]])
        assert set(row.libraries_ms) == {library} or row.failed
