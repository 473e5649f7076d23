"""The tokenizer of a module's text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from tritune.cpu.ttir.literals import Malformed

# Angle brackets after a word, nested up to four deep, belong to it: `tensor<4x!tt.ptr<f32>>`.
_ANGLES = r"<[^<>]*(?:<[^<>]*(?:<[^<>]*(?:<[^<>]*>[^<>]*)*>[^<>]*)*>[^<>]*)*>"
TOKEN = re.compile(
    r"loc\(\#\w*\)"
    r"|%[\w.$-]+(?:\#\d+)?"
    rf"|[\#!]?[A-Za-z_][\w.$]*(?:{_ANGLES})?"
    r'|"(?:[^"\\]|\\.)*"'
    rf"|->|<\{{|\}}>|{_ANGLES}"
    r"|-?0x[0-9A-Fa-f]+|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?"
    r"|\^[\w.$-]+"
    r'|@(?:[\w.$-]+|"(?:[^"\\]|\\.)*")'
    r"|//[^\n]*|\n|\S"
)

END = "<end>"

T = TypeVar("T")


class Tokens:
    """The tokens of a module, ends of lines among them, and a position in them."""

    def __init__(self, text: str) -> None:
        self._tokens = [t for t in TOKEN.findall(text) if t[:2] != "//"]
        self._tokens += [END] * 8
        self._at = 0

    def peek(self) -> str:
        return self._tokens[self._at]

    def next(self) -> str:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def accept(self, token: str) -> bool:
        if self._tokens[self._at] == token:
            self._at += 1
            return True
        return False

    def expect(self, token: str) -> None:
        found = self.next()
        if found != token:
            raise Malformed(f"expected {token!r}, found {found!r}")

    def until(self, close: str, read: Callable[[], T]) -> list[T]:
        """Read a list up to and with its closing token."""
        found: list[T] = []
        while not self.accept(close):
            found.append(read())
            self.accept(",")
        return found

    def skip_newlines(self) -> None:
        while self._tokens[self._at] == "\n":
            self._at += 1
