"""The pipeline on a real GPU: tuned, packed, and failures told from one another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tritune.screening.capture import absent_device, launches_of
from tritune.screening.service import known_limits
from tritune.screening.staged import StagedCompiler
from tritune.space import Config
from tritune.targets.binary.same_code import code_digest
from tritune.targets.device import detect, target_of
from tritune.tuning.case import CaseSpec
from tritune.tuning.measure.client import MeasurementClient
from tritune.workloads.case import open_case
from tritune.workloads.catalog import WORKLOADS

pytestmark = pytest.mark.gpu

ATTENTION = WORKLOADS["attention"]
PROBLEM = ATTENTION.parse("queries=256 heads=4 group=2 head_size=64 dtype=float16 causal=true")


def gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def spec() -> CaseSpec:
    arguments = {"workload": "attention", "problem": PROBLEM.fields(), "device": str(gpu())}
    return CaseSpec("tritune.workloads.case:open_case", arguments)


def default(**changes: int | bool) -> Config:
    target = target_of(gpu())
    config = ATTENTION.kernel.default(PROBLEM, target.family, target.arch)
    return Config.of(**{**config.as_kwargs(), **changes})


def test_the_table_knows_this_gpu_and_its_limits() -> None:
    limits, properties = known_limits(target_of(gpu())), torch.cuda.get_device_properties(gpu())
    assert limits is not None
    assert limits.warp_size == properties.warp_size
    assert detect(gpu()).memory_bytes == properties.total_memory
    if hasattr(properties, "shared_memory_per_block_optin"):
        assert limits.shared_per_block == properties.shared_memory_per_block_optin


def test_the_default_config_is_right_and_has_a_time() -> None:
    with MeasurementClient(spec(), default=default()) as client:
        assert client.verify(default()) is None
        [rounds] = client.time([default()], rounds=2).values()
    assert all(ms > 0 for each in rounds for ms in each)


def test_a_config_that_needs_too_much_shared_memory_is_out_of_resources() -> None:
    greedy = default(BLOCK_M=256, BLOCK_N=256, num_stages=8, num_warps=8)
    with MeasurementClient(spec(), default=default()) as client:
        assert client.verify(greedy).reason == "out_of_resources"
        assert client.verify(default()) is None, "the process goes on"


def test_what_is_compiled_without_the_gpu_is_what_the_gpu_would_launch() -> None:
    target = target_of(gpu())
    [launch] = open_case("attention", PROBLEM.fields(), str(gpu())).compile(default())
    with absent_device(target):
        [source] = launches_of(ATTENTION, ATTENTION.empty_inputs(PROBLEM), default())
    staged = StagedCompiler(target).compile(source)
    assert staged.key == launch.compiled.hash
    assert code_digest(staged.kernel) == code_digest(launch.compiled.kernel)


def test_a_pack_for_this_gpu_is_tuned_without_compiling(tmp_path: Path) -> None:
    def tritune(*arguments: str, cache: str) -> str:
        environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / cache)}
        run = subprocess.run(
            [sys.executable, "-m", "tritune.cli.main", *arguments, "--json"],
            capture_output=True, text=True, env=environment,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        return run.stdout

    pack = str(tmp_path / "attention.pack")
    problem = "queries=256 heads=4 group=2 head_size=64 dtype=float16 causal=true"
    tritune(
        "compile", "attention", "--problem", problem, "--target", str(target_of(gpu())), "--space",
        "12", "-o", pack, "--store", str(tmp_path / "a.sqlite"), cache="a",
    )  # fmt: skip
    said = tritune("tune", "--pack", pack, "--store", str(tmp_path / "b.sqlite"), cache="b")
    [row] = json.loads(said)["ops"]["attention"]
    assert row["compiles"] == 0 and row["tuned_ms"] > 0
