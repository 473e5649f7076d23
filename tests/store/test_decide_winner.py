"""Who wins: the best median, unless the noise says otherwise; then the simpler config."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.store.made import LATER_RUN, RUN, config, rounds, trial
from tritune.space import Config
from tritune.store.decide_winner import Winner, decide
from tritune.store.records import Samples, Trial

STARTED = {RUN.id: RUN.started, LATER_RUN.id: LATER_RUN.started}


def won(*trials: Trial) -> Winner:
    winner = decide(trials, STARTED)
    assert winner is not None
    return winner


def interleaved(first: list[float], second: list[float]) -> tuple[Trial, Trial]:
    """The default with the first times and another config with the second, in one final."""
    return (
        trial(config(1), rounds(*first, stage="final"), default=True),
        trial(config(2), rounds(*second, stage="final")),
    )


def test_nothing_that_worked_means_no_winner() -> None:
    assert decide([]) is None
    assert decide([trial(config(1), failure="crash")]) is None
    assert decide([trial(config(1), rounds(0.1), failure="wrong_result")]) is None
    assert decide([trial(config(1))]) is None


def test_the_best_median_wins() -> None:
    winner = won(
        trial(config(1), rounds(3.0), default=True),
        trial(config(2), rounds(1.0)),
        trial(config(3), rounds(2.0)),
    )
    assert winner.config == config(2)
    assert (winner.ms, winner.default_ms, winner.samples, winner.tied) == (1.0, 3.0, 3, False)


def test_a_failed_config_does_not_win_with_the_samples_it_has() -> None:
    winner = won(trial(config(1), rounds(3.0)), trial(config(2), rounds(1.0), failure="crash"))
    assert winner.config == config(1)


def test_drift_that_hits_both_alike_hides_no_difference() -> None:
    """The machine grows slower from round to round; the other config is faster in each of them."""
    drift = [1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4]
    winner = won(*interleaved(drift, [ms * 0.97 for ms in drift]))
    assert winner.config == config(2)
    assert not winner.tied


def test_a_difference_within_the_noise_leaves_the_default() -> None:
    first = [1.00, 1.02, 0.99, 1.01, 1.00, 1.03, 0.98, 1.01]
    second = [0.99, 1.03, 0.98, 1.02, 0.99, 1.02, 0.97, 1.02]
    winner = won(*interleaved(first, second))
    assert winner.config == config(1)
    assert winner.tied


def test_one_bad_round_of_ten_does_not_hide_a_difference() -> None:
    second = [0.9] * 9 + [1.5]
    assert won(*interleaved([1.0] * 10, second)).config == config(2)


def test_with_few_rounds_the_samples_decide() -> None:
    clear = won(*interleaved([1.0, 1.0], [0.9, 0.9]))
    assert clear.config == config(2)
    noisy = (
        trial(config(1), [Samples(RUN.id, "final", 0, (1.0, 0.9, 1.1, 0.95))], default=True),
        trial(config(2), [Samples(RUN.id, "final", 0, (0.97, 0.92, 1.08, 0.93))]),
    )
    assert won(*noisy).config == config(1)


def test_what_one_process_does_to_the_default_is_no_property_of_it() -> None:
    """The second half was measured in another process, where the default is as fast."""
    slowed, fast = [2.0] * 20, [1.0, 1.2] * 10
    other = [1.1] * 40
    assert won(*interleaved(slowed + fast, other)).config == config(1)
    assert won(*interleaved(slowed + slowed, other)).config == config(2)


def test_a_config_that_has_not_beaten_the_default_does_not_win_by_being_simple() -> None:
    """It cannot be told from the best, which the default can: but nor from the default."""
    default = [1.00, 1.01, 1.02, 1.00, 1.01, 1.02, 1.00, 1.01]
    best, noisy = [0.95] * 8, [0.94, 1.10, 0.94, 1.10, 0.94, 1.10, 0.94, 1.10]
    winner = won(
        trial(config(1), rounds(*default, stage="final"), default=True),
        trial(config(2), rounds(*noisy, stage="final")),
        trial(config(3), rounds(*best, stage="final")),
    )
    assert winner.config == config(3)


def test_without_the_default_the_tie_goes_to_the_config_nearest_to_it() -> None:
    times = rounds(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, stage="final")
    slow_default = rounds(2.0, 2.0, 2.0, 2.0, 2.0, 2.0, stage="final")
    near, far = config(32, warps=8), config(64, warps=4)
    default = Config.of(BLOCK=32, FAST=False, num_warps=8)
    winner = won(trial(default, slow_default, default=True), trial(far, times), trial(near, times))
    assert winner.config == near
    assert winner.tied


def test_the_last_tie_breaker_is_the_key() -> None:
    trials = [trial(config(block), rounds(1.0)) for block in range(20)]
    expected = min((t.config for t in trials), key=lambda c: c.key)
    random.Random(0).shuffle(trials)
    assert won(*trials).config == expected


def test_a_final_counts_before_the_search() -> None:
    winner = won(
        trial(config(1), [*rounds(1.0), *rounds(2.0, stage="final")]),
        trial(config(2), [*rounds(3.0), *rounds(1.5, stage="final")]),
        trial(config(3), rounds(0.5)),
    )
    assert winner.config == config(2)
    assert winner.ms == 1.5


def test_the_latest_final_counts() -> None:
    first = trial(
        config(1),
        [*rounds(1.0, stage="final"), *rounds(2.0, stage="final", run=LATER_RUN)],
    )
    second = trial(
        config(2),
        [*rounds(2.0, stage="final"), *rounds(1.0, stage="final", run=LATER_RUN)],
    )
    assert won(first, second).config == config(2)


def test_without_the_runs_the_trials_say_how_old_a_run_is() -> None:
    old = trial(config(1), rounds(1.0, stage="final"))
    new = trial(
        config(2),
        rounds(2.0, stage="final", run=LATER_RUN),
        run=LATER_RUN,
        when="2026-02-01T00:00:00+00:00",
    )
    winner = decide([old, new])
    assert winner is not None and winner.config == config(2)


def test_a_duplicate_shares_the_samples_of_its_twin() -> None:
    twin = trial(config(2), rounds(1.0))
    default = trial(config(1), default=True, duplicate_of=config(2).key)
    winner = won(twin, default, trial(config(3), rounds(5.0)))
    assert winner.config == config(1)
    assert winner.default_ms == 1.0


def test_the_duplicate_of_a_failure_cannot_win() -> None:
    twin = trial(config(2), rounds(1.0), failure="wrong_result")
    duplicate = trial(config(1), duplicate_of=config(2).key)
    assert decide([twin, duplicate]) is None


def test_a_claim_without_times_wins_only_where_nothing_was_measured() -> None:
    claim = trial(config(1), [Samples(RUN.id, "final", 0, ())])
    winner = won(claim)
    assert (winner.config, winner.ms, winner.samples) == (config(1), None, 0)
    assert won(claim, trial(config(2), rounds(7.0))).config == config(2)


def test_a_shoot_out_that_was_disturbed_leaves_the_default() -> None:
    """Whatever the search has seen; its own few times are those of the default."""
    left = [Samples(RUN.id, "undecided", 0, (2.0,)), Samples(RUN.id, "undecided", 1, ())]
    default = trial(config(1), [*rounds(3.0), *left], default=True)
    winner = won(default, trial(config(2), rounds(1.0)))
    assert (winner.config, winner.tied) == (config(1), True)
    assert winner.ms == winner.default_ms == 2.9985


def test_a_default_without_any_times_stays_without_a_time() -> None:
    default = trial(config(1), [Samples(RUN.id, "undecided", 0, ())], default=True)
    winner = won(default, trial(config(2), rounds(1.0)))
    assert (winner.config, winner.ms, winner.samples) == (config(1), None, 0)


def test_what_was_decided_before_outlives_a_disturbed_shoot_out() -> None:
    first, second = interleaved([2.0] * 6, [1.0] * 6)
    left = Samples(LATER_RUN.id, "undecided", 0, ())
    first = trial(config(1), [*first.samples, left], default=True)
    assert won(first, second).config == config(2)


def test_a_default_that_something_stalled_was_not_compared() -> None:
    """Times as they were taken beside a process on every core, and stored as a gain of 451."""
    stalled = [0.032, 16.0, 15.9, 16.0, 0.033, 16.1, 16.0, 15.8, 16.0, 16.0, 15.9, 16.1]
    winner = won(*interleaved(stalled, [0.0354] * 12))
    assert (winner.config, winner.tied, winner.speedup) == (config(1), True, 1.0)


def test_a_config_that_something_stalled_does_not_win_for_that() -> None:
    first, second = interleaved([1.0] * 10, [0.9] * 10)
    third = trial(config(0), rounds(*[0.5, 0.5, *[16.0] * 8], stage="final"))
    assert won(first, second, third).config == config(2)


@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(0.5, 2.0), min_size=1, max_size=8),
            st.booleans(),
            st.sampled_from(["search", "final", "undecided"]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_the_trials_does_not_matter(
    times: list[tuple[list[float], bool, str]], shuffler: random.Random
) -> None:
    trials = [
        trial(
            config(number),
            rounds(*medians, stage=stage),
            default=number == 0,
            failure="crash" if failed and number else None,
        )
        for number, (medians, failed, stage) in enumerate(times)
    ]
    expected = decide(trials, STARTED)
    shuffler.shuffle(trials)
    assert decide(trials, STARTED) == expected
    if expected is not None and expected.default_ms is not None:
        assert expected.ms is not None
