"""Merging is a union: which is merged into which does not matter, and twice is as once."""

from __future__ import annotations

import dataclasses
import tempfile
from contextlib import ExitStack
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.made import (
    DEVICE,
    LATER_RUN,
    OTHER_DEVICE,
    RUN,
    TASK,
    build,
    config,
    prepared,
    rounds,
    trial,
)
from tritune.store import Store
from tritune.store.contents import Contents, contents
from tritune.store.export import to_text
from tritune.store.merge import absorb, combine, merge
from tritune.store.records import FAILURES, Samples, Trial
from tritune.store.verify import verify

RUNS = {run.id: run for run in (RUN, LATER_RUN)}


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    run = draw(st.sampled_from([RUN, LATER_RUN]))
    samples = draw(
        st.dictionaries(
            st.tuples(
                st.sampled_from(list(RUNS)), st.sampled_from(["search", "final"]), st.integers(0, 2)
            ),
            st.lists(st.floats(0.5, 2.0), min_size=1, max_size=3).map(tuple),
            max_size=3,
        )
    )
    return Trial(
        task=dataclasses.replace(
            TASK, device=draw(st.sampled_from([DEVICE, OTHER_DEVICE])).fingerprint
        ),
        config=config(draw(st.integers(1, 2))),
        run=run.id,
        when=draw(st.sampled_from(["2026-01-01", "2026-01-02"])),
        default=draw(st.booleans()),
        failure=draw(st.none() | st.sampled_from(FAILURES)),
        message=draw(st.sampled_from(["", "it broke"])),
        duplicate_of=None,
        samples=tuple(Samples(*key, times) for key, times in sorted(samples.items())),
    )


def filled(path: Path, some: list[Trial], met: int = 0) -> Store:
    store = prepared(Store(path))
    devices = {d.fingerprint: d for d in (DEVICE, OTHER_DEVICE)}
    absorb(store, Contents(devices, tuple(RUNS.values()), trials=tuple(some)), "a test")
    if met:
        store.record_problem("matmul", "{}", "gpu", met)
    return store


def text(store: Store) -> str:
    return to_text(contents(store))


@given(trials(), trials())
def test_combining_is_commutative_and_idempotent(one: Trial, other: Trial) -> None:
    other = dataclasses.replace(other, task=one.task, config=one.config)
    both = combine(one, other)
    assert combine(other, one) == both
    assert combine(both, one) == both
    assert combine(both, other) == both
    keys = {(s.run, s.stage, s.round) for s in (*one.samples, *other.samples)}
    assert [(s.run, s.stage, s.round) for s in both.samples] == sorted(keys)


@given(st.lists(trials(), max_size=4), st.lists(trials(), max_size=4), st.integers(0, 3))
@settings(max_examples=10)
def test_stores_merge_to_the_same_in_either_order(
    some: list[Trial], others: list[Trial], met: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        a, other_a = (stack.enter_context(filled(Path(folder, f"a{i}"), some, met)) for i in "12")
        b, other_b = (stack.enter_context(filled(Path(folder, f"b{i}"), others, 2)) for i in "12")
        merge(a, b)
        merge(other_b, other_a)
        once = text(a)
        assert text(other_b) == once
        added = merge(a, b)
        assert (added.trials, added.samples) == (0, 0)
        assert text(a) == once
        assert verify(a) == []


def test_all_samples_of_both_are_kept(store: Store, tmp_path: Path) -> None:
    prepared(store)
    store.add_trial(trial(config(64), rounds(1.0, 1.1)))
    with Store(tmp_path / "other.sqlite") as other:
        prepared(other)
        other.add_trial(trial(config(64), rounds(1.0, 1.1)))
        other.add_samples(TASK, config(64), *rounds(3.0, run=LATER_RUN, stage="final"))
        other.add_trial(trial(config(128), rounds(2.0)))
        other.add_build(build(config(64)))
        other.record_problem("matmul", "{}", "gpu", 4)
        added = merge(store, other)
    assert (added.trials, added.samples, added.builds) == (2, 2, 1)
    found = {t.config: t.samples for t in store.trials(TASK)}
    assert found[config(64)] == rounds(1.0, 1.1) + rounds(3.0, run=LATER_RUN, stage="final")
    assert found[config(128)] == rounds(2.0)
    assert store.met_problems() == [("matmul", "{}", "gpu", 4)]
    assert len(store.builds("matmul", "code-1", "cpu:x86-64-v3")) == 1
    assert verify(store) == []


def test_the_side_that_measured_more_says_how_it_went() -> None:
    worked = trial(config(64), rounds(1.0), run=RUN)
    failed = trial(config(64), run=LATER_RUN, failure="timeout", when="2026-02-01")
    assert combine(worked, failed).failure is None
    assert combine(failed, worked).failure is None


def test_of_two_failures_the_later_counts() -> None:
    first = trial(config(64), failure="crash", when="2026-01-01")
    second = trial(config(64), failure="timeout", when="2026-01-02")
    assert combine(first, second).failure == combine(second, first).failure == "timeout"


def test_a_build_that_worked_counts_before_one_that_did_not(tmp_path: Path) -> None:
    with Store(tmp_path / "a") as a, Store(tmp_path / "b") as b:
        a.add_build(build(config(64), failure="timeout"))
        b.add_build(build(config(64)))
        merge(a, b)
        merge(b, a)
        for store in (a, b):
            assert store.builds("matmul", "code-1", "cpu:x86-64-v3") == [build(config(64))]
