"""An op is measured beside its default config, what libraries have, and the limit."""

from __future__ import annotations

import pytest
import torch

from tritune.space import Config
from tritune.targets.probes import Probe
from tritune.targets.roofline import PeakRates
from tritune.workloads import bench
from tritune.workloads.bench import Row, measure, summary
from tritune.workloads.catalog import WORKLOADS
from tritune.workloads.libraries.library import LIBRARIES, vendors
from tritune.workloads.rms_norm import RmsNorm
from tritune.workloads.workload import Inputs, Vendors

CPU = torch.device("cpu")
TORCH = [LIBRARIES["torch"]]
NORM = WORKLOADS["rms_norm"].problem(rows=8, columns=64, dtype="float32")


class Boastful(RmsNorm):
    """Its vendor is fast, and wrong."""

    def offers(self, inputs: Inputs) -> Vendors:
        return {"fast": lambda: inputs["x"], **super().offers(inputs)}


class Assisted(RmsNorm):
    """One of its vendors has had the result worked out beforehand."""

    assisted = frozenset({"ready"})

    def offers(self, inputs: Inputs) -> Vendors:
        found = super().offers(inputs)
        result = found["eager"]()
        return {"ready": lambda: result, **found}


def test_a_row_has_all_that_it_compares() -> None:
    row = measure(RmsNorm(), NORM, CPU, 0.01, TORCH)
    assert row.ours_ms > 0 and row.default_ms > 0 and row.limit_rate > 0
    assert row.vendor in vendors(RmsNorm(), RmsNorm().inputs(NORM), TORCH)[0]
    assert row.libraries_ms == {"torch": row.vendor_ms}
    assert row.vendor_ms is not None and row.ratio == row.vendor_ms / row.ours_ms
    assert (row.limit in ("compute", "memory"), row.source) == (True, "default")


def test_a_vendor_with_a_wrong_result_is_not_compared_with() -> None:
    row = measure(Boastful(), NORM, CPU, 0.01, TORCH)
    assert row.vendor is not None and row.vendor != "torch fast"


def test_a_vendor_whose_work_was_done_beforehand_is_shown_but_not_compared_with() -> None:
    row = measure(Assisted(), NORM, CPU, 0.01, TORCH)
    assert set(row.assisted_ms) == {"torch ready"}
    assert row.vendor != "torch ready"


def test_torch_compiles_for_every_problem() -> None:
    # Beyond the limit torch would silently run eager code under the name of compiled code.
    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        for columns in (64, 128):
            problem = WORKLOADS["rms_norm"].problem(rows=8, columns=columns, dtype="float32")
            measure(RmsNorm(), problem, CPU, 0.01, TORCH)


def test_what_is_faster_than_the_limit_has_no_fraction_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = PeakRates(dict.fromkeys(("float32", "bfloat16", "float16"), 1.0), 1e15, 1e15, 0)
    monkeypatch.setattr(bench, "measure_peaks", lambda device: busy)
    monkeypatch.setattr(bench, "fastest_probe", lambda kind, device: Probe(lambda: None, 0.0))
    row = measure(RmsNorm(), NORM, CPU, 0.01)
    assert (row.limit, row.limit_fraction) == ("compute", None)


def test_the_best_run_of_the_probe_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = PeakRates(dict.fromkeys(("float32", "bfloat16", "float16"), 1.0), 1e15, 1e15, 0)
    monkeypatch.setattr(bench, "measure_peaks", lambda device: found)
    monkeypatch.setattr(bench, "fastest_probe", lambda kind, device: Probe(lambda: None, 1e15))
    row = measure(RmsNorm(), NORM, CPU, 0.01)
    assert row.limit_rate > 1e15
    assert row.limit_fraction is not None and row.limit_fraction < 1e-3


def test_without_libraries_there_is_no_ratio() -> None:
    row = measure(RmsNorm(), NORM, CPU, 0.01)
    assert (row.vendor, row.vendor_ms, row.ratio) == (None, None, None)
    assert summary([row])["geomean_ratio"] is None


def test_the_summary_has_geometric_means_and_the_worst_row() -> None:
    def row(ours: float, default: float, vendor: float) -> Row:
        config = Config.of(BLOCK=1)
        return Row(
            "op",
            NORM,
            config,
            "exact",
            ours,
            default,
            "torch eager",
            vendor,
            {},
            {},
            {},
            "memory",
            1e9,
            0.5,
        )

    found = summary([row(1.0, 2.0, 4.0), row(1.0, 8.0, 1.0)])
    assert found == {"geomean_ratio": 2.0, "min_ratio": 1.0, "geomean_tuned_over_default": 4.0}
