"""The parser's part for types and attributes."""

from __future__ import annotations

from typing import Any

from tritune.cpu.ir import Type, Value
from tritune.cpu.ttir.literals import (
    Malformed,
    read_dense,
    read_number,
    read_string,
    read_symbol,
    read_type,
)
from tritune.cpu.ttir.tokens import END, Tokens

#: The type of a value that is used in an earlier block than the one that defines it, until then.
UNKNOWN = Type("?")


def check(values: list[Value], types: list[Type]) -> None:
    """Compare operands with the types printed for them; learn those of values not defined yet."""
    if len(values) != len(types):
        raise Malformed(f"it has {len(values)} operands, but {len(types)} types for them")
    for value, type in zip(values, types, strict=True):
        if value.type is not type and value.type != type:
            if value.type is not UNKNOWN:
                raise Malformed(f"%{value.name} is {value.type}, but is used as {type}")
            value.type = type


class Attributes(Tokens):
    """Reads types and attributes where they come next."""

    def type(self) -> Type:
        token = self.next()
        if token == "(":  # a function type: no word for it in this IR
            raise Malformed("a function type where a type of a value was expected")
        if not (token[0].isalpha() or token[0] == "!"):
            raise Malformed(f"expected a type, found {token!r}")
        return read_type(token)

    def type_list(self) -> list[Type]:
        """Read `T`, `(T, U)` or `T, U`."""
        if self.accept("("):
            return self.until(")", self.type)
        types = [self.type()]
        while self.accept(",") or self.accept("*"):
            types.append(self.type())
        return types

    def signature(self) -> tuple[list[Type], list[Type] | None]:
        """Read the types before and after `->` or `to`; the latter are None without an arrow."""
        ins = [] if self.peek() == "->" else self.type_list()
        if self.accept("->") or self.accept("to"):
            return ins, self.type_list()
        return ins, None

    def types(self) -> tuple[list[Type], list[Type] | None]:
        if self.accept(":") or self.peek() == "->":
            return self.signature()
        return [], None

    def attributes(self) -> dict[str, Any]:
        """Read a dictionary of attributes, `{a = 1 : i32, b}` or `<{...}>`."""
        opening = self.next()
        closing = "}>" if opening == "<{" else "}"
        attrs: dict[str, Any] = {}
        while not self.accept(closing):
            key = self.next()
            if key[0] == '"':
                key = read_string(key)
            if key == END:
                raise Malformed("an attribute dictionary is not closed")
            attrs[key] = self.attribute() if self.accept("=") else True
            self.accept(",")
        return attrs

    def attribute(self) -> Any:
        token = self.peek()
        if token == "[":
            self._at += 1
            return self.until("]", self.attribute)
        if token == "{":
            return self.attributes()
        self._at += 1
        if token[0] == '"':
            value: Any = read_string(token)
            if self.accept(":"):
                self.type()
            return value
        if token in ("true", "false"):
            return token == "true"
        if token[0] == "@":
            return read_symbol(token)
        if token.startswith("array<"):
            kind, _, body = token[6:-1].partition(":")
            words = [w.strip() for w in body.split(",") if w.strip()]
            if kind.strip() == "i1":
                return [w == "true" for w in words]
            return [read_number(w, read_type(kind.strip())) for w in words]
        if token.startswith("dense<"):
            self.expect(":")
            return read_dense(token[6:-1], self.type())
        if token[0].isdigit() or token[0] == "-":
            if self.accept(":"):
                return read_number(token, self.type())
            return read_number(token, Type("f64" if "." in token else "i64"))
        if not (token[0].isalpha() or token[0] in "#!"):
            raise Malformed(f"{token!r} is not an attribute")
        return token  # an enumeration, a dialect's attribute or a type, as printed
