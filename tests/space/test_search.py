"""The search against brute force: the same configs, counted, numbered and drawn fairly."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritune.space import BoundSpace, Config, Parameter, Space, SpaceError, Value

NAMES = "abcde"
PROBLEM = {"rows": 3, "dtype": "float16", "flag": True}

_VALUES = st.one_of(
    st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True),
    st.sampled_from([[False, True], ["x", "y"], [0.5, 2.0], [1, 2, 4, 8]]),
)
_TERMS = st.recursive(
    st.sampled_from([*NAMES, "rows", "flag", "1", "2", "5"]),
    lambda inner: st.one_of(
        st.builds(
            "({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "//", "%", "^"]), inner
        ),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner),
    ),
    max_leaves=5,
)
_CONDITIONS = st.recursive(
    st.one_of(
        st.builds(
            "{} {} {}".format, _TERMS, st.sampled_from(["<", "<=", "==", "!=", ">="]), _TERMS
        ),
        st.builds("{} < {} <= {}".format, _TERMS, _TERMS, _TERMS),
        st.builds("{} in ({}, {}, 2)".format, _TERMS, _TERMS, _TERMS),
        st.just("dtype == 'float16'"),
        _TERMS,
    ),
    lambda inner: st.one_of(
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("not ({})".format, inner),
        st.builds("(({}) if ({}) else ({}))".format, inner, inner, inner),
    ),
    max_leaves=4,
)


def _by_brute_force(
    domains: dict[str, list[Value]], constraints: list[str]
) -> tuple[set[Config], bool]:
    """Python's own word on every point of the product; and whether it always has one."""
    known: dict[str, Any] = {**PROBLEM, "family": "cpu", "arch": "host", "min": min, "max": max}
    codes = [compile(text, "<constraint>", "eval") for text in constraints]
    found = set()
    computable = True
    for values in itertools.product(*domains.values()):
        point = dict(zip(domains, values, strict=True))
        scope = {**known, **point}
        try:
            held = [eval(code, scope) for code in codes]
            if all(held):
                found.add(Config.from_json(point))
        except (ArithmeticError, TypeError):
            computable = False
    return found, computable


@settings(max_examples=150)
@given(
    st.fixed_dictionaries(dict.fromkeys(NAMES, _VALUES)),
    st.lists(_CONDITIONS, max_size=4),
    st.randoms(use_true_random=False),
)
def test_the_solutions_are_those_that_brute_force_finds(
    domains: dict[str, list[Value]], constraints: list[str], rng: random.Random
) -> None:
    space = Space(
        tuple(Parameter(name, tuple(values)) for name, values in domains.items()),
        tuple(constraints),
    )
    expected, computable = _by_brute_force(domains, constraints)
    if not computable:
        # An error that says so, unless what cannot be computed need not be; nothing is lost.
        with contextlib.suppress(SpaceError):
            assert expected <= set(space.configs("cpu", "host", PROBLEM))
        return
    if not expected:
        with pytest.raises(SpaceError, match="no config"):
            space.on("cpu", "host", PROBLEM)
        return
    points = space.on("cpu", "host", PROBLEM)
    listed = list(points.configs())
    assert len(listed) == len(expected)
    assert set(listed) == expected
    assert points.size() == len(expected)
    sample = points.sample(len(expected) // 2 + 1, rng)
    assert len(set(sample)) == len(sample)
    assert set(sample) <= expected
    assert set(points.sample(10**6, rng)) == expected


@pytest.mark.parametrize(
    "constraints",
    [
        # Whoever decides `a` first must not take what is open of `c` for what is open of `d`.
        ["(a == 1 or c > 2) and (a == 2 or d > 3)"],
        ["(c > 1 if a == 1 else d > 1) and b < c + d"],
        ["(a if c > 2 else e) in (5, (b and a), 2)", "a != e or d > 2"],
        ["not (a < c or (b < d and a < e))", "max(a, b, c) - min(c, d) <= e"],
        ["a * c * e <= 12", "a + c + e >= 6", "(a ^ b) % (c + 1) == d % 2"],
    ],
)
def test_what_looks_alike_but_is_not_is_kept_apart(constraints: list[str]) -> None:
    domains: dict[str, list[Value]] = {name: [1, 2, 3, 4] for name in NAMES}
    expected, _ = _by_brute_force(domains, constraints)
    points = Space(
        tuple(Parameter(name, tuple(values)) for name, values in domains.items()),
        tuple(constraints),
    ).on("cpu", "host", PROBLEM)
    assert points.size() == len(expected) > 0
    assert set(points.configs()) == expected


@settings(max_examples=60)
@given(
    st.fixed_dictionaries({name: st.integers(1, 4) for name in "ab"}),
    st.lists(st.sampled_from(["a <= c", "b * c <= 6", "(a + d) % 2", "c != d", "d < 7"])),
)
def test_computed_domains_are_solved_too(tops: dict[str, int], constraints: list[str]) -> None:
    space = Space(
        (
            Parameter.integers("d", "c", "c + a"),
            Parameter.integers("a", 1, tops["a"]),
            Parameter.integers("b", 1, tops["b"]),
            Parameter("c", "(a * b, a + b, 1)"),
        ),
        tuple(constraints),
    )
    expected = set()
    for a, b in itertools.product(range(1, tops["a"] + 1), range(1, tops["b"] + 1)):
        for c in {a * b, a + b, 1}:
            for d in range(c, c + a + 1):
                if all(eval(text, {"a": a, "b": b, "c": c, "d": d}) for text in constraints):
                    expected.add(Config.of(a=a, b=b, c=c, d=d))
    if not expected:
        with pytest.raises(SpaceError, match="no config"):
            space.on("cpu")
        return
    points = space.on("cpu")
    listed = list(points.configs())
    assert set(listed) == expected
    assert len(listed) == len(expected) == points.size()
    for config in listed[:5]:
        apart = {other for other in expected if sum(other[n] != config[n] for n in "abcd") == 1}
        assert set(points.neighbours(config)) == apart
    for name, values in points.parameters.items():
        assert {config[name] for config in expected} <= set(values)


TRIANGLE = Space(
    (Parameter.integers("a", 0, 5), Parameter.integers("b", 0, 5), Parameter.boolean("c")),
    ("a + b <= 5", "not c or a >= 3"),
)


def test_neighbours_differ_in_one_parameter_and_adjacent_values_come_first() -> None:
    points = TRIANGLE.on("cpu")
    config = Config.of(a=3, b=1, c=True)
    found = points.neighbours(config)
    assert [(n["a"], n["b"], n["c"]) for n in found] == [
        (4, 1, True),
        (3, 0, True),
        (3, 2, True),
        (3, 1, False),
    ]


def test_an_invalid_config_has_only_valid_neighbours() -> None:
    points = TRIANGLE.on("cpu")
    invalid = Config.of(a=5, b=3, c=False)
    assert invalid not in points
    assert {(n["a"], n["b"]) for n in points.neighbours(invalid)} == {
        (0, 3), (1, 3), (2, 3), (5, 0)
    }  # fmt: skip
    assert points.neighbours(Config.of(a=5, b=3)) == []


def _assert_fair(counts: Counter[Config], expected: set[Config], draws: int) -> None:
    """Chi-square: the deviation from equal chances is one that fair drawing gives."""
    assert counts.keys() == expected
    mean = draws / len(expected)
    statistic = sum((counts[config] - mean) ** 2 / mean for config in expected)
    freedom = len(expected) - 1
    assert abs(statistic - freedom) < 4 * (2 * freedom) ** 0.5


def test_every_config_is_drawn_with_the_same_chance() -> None:
    points = TRIANGLE.on("cpu")
    rng = random.Random(7)
    counts = Counter(points.sample(1, rng)[0] for _ in range(6_000))
    _assert_fair(counts, set(points.configs()), 6_000)


def _uncountable(space: Space) -> BoundSpace:
    """The same points with a limit that makes counting give up at once."""
    counted = space.on("cpu")
    return BoundSpace(counted._domains, counted._constraints, counted._known, count_limit=3)


def test_a_space_too_large_to_count_is_estimated() -> None:
    names = "abcdefg"
    space = Space(
        tuple(Parameter.integers(name, 1, 6) for name in names),
        ("a * b + c <= d * e + f", "(a ^ g) < 5"),
    )
    exact = space.on("cpu").size()
    points = _uncountable(space)
    assert exact * 0.9 < points.size() < exact * 1.1
    assert points.size() == _uncountable(space).size()


def test_a_space_too_large_to_count_is_sampled_with_the_same_chance_for_each() -> None:
    space = Space((*TRIANGLE.parameters, Parameter("d", "integers(a, 4)")), TRIANGLE.constraints)
    points = _uncountable(space)
    rng = random.Random(11)
    counts = Counter(points.sample(1, rng)[0] for _ in range(6_000))
    _assert_fair(counts, set(space.configs("cpu")), 6_000)


def test_configs_are_found_where_drawing_finds_none() -> None:
    names = "abcdefgh"
    chain = tuple(f"{one} + 1 == {other}" for one, other in itertools.pairwise(names))
    points = _uncountable(Space(tuple(Parameter.integers(n, 1, 12) for n in names), chain))
    sample = points.sample(100, random.Random(5))
    assert len(sample) == len(set(sample)) == 5
    assert all(config in points for config in sample)
