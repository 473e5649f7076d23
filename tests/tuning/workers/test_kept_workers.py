"""Worker processes outlive a case, and what breaks them for one case is mended for the next."""

from __future__ import annotations

import pytest

from tests.tuning.faulty import SPEC, config
from tritune.tuning.case import CaseSpec
from tritune.tuning.effort import EFFORTS
from tritune.tuning.job import Settings
from tritune.tuning.workers.kept_workers import Workers
from tritune.tuning.workers.worker import WorkerError

SETTINGS = Settings(EFFORTS["quick"], jobs=1)
SECONDS = 60.0


def test_the_next_case_has_the_same_pool_and_bench() -> None:
    with Workers(SETTINGS) as workers:
        first = workers.switch_to(SPEC, config())
        assert workers.switch_to(CaseSpec(SPEC.factory, {"knows": False}), config()) == first


def test_a_pool_that_broke_is_replaced_for_the_next_case(monkeypatch: pytest.MonkeyPatch) -> None:
    with Workers(SETTINGS) as workers:
        pool, _ = workers.switch_to(SPEC, config())
        with monkeypatch.context() as patched:
            patched.setattr(pool, "_attend", lambda: 1 / 0)
            pool.submit([config()])
            with pytest.raises(WorkerError, match="builds cannot go on"):
                pool.result(SECONDS)
        mended, _ = workers.switch_to(SPEC, config())
        mended.submit([config()])
        assert mended.result(SECONDS).failure is None
