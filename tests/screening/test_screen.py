"""From candidates to what is worth measuring, for GPUs that are not here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tritune.errors import TrituneError
from tritune.screening.screen import Screened, ScreeningProgress, screen
from tritune.screening.task import ScreeningTask
from tritune.space import Config
from tritune.store import Store
from tritune.targets.target import Target
from tritune.workloads.catalog import WORKLOADS

ATTENTION = WORKLOADS["attention"]
PROBLEM = ATTENTION.parse("queries=64 heads=2 group=1 head_size=32 dtype=float16 causal=true")
A100 = Target.parse("cuda:80")
DEFAULT = ATTENTION.kernel.default(PROBLEM, "cuda", 80)


def changed(**values: int | bool) -> Config:
    return Config.of(**{**DEFAULT.as_kwargs(), **values})


#: A config that is fine, its twin (with one stage nothing is in flight, whatever is asked for), one
#: that needs more threads than a block has, and one that Triton refuses to compile.
TWINS = changed(num_stages=1, maxnreg=255), changed(num_stages=0, maxnreg=255)
IMPOSSIBLE = changed(num_warps=64, maxnreg=128)
REFUSED = changed(BLOCK_N=24)
CONFIGS = [DEFAULT, *TWINS, IMPOSSIBLE, REFUSED]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(tmp_path_factory.mktemp("screen") / "store.sqlite") as opened:
        yield opened


@pytest.fixture(scope="module")
def task() -> ScreeningTask:
    return ScreeningTask(ATTENTION, PROBLEM, A100)


@pytest.fixture(scope="module")
def screened(store: Store, task: ScreeningTask) -> Screened:
    return screen(task, store, only=CONFIGS, jobs=1)


def test_each_candidate_is_rejected_or_worth_measuring(screened: Screened) -> None:
    reasons = {config: screened.reason(config) for config in CONFIGS}
    assert reasons[DEFAULT] is None
    assert reasons[IMPOSSIBLE] == "out_of_resources"
    assert reasons[REFUSED] == "compile_error"
    assert {reasons[twin] for twin in TWINS} == {None, "duplicate"}


def test_the_counts_add_up(screened: Screened) -> None:
    document = screened.to_json()
    assert document["candidates"] == len(CONFIGS)
    assert document["left"] + sum(document["rejected"].values()) == len(CONFIGS)
    assert document["compiled"] == len(CONFIGS) - 1
    assert set(document["rejected"]) == {
        "out_of_resources", "spills", "compile_error", "timeout", "duplicate",
    }  # fmt: skip


def test_what_is_left_is_in_the_order_of_the_models_estimates(screened: Screened) -> None:
    estimates = [each.estimate_ms for each in screened.left]
    assert len(estimates) == 2
    assert estimates == sorted(estimates)


def test_nothing_is_compiled_twice(screened: Screened, store: Store, task: ScreeningTask) -> None:
    again = screen(task, store, only=CONFIGS, jobs=1)
    assert again.new_builds == 0
    assert again.rejections == screened.rejections
    assert again.left == screened.left


def test_no_candidates_are_not_all_candidates(store: Store, task: ScreeningTask) -> None:
    nothing = screen(task, store, only=[], jobs=1)
    assert nothing.candidates == nothing.new_builds == 0


def test_an_interrupted_screening_goes_on(tmp_path: Path, task: ScreeningTask) -> None:
    configs = [DEFAULT, changed(num_warps=2), changed(num_warps=1)]

    def interrupt(progress: ScreeningProgress) -> None:
        raise KeyboardInterrupt

    with Store(tmp_path / "store.sqlite") as store:
        with pytest.raises(KeyboardInterrupt):
            screen(task, store, only=configs, jobs=1, watch=interrupt)
        assert screen(task, store, only=configs, jobs=1).new_builds == len(configs) - 1


def test_a_disk_that_fails_is_not_the_configs_fault(tmp_path: Path, task: ScreeningTask) -> None:
    (tmp_path / "file").write_text("where a folder should be")
    with Store(tmp_path / "store.sqlite") as store:
        with pytest.raises(TrituneError, match="screening had to stop"):
            screen(task, store, only=[DEFAULT], jobs=1, keep=tmp_path / "file" / "parts")
        assert screen(task, store, only=[DEFAULT], jobs=1).new_builds == 1


def test_the_facts_are_kept_with_the_build(screened: Screened) -> None:
    facts = screened.builds[DEFAULT].facts
    assert facts["registers"] > 0 and facts["spills"] == 0
    assert facts["shared_bytes"] > 0 and facts["num_warps"] == DEFAULT["num_warps"]


def test_a_config_can_be_named_by_what_differs_from_the_default(task: ScreeningTask) -> None:
    assert task.config("BLOCK_N=32 PRE_LOAD_V=true") == changed(BLOCK_N=32, PRE_LOAD_V=True)
