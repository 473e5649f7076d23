"""Configs that do the worst they can: each is recorded with its reason and the good one wins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from tests.tuning.faulty import SPEC, config
from tritune.space import Config
from tritune.tuning.compile.builder import BuildResult
from tritune.tuning.compile.pool import CompilePool
from tritune.tuning.measure.client import MeasurementClient
from tritune.tuning.measure.statistics import Round, median
from tritune.tuning.workers.failures import Failure

#: Short, but no good config may reach it on a machine that has other things to do.
SECONDS = 4.0
MEMORY_BYTES = 512 << 20

GOOD, SLOW = config(), config(repeat=200_000)

COMPILER_FAULTS = {
    "aborts the compiler": ("crash", "called by compile (faulty.py"),
    "does not compile": ("compile_error", "this config is not meant to compile"),
    "compiles too large": ("out_of_resources", "shared memory"),
    "compiles without end": ("out_of_resources", "memory"),
    "hangs the compiler": ("timeout", "not done after 4 s"),
}
FAULTS = {
    "segfaults": ("crash", "segmentation fault (SIGSEGV)"),
    "raises": ("crash", "ValueError: not with this config"),
    "loops for ever": ("timeout", "not done after 4 s"),
    "allocates without end": ("out_of_resources", "memory"),
    "wrong": ("wrong_result", "1000 of 1000 elements are off"),
    "writes outside": ("wrong_result", "wrote outside its output: 32 bytes behind"),
    "writes too little": ("wrong_result", "8 of 1000 elements are off"),
    "changes its input": ("wrong_result", "changed an input"),
    "differs each time": ("wrong_result", "two runs differ"),
}
#: Passes when it is verified, and dies in the race.
LATE = "segfaults when timed"


class Run(NamedTuple):
    builds: Mapping[Config, BuildResult]
    failures: Mapping[Config | str, Failure]
    times: Mapping[Config | str, list[Round]]


@pytest.fixture(scope="module")
def run() -> Run:
    """Everything built, verified and raced, the good config between the bad ones."""
    first, *others = (config(fault) for fault in COMPILER_FAULTS)
    candidates = [first, *map(config, FAULTS), SLOW, GOOD, config(LATE), *others]
    with CompilePool(SPEC.to_json(), 2, SECONDS, MEMORY_BYTES) as pool:
        pool.submit(candidates)
        builds = {result.config: result for result in pool.as_completed()}
    with MeasurementClient(SPEC, SECONDS, MEMORY_BYTES) as client:
        built = [each for each in candidates if builds[each].failure is None]
        racing = [each for each in built if client.verify(each) is None]
        times = client.time(racing, rounds=3, keep=racing)
        return Run(builds, client.failures, times)


@pytest.mark.parametrize("fault", COMPILER_FAULTS)
def test_a_config_that_is_the_compilers_end_is_recorded_with_its_reason(run, fault):
    result = run.builds[config(fault)]
    reason, message = COMPILER_FAULTS[fault]
    assert result.failure.reason == reason
    assert message in result.failure.message
    assert result.binary == ""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_config_that_misbehaves_is_recorded_with_its_reason(run, fault):
    assert run.builds[config(fault)].failure is None
    reason, message = FAULTS[fault]
    failure = run.failures[config(fault)]
    assert failure.reason == reason
    assert message in failure.message


def test_a_config_that_dies_in_the_race_loses_its_own_times_only(run):
    assert run.failures[config(LATE)].reason == "crash"
    assert set(run.times) == {GOOD, SLOW}
    assert all([len(samples) for samples in rounds] == [3, 3, 3] for rounds in run.times.values())


def test_the_good_config_wins(run):
    assert not {GOOD, SLOW} & run.failures.keys()
    assert min(run.times, key=lambda entry: median(run.times[entry])) == GOOD
