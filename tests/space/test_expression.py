"""What may be written as a constraint or a domain, and what is said about anything else."""

from __future__ import annotations

import pytest

from tritune.space import Parameter, Space, SpaceError

A = Parameter("A", (1, 2, 3))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "A.bit_length() > 1",
        "open('file')",
        "[x for x in (1, 2)]",
        "(lambda: A)()",
        "(y := A)",
        "{'a': 1}['a'] == A",
        "f'{A}'",
        "max(*(1, A))",
        "sorted((A, 1))",
        "min(1, 2, key=A)",
        "A is 1",
        "1j == A",
    ],
)
def test_nothing_but_the_small_language_is_allowed(text: str) -> None:
    with pytest.raises(SpaceError, match=r"constraint .*allowed"):
        Space((A,), (text,))


@pytest.mark.parametrize("text", ["A <", "", "A = 1", "A\x00"])
def test_what_is_no_expression_says_so(text: str) -> None:
    with pytest.raises(SpaceError, match="is not an expression"):
        Space((A,), (text,))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("A % 2", {1, 3}),
        ("1 < A <= 3", {2, 3}),
        ("A in (1, 3)", {1, 3}),
        ("A not in [1, 3]", {2}),
        ("(A == 2 if family == 'cpu' else A == 1)", {2}),
        ("max(A, 2) == 2 and not A == 1", {2}),
        ("len('ab') == A or abs(-A) == 3", {2, 3}),
        ("A in powers_of_two(1, 2)", {1, 2}),
        ("A in integers(2, 3)", {2, 3}),
        ("A << 1 == 4 or A & 1 and A ^ 2 == 3", {1, 2}),
    ],
)
def test_the_small_language_means_what_python_means(text: str, left: set[int]) -> None:
    assert {config["A"] for config in Space((A,), (text,)).configs("cpu")} == left


def test_a_function_is_not_a_name() -> None:
    with pytest.raises(SpaceError, match="min is a function"):
        Space((A,), ("A < min",))


def test_a_constraint_that_cannot_be_computed_names_itself_and_the_values() -> None:
    space = Space((A, Parameter("B", (0, 1))), ("A % B == 0",))
    with pytest.raises(SpaceError, match=r"'A % B == 0' cannot be computed for A=1, B=0: .*zero"):
        list(space.configs("cpu"))


def test_what_is_guarded_against_is_not_computed() -> None:
    guarded = "B == 0 or C == 2 or A % B == 0"
    space = Space((A, Parameter("B", (0, 2)), Parameter("C", (1, 2))), (guarded,))
    assert space.size("cpu") == 10


def test_a_misspelt_name_in_a_constraint_gets_the_nearest() -> None:
    space = Space((Parameter("BLOCK_M", (16, 32)),), ("BLOCKM <= rows",))
    with pytest.raises(SpaceError, match="BLOCKM: did you mean BLOCK_M"):
        space.on("cpu", "host", {"rows": 4})


def test_a_field_that_the_problem_lacks_is_missed_by_name() -> None:
    with pytest.raises(SpaceError, match="rows: known are A, arch, columns, family"):
        Space((A,), ("A <= rows",)).on("cpu", "host", {"columns": 4})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Parameter("A", ()),
        lambda: Parameter("A", (1, 1)),
        lambda: Parameter("A", (None,)),  # type: ignore[arg-type]
        lambda: Parameter("A B", (1,)),
        lambda: Parameter("lambda", (1,)),
        lambda: Parameter("max", (1,)),
        lambda: Parameter("arch", (1,)),
        lambda: Parameter("A", (1,), ("cude",)),
        lambda: Parameter("A", "open('x')"),
        lambda: Space((A, A)),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused_where_it_is_declared(make: object) -> None:
    with pytest.raises(SpaceError):
        make()  # type: ignore[operator]
