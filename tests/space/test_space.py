"""Spaces: what exists where, what depends on what, and what is said when something is wrong."""

from __future__ import annotations

import pickle
import random

import pytest

from tritune.space import Config, Parameter, Space, SpaceError

SPACE = Space(
    (
        Parameter.powers_of_two("BLOCK", 16, 128),
        Parameter.powers_of_two("num_warps", 1, 8, families=("cuda", "hip")),
        Parameter("waves_per_eu", (0, 2), families=("hip",)),
        Parameter.boolean("PEEL"),
    ),
    ("BLOCK <= 2 * rows", "num_warps * 16 <= BLOCK", "waves_per_eu == 0 or arch == 'gfx942'"),
)


def test_a_parameter_exists_only_on_its_families() -> None:
    problem = {"rows": 64}
    assert list(SPACE.on("cpu", "host", problem).parameters) == ["BLOCK", "PEEL"]
    assert list(SPACE.on("cuda", 90, problem).parameters) == ["BLOCK", "num_warps", "PEEL"]
    assert "waves_per_eu" in SPACE.on("hip", "gfx942", problem).parameters


def test_a_constraint_about_an_absent_parameter_drops_out() -> None:
    assert SPACE.size("cpu", "host", {"rows": 64}) == 4 * 2
    assert SPACE.size("cuda", 90, {"rows": 64}) == (1 + 2 + 3 + 4) * 2


def test_the_target_decides_with_the_constraints() -> None:
    problem = {"rows": 64}
    assert SPACE.on("hip", "gfx942", problem).parameters["waves_per_eu"] == (0, 2)
    assert SPACE.on("hip", "gfx1100", problem).parameters["waves_per_eu"] == (0,)


def test_constructors_list_the_usual_domains() -> None:
    assert Parameter.powers_of_two("A", 3, 40).values == (4, 8, 16, 32)
    assert Parameter.powers_of_two("A", 1, 1).values == (1,)
    assert Parameter.integers("A", 1, 7, 3).values == (1, 4, 7)
    assert Parameter.choice("A", ["x", "y"]).values == ("x", "y")
    assert Parameter.boolean("A").values == (False, True)


def test_a_domain_follows_the_problem_the_target_and_other_parameters() -> None:
    space = Space(
        (
            Parameter.powers_of_two("STAGES", 1, "8 // (BLOCK // 32)"),
            Parameter.powers_of_two("BLOCK", 32, "columns"),
            Parameter("LOADS", "(1, 2) if family == 'cuda' and arch >= 90 else (1,)"),
        )
    )
    points = space.on("cuda", 90, {"columns": 128})
    assert points.parameters == {"STAGES": (1, 2, 4, 8), "BLOCK": (32, 64, 128), "LOADS": (1, 2)}
    assert points.size() == (4 + 3 + 2) * 2
    assert Config.of(STAGES=8, BLOCK=32, LOADS=1) in points
    assert Config.of(STAGES=8, BLOCK=64, LOADS=1) not in points
    with pytest.raises(SpaceError, match=r"STAGES=8 is none of \(1, 2, 4\)"):
        space.check(Config.of(STAGES=8, BLOCK=64, LOADS=1), "cuda", 90, {"columns": 128})
    assert space.size("cpu", "host", {"columns": 64}) == 4 + 3


def test_a_domain_need_not_make_sense_where_a_constraint_forbids_it() -> None:
    space = Space(
        (
            Parameter("A", (1, 2)),
            Parameter("B", (1, 2)),
            Parameter("C", "integers(0, 2 // (A - B))"),
        ),
        ("A > B",),
    )
    points = space.on("cpu")
    assert points.parameters["C"] == (0, 1, 2)
    assert {config["C"] for config in points.configs()} == {0, 1, 2}
    assert Config.of(A=1, B=1, C=0) not in points
    assert len(points.neighbours(Config.of(A=2, B=1, C=0))) == 2


def test_domains_that_need_each_other_are_refused() -> None:
    space = Space((Parameter("A", "(B, 1)"), Parameter("B", "(A, 2)")))
    with pytest.raises(SpaceError, match="circle: A -> B -> A"):
        space.on("cpu")


def test_a_domain_that_is_no_tuple_is_refused() -> None:
    with pytest.raises(SpaceError, match="gives 32, not a tuple"):
        Space((Parameter("A", "rows // 2"),)).on("cpu", 0, {"rows": 64})


def test_a_domain_needs_its_parameters_on_the_same_family() -> None:
    space = Space((Parameter("A", (1, 2), ("cuda",)), Parameter("B", "integers(1, A)")))
    assert space.size("cuda") == 3
    with pytest.raises(SpaceError, match=r"domain of B.*A: known are"):
        space.on("cpu")


def test_configs_list_their_values_in_the_order_of_declaration() -> None:
    config = next(SPACE.configs("cuda", 90, {"rows": 64}))
    assert [name for name, _ in config.values] == ["BLOCK", "num_warps", "PEEL"]


def test_a_misspelt_name_in_a_config_gets_the_nearest() -> None:
    with pytest.raises(SpaceError) as caught:
        SPACE.check(Config.of(BLOK=16, PEEL=True), "cpu", "host", {"rows": 64})
    message = str(caught.value)
    assert "BLOK does not exist on cpu, did you mean BLOCK?" in message
    assert "BLOCK is missing" in message


def test_every_reason_against_a_config_is_given() -> None:
    with pytest.raises(SpaceError) as caught:
        SPACE.check(
            Config.of(BLOCK=128, num_warps=1, waves_per_eu=2, PEEL=True),
            "hip",
            "gfx1100",
            {"rows": 16},
        )
    assert "'BLOCK <= 2 * rows' does not hold" in str(caught.value)
    assert "waves_per_eu == 0 or arch" in str(caught.value)
    with pytest.raises(SpaceError, match=r"BLOCK=17 is none of.*; PEEL=1 is none of"):
        SPACE.check(Config.of(BLOCK=17, PEEL=1), "cpu", "host", {"rows": 16})


def test_the_constraint_that_leaves_nothing_is_named() -> None:
    with pytest.raises(SpaceError) as caught:
        SPACE.on("cpu", "host", {"rows": 4})
    message = str(caught.value)
    assert "no config on cpu for rows=4: constraint 'BLOCK <= 2 * rows' leaves nothing" in message
    assert "num_warps" not in message


def test_constraints_that_exclude_each_other_are_named_and_no_others() -> None:
    names = [Parameter.integers(name, 1, 9) for name in "ABCD"]
    space = Space(tuple(names), ("A < B", "C <= D", "B < C", "D != 5", "C <= A"))
    with pytest.raises(SpaceError) as caught:
        space.on("cpu")
    message = str(caught.value)
    assert all(text in message for text in ("'A < B'", "'B < C'", "'C <= A'"))
    assert "C <= D" not in message
    assert "D != 5" not in message


def test_a_condition_on_the_problem_alone_can_leave_nothing() -> None:
    space = Space((Parameter("A", (1, 2)),), ("rows > 1",))
    assert space.size("cpu", 0, {"rows": 2}) == 2
    with pytest.raises(SpaceError, match="for rows=1: constraint 'rows > 1' leaves nothing"):
        space.on("cpu", 0, {"rows": 1})


def test_a_domain_without_values_is_named() -> None:
    space = Space((Parameter.powers_of_two("BLOCK", 16, "columns"),))
    with pytest.raises(SpaceError, match="for columns=8: BLOCK has no values"):
        space.on("cpu", 0, {"columns": 8})


def test_an_unknown_family_gets_the_nearest() -> None:
    with pytest.raises(SpaceError, match="did you mean cuda"):
        SPACE.on("cude", 90, {"rows": 64})


def test_a_problem_cannot_have_a_field_named_like_a_parameter() -> None:
    with pytest.raises(SpaceError, match="BLOCK"):
        SPACE.on("cpu", "host", {"rows": 64, "BLOCK": 16})


def test_a_restricted_space_has_fewer_values() -> None:
    less = SPACE.restricted(BLOCK=(16, 64), PEEL=True)
    points = less.on("cpu", "host", {"rows": 64})
    assert points.parameters == {"BLOCK": (16, 64), "PEEL": (True,)}
    assert set(points.configs()) == {Config.of(BLOCK=b, PEEL=True) for b in (16, 64)}
    assert less.restricted(num_warps=1).size("cuda", 90, {"rows": 64}) == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"BLOK": 16}, "did you mean BLOCK"),
        ({"BLOCK": 17}, "BLOCK=17 is none of"),
        ({"PEEL": 1}, "PEEL=1 is none of"),
        ({"BLOCK": ()}, "at least one"),
    ],
)
def test_a_restriction_that_makes_no_sense_is_refused(values: dict, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        SPACE.restricted(**values)


def test_a_space_survives_pickling() -> None:
    list(SPACE.configs("cpu", "host", {"rows": 64}))
    again = pickle.loads(pickle.dumps(SPACE))
    assert again == SPACE
    assert hash(again) == hash(SPACE)
    assert again.size("cpu", "host", {"rows": 64}) == 8


def test_the_same_seed_gives_the_same_sample() -> None:
    points = SPACE.on("cuda", 90, {"rows": 64})
    assert points.sample(5, random.Random(3)) == points.sample(5, random.Random(3))
    assert points.sample(5, random.Random(3)) != points.sample(5, random.Random(4))
