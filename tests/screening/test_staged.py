"""Sharing stages between configs changes no binary: each is what `triton.compile` gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import triton

from tritune.screening.capture import absent_device, launches_of, triton_target
from tritune.screening.staged import StagedCompiler
from tritune.space import Config
from tritune.targets.binary.same_code import code_digest
from tritune.targets.target import Target
from tritune.workloads.catalog import WORKLOADS

ATTENTION = WORKLOADS["attention"]
PROBLEM = ATTENTION.parse("queries=64 heads=2 group=1 head_size=32 dtype=float16 causal=true")

#: For each target, options that configs with one source differ in, in the order of compilation.
VARIANTS = {
    "cuda:80": [
        {"num_warps": 4, "maxnreg": 255},
        {"num_warps": 4, "maxnreg": 128},
        {"num_warps": 2, "maxnreg": 255},
    ],
    "cuda:90": [{"num_stages": 2, "maxnreg": 168}, {"num_stages": 2, "maxnreg": 128}],
    "hip:gfx942": [
        {"num_warps": 2, "waves_per_eu": 1},
        {"num_warps": 2, "waves_per_eu": 3},
        {"num_warps": 4, "waves_per_eu": 3},
        {"num_warps": 2, "waves_per_eu": 0},
    ],
    "hip:gfx1100": [{"waves_per_eu": 1}, {"waves_per_eu": 2}],
    "cpu": [{"unroll": 0}, {"unroll": 2}],
}


def target_named(name: str) -> Target:
    if name == "cpu":
        from tritune.cpu import features

        return Target("cpu", features.host().name)
    return Target.parse(name)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_binary_is_the_one_that_triton_compiles(name: str, fresh_triton_cache: str) -> None:
    target = target_named(name)
    inputs = ATTENTION.empty_inputs(PROBLEM)
    default = ATTENTION.kernel.default(PROBLEM, target.family, target.arch).as_kwargs()
    compiler = StagedCompiler(target)
    for options in VARIANTS[name]:
        with absent_device(target):
            config = Config.of(**{**default, **options})
            [source] = launches_of(ATTENTION, inputs, config)
        staged = compiler.compile(source)
        whole = triton.compile(
            source.ast, target=triton_target(target), options=vars(source.options)
        )
        assert code_digest(staged.kernel) == code_digest(whole.kernel)
        assert staged.key == whole.hash
        [path] = (Path(path) for path in whole.metadata_group.values() if path.endswith(".json"))
        assert path.name == f"{staged.name}.json"
        assert json.loads(staged.metadata_text()) == json.loads(path.read_text())
    run = compiler.stages_run
    assert run["ast"] == 1
    if target.family != "cpu":
        early = {
            json.dumps({**each, "maxnreg": 0, "waves_per_eu": each.get("waves_per_eu") == 0})
            for each in VARIANTS[name]
        }
        assert run["ttgir"] == run["llir"] == len(early)
        assert run[staged.extension] == len(VARIANTS[name])


def test_the_assembler_runs_once_for_the_same_code(fresh_triton_cache: str) -> None:
    """Whether values are asked for early or late is decided again by Triton's pipelining."""
    target = Target.parse("cuda:80")
    compiler = StagedCompiler(target)
    problem = ATTENTION.parse("queries=64 heads=2 group=1 head_size=64 dtype=float16 causal=true")
    default = ATTENTION.kernel.default(problem, "cuda", 80).as_kwargs()
    tile = {"BLOCK_M": 32, "BLOCK_N": 16, "num_warps": 4, "num_stages": 2}
    for early in (False, True):
        config = Config.of(**{**default, **tile, "PRE_LOAD_V": early})
        with absent_device(target):
            [source] = launches_of(ATTENTION, ATTENTION.empty_inputs(problem), config)
        staged = compiler.compile(source)
        whole = triton.compile(
            source.ast, target=triton_target(target), options=vars(source.options)
        )
        assert code_digest(staged.kernel) == code_digest(whole.kernel)
        assert staged.key == whole.hash
        [path] = (Path(path) for path in whole.metadata_group.values() if path.endswith(".json"))
        assert json.loads(staged.metadata_text()) == json.loads(path.read_text())
    assert compiler.stages_run["ptx"] == 2
    assert compiler.stages_run["cubin"] == 1


@pytest.mark.parametrize("name", ["cuda:80", "hip:gfx942"])
def test_what_failed_before_registers_mattered_fails_at_once_with_others(name: str) -> None:
    class Enough(Exception):
        pass

    def inspect(stage: str, product: object, metadata: object) -> None:
        if stage == "llir":
            raise Enough

    target = Target.parse(name)
    compiler = StagedCompiler(target)
    option = "maxnreg" if target.family == "cuda" else "waves_per_eu"
    default = ATTENTION.kernel.default(PROBLEM, target.family, target.arch).as_kwargs()
    for value in (128, 255) if option == "maxnreg" else (1, 2):
        with absent_device(target):
            config = Config.of(**{**default, option: value})
            [source] = launches_of(ATTENTION, ATTENTION.empty_inputs(PROBLEM), config)
        with pytest.raises(Enough):
            compiler.compile(source, inspect)
    assert compiler.stages_run["llir"] == 1


def test_what_was_compiled_is_not_compiled_again() -> None:
    target = Target.parse("cuda:80")
    compiler = StagedCompiler(target)
    with absent_device(target):
        default = ATTENTION.kernel.default(PROBLEM, "cuda", 80)
        [source] = launches_of(ATTENTION, ATTENTION.empty_inputs(PROBLEM), default)
    assert compiler.compile(source) is compiler.compile(source)
    assert compiler.stages_run["cubin"] == 1


def test_who_inspects_can_end_a_compilation() -> None:
    class Enough(Exception):
        pass

    def inspect(stage: str, product: object, metadata: object) -> None:
        if stage == "llir":
            raise Enough

    target = Target.parse("cuda:80")
    compiler = StagedCompiler(target)
    with absent_device(target):
        default = ATTENTION.kernel.default(PROBLEM, "cuda", 80)
        [source] = launches_of(ATTENTION, ATTENTION.empty_inputs(PROBLEM), default)
    with pytest.raises(Enough):
        compiler.compile(source, inspect)
    assert "cubin" not in compiler.stages_run
    assert compiler.compile(source).extension == "cubin"
