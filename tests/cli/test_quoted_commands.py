"""Commands that messages and documents quote are commands that the command line takes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from tritune.cli.app import UsageError, app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
SOURCES = sorted((ROOT / "src").rglob("*.py"))
#: Words that stand for a number.
NUMBERS = dict.fromkeys(("N", "S", "DAYS", "SECONDS", "{}"), "1")


def quoted(text: str) -> Iterator[str]:
    """Commands between backticks, and those that a line of a block of code begins with."""
    for block in re.findall(r"```.*?\n(.*?)```", text, re.DOTALL):
        yield from re.findall(r"^ *(tritune [a-z].*?)(?: +#.*)?$", block, re.MULTILINE)
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    plain = re.sub(r"^\|.*\| *planned.*\|$", "", plain, flags=re.MULTILINE)
    yield from re.findall(r"`(tritune [a-z][^`]*)`", plain)


def texts_of(source: Path) -> Iterator[str]:
    """The strings of a file, docstrings too; what is filled in at run time is {}."""
    tree = ast.parse(source.read_text())
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
              for part in node.values}  # fmt: skip
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (n.value if isinstance(n, ast.Constant) else "{}" for n in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def commands() -> list[tuple[str, str]]:
    found = [(path.name, each) for path in DOCUMENTS for each in quoted(path.read_text())]
    for path in SOURCES:
        found += [(path.name, each) for text in texts_of(path) for each in quoted(text)]
    return sorted(set(found))


def words_of(command: str) -> list[str]:
    """The arguments; of a synopsis, with all that is optional and the first of alternatives."""
    text = re.sub(r"\s+", " ", command.replace("…", "").replace("...", ""))
    words = shlex.split(re.sub(r"[\[\]]", "", text))
    return [NUMBERS.get(word, word.partition("|")[0]) for word in words[1:]]


def refusal(command: str) -> str | None:
    """Why the command line refuses a command. One that lacks the last words is only mentioned."""
    parser, arguments = get_command(app), words_of(command)
    context = None
    try:
        while True:
            context = parser.make_context(parser.name, list(arguments), parent=context)
            if not hasattr(parser, "resolve_command"):
                return None
            left = [*context._protected_args, *context.args]
            if not left:
                return None  # a group of commands
            _, parser, arguments = parser.resolve_command(context, left)
    except UsageError as error:
        message = error.format_message()  # type: ignore[attr-defined]
        mentioned = re.search(r"^Missing |requires (an|\d+) argument", message)
        return None if mentioned else message
    except typer.Exit:
        return None  # help, for what has subcommands


def test_commands_are_found() -> None:
    found = {command for _, command in commands()}
    assert "tritune db export --winners -o FILE" in found
    assert len(found) > 40


def test_quoted_commands_are_commands() -> None:
    refused = {where: why for where in commands() if (why := refusal(where[1])) is not None}
    assert refused == {}


@pytest.mark.parametrize(
    "command", ["tritune db export --winners FILE", "tritune tun", "tritune tune --sweet norms"]
)
def test_what_is_no_command_is_noticed(command: str) -> None:
    assert refusal(command)
