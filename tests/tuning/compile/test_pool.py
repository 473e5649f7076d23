from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from triton.backends.compiler import GPUTarget

from tests.tuning import faulty
from tests.tuning.faulty import SPEC, config
from tritune.errors import TrituneError
from tritune.space import Config
from tritune.targets.binary import read_compiled
from tritune.tuning.case import CaseSpec, Launch
from tritune.tuning.compile.binaries import digest_of, facts_of, signature_of
from tritune.tuning.compile.pool import CompilePool

SECONDS = 60.0
GOOD = config()


@pytest.fixture(scope="module")
def pool() -> Iterator[CompilePool]:
    with CompilePool(SPEC.to_json(), jobs=2) as pool:
        yield pool


@pytest.fixture(scope="module")
def launch() -> Launch:
    (launch,) = faulty.open_case().compile(config())
    return launch


def test_every_config_that_is_submitted_comes_back_once(pool):
    configs = [config(repeat=repeat) for repeat in (1, 2, 3)]
    pool.submit(configs[:1])
    pool.submit(configs[1:])
    results = {result.config: result for result in pool.as_completed()}
    assert set(results) == set(configs)
    assert all(result.failure is None for result in results.values())
    assert len({result.binary for result in results.values()}) == 3
    assert all(result.facts["code_bytes"] > 0 for result in results.values())
    assert pool.outstanding == 0


def test_building_launches_nothing(pool):
    pool.submit([config("loops for ever")])
    assert pool.result(SECONDS).failure is None


def test_configs_that_launch_the_same_thing_have_the_same_digest(pool):
    # Stages mean nothing to the CPU backend.
    pool.submit([Config.of(**config().as_kwargs(), num_stages=stages) for stages in (1, 2)])
    first, second = pool.as_completed()
    assert first.config != second.config
    assert first.binary == second.binary


def test_a_cancelled_pool_forgets_what_it_had_and_takes_more(pool):
    pool.submit([config("hangs the compiler"), config("hangs the compiler", 2), config()])
    pool.cancel()
    assert pool.outstanding == 0
    pool.submit([config(repeat=4)])
    assert pool.result(SECONDS).config == config(repeat=4)


def test_nothing_is_done_while_the_pool_is_paused(pool):
    pool.pause()
    pool.submit([config(repeat=5)])
    with pytest.raises(TimeoutError):
        pool.result(timeout_seconds=0.3)
    pool.resume()
    assert pool.result(SECONDS).config == config(repeat=5)


def test_a_pool_that_turns_to_another_case_keeps_its_processes(tmp_path):
    log = str(tmp_path / "log")
    with CompilePool(SPEC.to_json(), jobs=1) as pool:
        (worker,) = pool._idle
        pool.submit([config()])
        before = pool.result(SECONDS)
        pid = worker.pid
        pool.switch_to(CaseSpec(SPEC.factory, {"log": log}).to_json())
        pool.submit([config()])
        after = pool.result(SECONDS)
        assert worker.pid == pid
    assert after.binary == before.binary


def test_builds_that_have_not_begun_can_be_dropped(pool):
    pool.pause()
    pool.submit([config(repeat=repeat) for repeat in (6, 7, 8)])
    pool.drop_waiting()
    pool.resume()
    assert not list(pool.as_completed())


def test_a_case_that_cannot_be_opened_is_an_error_not_a_failure_of_configs():
    with CompilePool(CaseSpec("tests.tuning.faulty:no_such_case").to_json(), jobs=1) as pool:
        pool.submit([config()])
        with pytest.raises(TrituneError, match="no_such_case"):
            pool.result(SECONDS)


def test_a_closed_pool_says_so():
    pool = CompilePool(SPEC.to_json())
    pool.close()
    with pytest.raises(TrituneError, match="closed"):
        pool.submit([config()])


def test_a_pool_needs_a_worker():
    with pytest.raises(TrituneError, match="at least 1"):
        CompilePool(SPEC.to_json(), jobs=0)


@pytest.mark.parametrize("change", [{"grid": (7, 1, 1)}, {"scalars": (64,)}])
def test_another_grid_or_another_scalar_is_another_build(launch, change):
    other = Launch(**{**vars(launch), **change})
    assert digest_of(config(), [launch]) != digest_of(config(), [other])


def test_a_kernel_without_its_grid_is_never_taken_for_another_configs(launch):
    one, two = Config.of(SPLITS=1), Config.of(SPLITS=2)
    assert digest_of(one, [launch]) == digest_of(two, [launch])
    assert digest_of(one, [launch.compiled]) != digest_of(two, [launch.compiled])


def test_what_a_gpu_is_launched_with_counts_where_a_cpu_knows_nothing_of_it(launch):
    def launched(backend: str, warps: int) -> list[Launch]:
        target = GPUTarget(backend, 80, 32)
        metadata = launch.compiled.metadata._replace(target=target, num_warps=warps)
        compiled = SimpleNamespace(kernel=launch.compiled.kernel, metadata=metadata)
        return [Launch(compiled, launch.grid)]

    assert digest_of(GOOD, launched("cpu", 4)) == digest_of(GOOD, launched("cpu", 8))
    assert digest_of(GOOD, launched("cuda", 4)) != digest_of(GOOD, launched("cuda", 8))


def test_facts_count_the_code_of_all_kernels(launch):
    facts = facts_of([launch, launch])
    assert facts["kernels"] == 2
    assert facts["code_bytes"] == 2 * read_compiled(launch.compiled).code_bytes


def test_the_signature_tells_cases_apart_before_anything_is_built():
    assert signature_of(SPEC) == signature_of(CaseSpec(SPEC.factory, {}))
    assert signature_of(SPEC) != signature_of(CaseSpec(SPEC.factory, {"knows": False}))
