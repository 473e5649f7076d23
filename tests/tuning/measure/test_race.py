from __future__ import annotations

from tritune.space import Config
from tritune.tuning.measure.race import Race, paired_rounds

FAST, SLOW, SLOWEST = (Config.of(BLOCK=size) for size in (64, 32, 16))
VENDOR = "vendor:library"


def run(race: Race, times_ms: dict, rounds: int, spread: float = 0.01) -> list[list]:
    """Who ran in each round, where everyone takes a known time."""
    ran = []
    for number in range(rounds):
        order = race.order(number)
        ran.append(order)
        for entry in order:
            base = times_ms[entry]
            race.add(entry, [base, base * (1 + spread), base * (1 + 2 * spread)])
        race.end_round()
    return ran


def test_a_config_that_is_certainly_slower_leaves_once_the_samples_suffice():
    race = Race([FAST, SLOW])
    ran = run(race, {FAST: 1.0, SLOW: 1.2}, 4)
    assert [len(order) for order in ran] == [2, 2, 1, 1]
    assert race.racing == [FAST]
    assert len(race.rounds[SLOW]) == 2


def test_what_overlaps_the_best_stays():
    race = Race([FAST, SLOW])
    run(race, {FAST: 1.0, SLOW: 1.005}, 5)
    assert set(race.racing) == {FAST, SLOW}


def test_the_hopeless_leave_after_one_round():
    race = Race([FAST, SLOWEST])
    assert race.ceiling_ms(SLOWEST) is None
    run(race, {FAST: 1.0, SLOWEST: 5.0}, 1)
    assert race.racing == [FAST]


def test_nobody_is_hopeless_where_the_best_has_been_as_slow_itself():
    race = Race([FAST, SLOWEST])
    race.add(FAST, [1.0, 1.0, 6.0])
    race.add(SLOWEST, [5.0])
    race.end_round()
    assert set(race.racing) == {FAST, SLOWEST}


def test_a_ceiling_is_known_once_someone_has_a_time():
    race = Race([FAST, SLOW], keep=[SLOW])
    race.add(FAST, [1.0, 1.0])
    assert race.ceiling_ms(SLOWEST) == 3.0
    assert race.ceiling_ms(SLOW) is None
    assert race.ceiling_ms(FAST) is None


def test_who_is_asked_to_stay_stays():
    race = Race([FAST, SLOWEST], keep=[SLOWEST])
    run(race, {FAST: 1.0, SLOWEST: 9.0}, 5)
    assert set(race.racing) == {FAST, SLOWEST}


def test_the_vendor_drives_no_config_out():
    race = Race([FAST, SLOW, VENDOR], leads=lambda entry: entry != VENDOR)
    run(race, {FAST: 10.0, SLOW: 10.05, VENDOR: 1.0}, 5)
    assert set(race.racing) == {FAST, SLOW, VENDOR}


def test_the_order_changes_between_rounds_and_not_between_runs():
    entries = [Config.of(BLOCK=size) for size in range(8)]
    orders = [Race(entries).order(number) for number in range(3)]
    assert orders[0] != orders[1] != orders[2]
    assert orders == [Race(entries).order(number) for number in range(3)]
    assert all(set(order) == set(entries) for order in orders)


def test_a_failure_takes_its_samples_along():
    race = Race([FAST, SLOW])
    run(race, {FAST: 1.0, SLOW: 1.0}, 1)
    race.fail(SLOW)
    assert race.racing == [FAST]
    assert SLOW not in race.rounds


def test_a_round_that_others_disturbed_decides_nothing_about_an_entry():
    race = Race([FAST, SLOW], keep=[FAST, SLOW])
    for fast, slow in [((1.0,), ()), ((), (1.2,)), ((1.0,), (1.2,))]:
        race.add(FAST, fast)
        race.add(SLOW, slow)
        race.end_round()
    assert race.paired_rounds() == 1
    assert race.ceiling_ms(SLOW) is None
    assert set(race.racing) == {FAST, SLOW}


def test_who_was_never_measured_is_neither_the_best_nor_driven_out():
    race = Race([FAST, SLOW])
    for _ in range(6):
        race.add(FAST, ())
        race.add(SLOW, (1.0, 1.0, 2.0))
        race.end_round()
    assert set(race.racing) == {FAST, SLOW}
    assert race.ceiling_ms(FAST) == 3.0
    assert not race.unmeasured()


def test_entries_meet_in_the_rounds_in_which_both_were_measured():
    one, other, third = [(1.0,), (), (1.0,)], [(2.0,), (2.0,), (2.0,)], [(), (3.0,), (3.0,)]
    assert paired_rounds([one]) == 2
    assert paired_rounds([one, other]) == 2
    assert paired_rounds([one, other, third]) == 1


def test_a_held_round_times_everyone_once_and_drops_who_fails():
    race = Race([FAST, SLOW, SLOWEST])
    race.hold(lambda entry: None if entry == SLOW else (1.0,))
    assert race.held == 1
    assert race.rounds == {FAST: [(1.0,)], SLOWEST: [(1.0,)]}


def test_who_leaves_keeps_its_samples():
    race = Race([FAST, SLOW])
    race.hold(lambda entry: (1.0,))
    race.leave(SLOW)
    race.hold(lambda entry: (1.0,))
    assert race.rounds == {FAST: [(1.0,), (1.0,)], SLOW: [(1.0,)]}
