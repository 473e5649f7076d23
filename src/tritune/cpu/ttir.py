"""Reads Triton's IR: how its operations are printed and how versions differ is known here only.

`optimise` runs Triton's own passes over a fresh module; `parse` turns the printed result into the
backend's IR (`ir.py`). Only the text is read: Triton's Python bindings show neither all attributes
nor where a branch goes.

What cannot be read with certainty is refused, with the operation and its place in the user's
source. Wherever MLIR prints an operand's type, it is compared with the type its definition gave, so
that a format that has changed in a new Triton fails here instead of computing something else.

Attributes have one form for all versions of Triton:

- Names and values are MLIR's own, as Python values; a flag is `True`.
- `arith.constant`: `value`, a number of the type (`i1`: 0 or 1), or a flat list if not a splat.
- `arith.cmpi`, `arith.cmpf`: `predicate`.
- `tt.load`, `tt.store`: `cache`, `evict`, `is_volatile` if asked for.
- `tt.atomic_*`: `sem` and `scope`; `tt.atomic_rmw` also `op`.
- `tt.get_program_id`, `tt.get_num_programs`: `axis` as a number.
- `tt.dot`: `inputPrecision` and `maxNumImpreciseAcc` always; `tt.fp_to_fp`: `rounding` or None.
- `tt.clampf`: `propagateNan` as a bool; `tt.scan`: `reverse` always.
- `tt.print`: `prefix`; `tt.assert`: `message`; `tt.call`: `callee`.
- `scf.for`: `unsigned` if the bounds are compared so.

Every block of an `scf` region ends with its terminator, also where MLIR leaves it out.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

from tritune.cpu.ir import Block, Function, Loc, Module, Op, Region, Type, Value
from tritune.cpu.literals import (
    Malformed,
    read_dense,
    read_number,
    read_string,
    read_symbol,
    read_type,
)
from tritune.errors import CompileError


def optimise(mod: Any, options: Any) -> Any:
    """Run Triton's target-independent passes over `mod` in place, and return it."""
    from triton._C.libtriton import ir, passes

    manager = ir.pass_manager(mod.context)
    manager.enable_debug()
    # In this order. A pass that a Triton lacks is for operations that it lacks too.
    for group, name in (
        (passes.common, "add_inliner"),
        (passes.ttir, "add_rewrite_tensor_pointer"),
        (passes.ttir, "add_rewrite_tensor_descriptor_to_pointer"),
        (passes.common, "add_canonicalizer"),
        (passes.ttir, "add_combine"),
        (passes.ttir, "add_reorder_broadcast"),
        (passes.common, "add_cse"),
        (passes.ttir, "add_triton_licm"),
        (passes.common, "add_symbol_dce"),
        (passes.ttir, "add_loop_unroll"),
    ):
        if hasattr(group, name):
            getattr(group, name)(manager)
    manager.run(mod, "make_ttir")
    return mod


def parse(text: str) -> Module:
    """Read the printed form of a TTIR module, with or without debug locations."""
    parser = _Parser(text)
    try:
        return parser.module()
    except (Malformed, ValueError, IndexError) as error:
        raise CompileError(
            "builtin.module", f"its text cannot be read: {error}", str(Loc())
        ) from None


# Angle brackets after a word, nested up to four deep, belong to it: `tensor<4x!tt.ptr<f32>>`.
_ANGLES = r"<[^<>]*(?:<[^<>]*(?:<[^<>]*(?:<[^<>]*>[^<>]*)*>[^<>]*)*>[^<>]*)*>"
_TOKEN = re.compile(
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
_ALIAS = re.compile(r"^(#\w+) = (.*)$", re.MULTILINE)

#: The type of a value that is used in an earlier block than the one that defines it, until then.
_UNKNOWN = Type("?")
_END = "<end>"


class _Locations:
    """The source locations of a module: `#loc` aliases, resolved to the user's line on demand."""

    def __init__(self, aliases: dict[str, str]) -> None:
        self._aliases = aliases
        self._frames: dict[str, list[Loc]] = {}
        self._locs: dict[str, Loc] = {}

    def of_alias(self, name: str) -> Loc:
        loc = self._locs.get(name)
        if loc is None:
            loc = self._locs[name] = self.user_line(self._alias_frames(name))
        return loc

    @staticmethod
    def user_line(frames: list[Loc]) -> Loc:
        """The innermost frame outside of Triton's own library, else the outermost one."""
        for frame in frames:
            if "/triton/language/" not in frame.file.replace("\\", "/"):
                return frame
        return frames[-1] if frames else Loc()

    def _alias_frames(self, name: str) -> list[Loc]:
        frames = self._frames.get(name)
        if frames is None:
            text = self._aliases.get(name, "loc(unknown)")
            tokens = [*_TOKEN.findall(text), _END]
            frames = self.read(tokens, 0)[0]
            self._frames[name] = frames
        return frames

    def read(self, tokens: list[str], at: int) -> tuple[list[Loc], int]:
        """The frames, innermost first, of the location at `tokens[at]`, and the index after it."""
        token = tokens[at]
        if token.startswith("loc(#"):
            return self._alias_frames(token[4:-1]), at + 1
        if token == "loc":
            frames, at = self.read(tokens, at + 2)
            return frames, at + 1
        if token[0] == "#":
            return self._alias_frames(token), at + 1
        if token[0] == '"':
            if tokens[at + 1] == "(":  # a name given to a location
                frames, at = self.read(tokens, at + 2)
                return frames, at + 1
            if tokens[at + 1] != ":":
                return [], at + 1
            frame = Loc(read_string(token), int(tokens[at + 2]))
            at += 5
            if tokens[at] == "to":  # a range ends with `line:column` or `:column`
                at += 3 if tokens[at + 1] == ":" else 4
            return [frame], at
        if token == "callsite":
            callee, at = self.read(tokens, at + 2)
            caller, at = self.read(tokens, at + 1)
            return [*callee, *caller], at + 1
        if token.startswith("fused"):
            parts: list[Loc] = []
            at += 1
            while tokens[at] in ("[", ","):
                frames, at = self.read(tokens, at + 1)
                parts = parts or frames
            return parts, at + 1
        if token == "unknown":
            return [], at + 1
        raise Malformed(f"the location {token!r} is not known")


class _Parser:
    def __init__(self, text: str) -> None:
        aliases = dict(_ALIAS.findall(text))
        self._locations = _Locations(aliases)
        self._tokens = [t for t in _TOKEN.findall(_ALIAS.sub("", text)) if t[:2] != "//"]
        self._tokens += [_END] * 8
        self._at = 0
        self._values: dict[str, Value] = {}
        self._defined: list[str] = []
        self._forward: dict[str, Value] = {}
        self._blocks: list[dict[str, Block]] = []

    # Tokens

    def _peek(self) -> str:
        return self._tokens[self._at]

    def _next(self) -> str:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _accept(self, token: str) -> bool:
        if self._tokens[self._at] == token:
            self._at += 1
            return True
        return False

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            raise Malformed(f"expected {token!r}, found {found!r}")

    def _skip_newlines(self) -> None:
        while self._tokens[self._at] == "\n":
            self._at += 1

    # Structure

    def module(self) -> Module:
        functions: list[Function] = []
        self._skip_newlines()
        wrapped = self._accept("module")
        if wrapped:
            if self._peek().startswith("@"):
                self._next()
            if self._accept("attributes"):
                self._attributes()
            if not self._accept("{"):
                raise CompileError("builtin.module", "its text has no body", str(Loc()))
        while True:
            self._skip_newlines()
            token = self._next()
            if token == "tt.func":
                functions.append(self._function())
            elif token == ("}" if wrapped else _END) and functions:
                return Module(functions)
            else:
                raise CompileError(token, "only functions are understood in a module", str(Loc()))

    def _function(self) -> Function:
        name = "tt.func"
        try:
            public = True
            if self._peek() in ("public", "private", "nested"):
                public = self._next() == "public"
            name = read_symbol(self._next())
            self._values.clear()
            self._defined.clear()
            self._forward.clear()
            args, arg_attrs = self._function_arguments()
            results: list[Type] = []
            if self._accept("->"):
                results = self._function_results()
            if self._accept("attributes"):
                self._attributes()
            body = Region()
            if self._accept("{"):
                body = self._region(args)
            loc = self._location()
        except (Malformed, ValueError, IndexError) as error:
            reason = f"its text cannot be read: {error}"
            raise CompileError(f"tt.func @{name}", reason, str(self._next_location())) from None
        values = body.blocks[0].args if body.blocks else [Value(t, n[1:]) for n, t in args]
        if self._forward:
            raise CompileError(
                f"tt.func @{name}", f"{', '.join(self._forward)} is used but not defined", str(loc)
            )
        return Function(name, values, results, body, public, arg_attrs, loc)

    def _function_arguments(self) -> tuple[list[tuple[str, Type]], list[dict[str, Any]]]:
        self._expect("(")
        args: list[tuple[str, Type]] = []
        attrs: list[dict[str, Any]] = []
        while not self._accept(")"):
            name = self._next()
            self._expect(":")
            args.append((name, self._type()))
            attrs.append(self._attributes() if self._peek() == "{" else {})
            self._location()
            self._accept(",")
        return args, attrs

    def _function_results(self) -> list[Type]:
        if not self._accept("("):
            return [self._type()]
        results: list[Type] = []
        while not self._accept(")"):
            results.append(self._type())
            if self._peek() == "{":
                self._attributes()
            self._accept(",")
        return results

    def _region(self, args: list[tuple[str, Type]] | None = None) -> Region:
        """The blocks up to and with the closing brace.

        `args` are those of an entry block without a label. What a region defines ends with it:
        MLIR uses the names again in the next one.
        """
        mark = len(self._defined)
        labels: dict[str, Block] = {}
        self._blocks.append(labels)
        region = Region()
        block = Block([self._define(name, type, None) for name, type in args or []])
        self._skip_newlines()
        if self._peek()[0] != "^":
            region.blocks.append(block)
        while True:
            self._skip_newlines()
            token = self._peek()
            if token == "}":
                self._at += 1
                break
            if token[0] == "^":
                block = labels.setdefault(self._next(), Block())
                block.args = self._block_arguments()
                region.blocks.append(block)
                continue
            block.ops.append(self._op())
        self._blocks.pop()
        missing = [label for label, target in labels.items() if target not in region.blocks]
        if missing:
            raise Malformed(f"the block {missing[0]} is not there")
        for name in self._defined[mark:]:
            del self._values[name]
        del self._defined[mark:]
        return region

    def _block_arguments(self) -> list[Value]:
        args: list[Value] = []
        if self._accept("("):
            while not self._accept(")"):
                name = self._next()
                self._expect(":")
                args.append(self._define(name, self._type(), None))
                self._location()
                self._accept(",")
        self._expect(":")
        return args

    # Values

    def _define(self, name: str, type: Type, owner: Op | None) -> Value:
        value = self._forward.pop(name, None)
        if value is None:
            value = Value(type, name[1:], owner)
        elif value.type not in (type, _UNKNOWN):
            raise Malformed(f"{name} is used as {value.type} and defined as {type}")
        value.type, value.owner = type, owner
        if name in self._values or name[0] != "%":
            raise Malformed(f"{name} is defined twice or is no name of a value")
        self._values[name] = value
        self._defined.append(name)
        return value

    def _value(self) -> Value:
        name = self._next()
        value = self._values.get(name)
        if value is not None:
            return value
        if name[0] != "%":
            raise Malformed(f"expected a value, found {name!r}")
        if name not in self._forward:
            self._forward[name] = Value(_UNKNOWN, name[1:])
        return self._forward[name]

    def _values_until(self, close: str) -> list[Value]:
        values: list[Value] = []
        while not self._accept(close):
            values.append(self._value())
            self._accept(",")
        return values

    # Locations

    def _location(self) -> Loc:
        token = self._peek()
        if token.startswith("loc("):
            self._at += 1
            return self._locations.of_alias(token[4:-1])
        if token != "loc":
            return Loc()
        frames, self._at = self._locations.read(self._tokens, self._at)
        return self._locations.user_line(frames)

    def _next_location(self) -> Loc:
        """The first location after the current token, for an operation that cannot be read."""
        try:
            while self._peek() != _END:
                if self._peek() == "loc" or self._peek().startswith("loc("):
                    return self._location()
                self._at += 1
        except (Malformed, IndexError, ValueError):
            pass
        return Loc()

    # Types and attributes

    def _type(self) -> Type:
        token = self._next()
        if token == "(":  # a function type: no word for it in this IR
            raise Malformed("a function type where a type of a value was expected")
        if not (token[0].isalpha() or token[0] == "!"):
            raise Malformed(f"expected a type, found {token!r}")
        return read_type(token)

    def _type_list(self) -> list[Type]:
        """`T`, `(T, U)` or `T, U`."""
        if self._accept("("):
            types: list[Type] = []
            while not self._accept(")"):
                types.append(self._type())
                self._accept(",")
            return types
        types = [self._type()]
        while self._accept(",") or self._accept("*"):
            types.append(self._type())
        return types

    def _attributes(self) -> dict[str, Any]:
        """A dictionary of attributes, `{a = 1 : i32, b}` or `<{...}>`."""
        opening = self._next()
        closing = "}>" if opening == "<{" else "}"
        attrs: dict[str, Any] = {}
        while not self._accept(closing):
            key = self._next()
            if key[0] == '"':
                key = read_string(key)
            if key == _END:
                raise Malformed("an attribute dictionary is not closed")
            attrs[key] = self._attribute() if self._accept("=") else True
            self._accept(",")
        return attrs

    def _attribute(self) -> Any:
        token = self._peek()
        if token == "[":
            self._at += 1
            items: list[Any] = []
            while not self._accept("]"):
                items.append(self._attribute())
                self._accept(",")
            return items
        if token == "{":
            return self._attributes()
        self._at += 1
        if token[0] == '"':
            value: Any = read_string(token)
            if self._accept(":"):
                self._type()
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
            self._expect(":")
            return read_dense(token[6:-1], self._type())
        if token[0].isdigit() or token[0] == "-":
            if self._accept(":"):
                return read_number(token, self._type())
            return read_number(token, Type("f64" if "." in token else "i64"))
        if not (token[0].isalpha() or token[0] in "#!"):
            raise Malformed(f"{token!r} is not an attribute")
        return token  # an enumeration, a dialect's attribute or a type, as printed

    # Operations

    def _op(self) -> Op:
        start = self._at
        name = "an operation"
        try:
            names = self._result_names()
            token = self._next()
            if token[0] == '"':
                op = Op(read_string(token))
                name = op.name
                types = self._generic(op)
            else:
                op = Op(token)
                name = token
                if not (token[0].isalpha() and "." in token):
                    raise Malformed(f"expected an operation, found {token!r}")
                types = _READERS.get(name, _Parser._regular)(self, op)
            _normalise(op)
            op.loc = self._location()
            if self._peek() not in ("\n", "}", _END):
                raise Malformed(f"{self._peek()!r} is not expected in its text")
            self._define_results(op, names, types)
        except Malformed as error:
            line = " ".join(self._tokens[start : start + 200]).partition("\n")[0]
            reason = f"its text cannot be read: {error}. The text is: {line[:200]}"
            raise CompileError(name, reason, str(self._next_location())) from None
        except (ValueError, IndexError, KeyError, struct.error) as error:
            reason = f"its text cannot be read ({error!r})"
            raise CompileError(name, reason, str(self._next_location())) from None
        return op

    def _result_names(self) -> list[str]:
        """`%a, %b:2 =`, with one name per result."""
        names: list[str] = []
        if self._peek()[0] != "%":
            return names
        while True:
            name = self._next()
            if self._accept(":"):
                names += [f"{name}#{i}" for i in range(int(self._next()))]
            else:
                names.append(name)
            if self._accept("="):
                return names
            self._expect(",")

    def _define_results(self, op: Op, names: list[str], types: list[Type]) -> None:
        if len(names) != len(types) and (names or op.results):
            raise Malformed(f"it has {len(names)} results, but {len(types)} types for them")
        op.results = [self._define(n, t, op) for n, t in zip(names, types, strict=False)]

    def _generic(self, op: Op) -> list[Type]:
        """`"tt.reduce"(%a) <{axis = 0 : i32}> ({...}) {...} : (T) -> U`"""
        self._expect("(")
        op.operands = self._values_until(")")
        if self._accept("["):
            while not self._accept("]"):
                op.successors.append((self._block(), []))
                self._accept(",")
        if self._peek() == "<{":
            op.attrs.update(self._attributes())
        if self._accept("("):
            while not self._accept(")"):
                self._expect("{")
                op.regions.append(self._region())
                self._accept(",")
        if self._peek() == "{":
            op.attrs.update(self._attributes())
        self._expect(":")
        ins, outs = self._signature()
        if outs is None:
            raise Malformed("its type is not that of a function")
        _check(op.operands, ins)
        return outs

    def _items(self, op: Op, positional: tuple[str, ...] = ()) -> None:
        """Operands, words and attributes up to the types; `positional` names the bare words."""
        remaining = list(positional)
        while True:
            token = self._peek()
            if token[0] == "%":
                op.operands.append(self._value())
            elif token == "{" or token == "<{":
                op.attrs.update(self._attributes())
            elif token in (":", "->", "\n", "}", "loc", "timeout", _END) or token.startswith(
                "loc("
            ):
                break
            elif token == ",":
                self._at += 1
            elif token[0] == '"' and remaining:
                op.attrs[remaining.pop(0)] = read_string(self._next())
            elif self._tokens[self._at + 1] == "=":
                self._at += 2
                op.attrs[token] = self._attribute()
            elif token.startswith(("fastmath<", "overflow<", "rounding<")):
                self._at += 1
                key, _, body = token[:-1].partition("<")
                op.attrs[key] = [w.strip() for w in body.split(",")]
            elif token[0].isalpha() and remaining:
                self._at += 1
                op.attrs[remaining.pop(0)] = token
            elif token in _FLAGS:
                self._at += 1
                op.attrs[token] = True
            else:
                raise Malformed(f"{token!r} is not expected")

    def _signature(self) -> tuple[list[Type], list[Type] | None]:
        """The types before and after `->` or `to`; the latter None if there is no arrow."""
        ins = [] if self._peek() == "->" else self._type_list()
        if self._accept("->") or self._accept("to"):
            return ins, self._type_list()
        return ins, None

    def _types(self) -> tuple[list[Type], list[Type] | None]:
        if self._accept(":") or self._peek() == "->":
            return self._signature()
        return [], None

    def _regular(self, op: Op) -> list[Type]:
        """`op operands attributes : T`, `: T -> U`, `: T to U` or `: (T, U) -> V`.

        With one type and no arrow, the operands and the result all have it.
        """
        self._items(op)
        ins, outs = self._types()
        if outs is None and len(ins) == 1:
            _check(op.operands, ins * len(op.operands))
            return ins
        _check(op.operands, ins)
        return outs or []

    def _block(self) -> Block:
        label = self._next()
        if label[0] != "^":
            raise Malformed(f"expected a block, found {label!r}")
        return self._blocks[-1].setdefault(label, Block())

    def _successor(self, op: Op) -> None:
        block = self._block()
        values: list[Value] = []
        if self._accept("("):
            values = self._values_until(":")
            _check(values, self._type_list_until(")"))
        op.successors.append((block, values))

    def _type_list_until(self, close: str) -> list[Type]:
        types: list[Type] = []
        while not self._accept(close):
            types.append(self._type())
            self._accept(",")
        return types

    def _body(self, op: Op, args: list[tuple[str, Type]] | None = None) -> None:
        """A region of `op`; MLIR leaves out an `scf.yield` without values, which is put back."""
        self._expect("{")
        region = self._region(args)
        last = region.blocks[-1]
        if not (last.ops and last.ops[-1].name in _TERMINATORS):
            last.ops.append(Op("scf.yield"))
        op.regions.append(region)

    def _constant(self, op: Op) -> list[Type]:
        if self._peek() == "{":
            op.attrs.update(self._attributes())
        token = self._next()
        type = read_type("i1")
        if self._accept(":"):
            type = self._type()
        elif token not in ("true", "false"):
            raise Malformed("it has no type")
        if token.startswith("dense<"):
            op.attrs["value"] = read_dense(token[6:-1], type)
        else:
            op.attrs["value"] = read_number(token, type)
        return [type]

    def _print(self, op: Op) -> list[Type]:
        op.attrs["prefix"] = read_string(self._next())
        if self._peek() == "{":
            op.attrs.update(self._attributes())
        if self._accept(":"):
            op.operands = self._values_until(":")
            _check(op.operands, self._type_list())
        return []

    def _call(self, op: Op) -> list[Type]:
        op.attrs["callee"] = read_symbol(self._next())
        self._expect("(")
        op.operands = self._values_until(")")
        if self._peek() == "{":
            op.attrs.update(self._attributes())
        ins, outs = self._types()
        _check(op.operands, ins)
        return outs or []

    def _gather(self, op: Op) -> list[Type]:
        op.operands.append(self._value())
        self._expect("[")
        op.operands += self._values_until("]")
        return self._regular(op)

    def _make_descriptor(self, op: Op) -> list[Type]:
        """`%base, [%shape...], [%strides...] : <ptr>, <descriptor>`"""
        base = self._value()
        op.operands.append(base)
        while self._accept(","):
            self._expect("[")
            op.operands += self._values_until("]")
        self._items(op)
        self._expect(":")
        # These two are printed without the names of their types.
        _check([base], [read_type(f"!tt.ptr{self._next()}")])
        self._expect(",")
        return [read_type(f"!tt.tensordesc{self._next()}")]

    def _descriptor(self, op: Op) -> list[Type]:
        """`%desc[%index...], %source : D, T` and `%desc[%index...] : D -> T`"""
        if not self._peek().startswith("%"):
            op.attrs["kind"] = self._next()
            self._expect(",")
        op.operands.append(self._value())
        self._expect("[")
        op.operands += self._values_until("]")
        self._items(op)
        if op.name in ("tt.descriptor_store", "tt.descriptor_reduce"):
            op.operands.insert(
                1, op.operands.pop()
            )  # MLIR's own order: the source before the indices
        return self._types()[1] or []

    def _dot(self, op: Op) -> list[Type]:
        self._items(op)
        ins, outs = self._types()
        _check(op.operands, [*ins, *(outs or [])])
        return outs or []

    def _dot_scaled(self, op: Op) -> list[Type]:
        """`%a scale %s, %b scale %t, %c lhs = e4m3 rhs = e4m3 : A, S * B, T -> D`

        Both scales are optional; `lhs_scale` and `rhs_scale` say which are there. They come last
        among the operands, as in MLIR.
        """
        scales: list[Value] = []
        scale_types: list[Type] = []
        for side in ("lhs", "rhs"):
            op.operands.append(self._value())
            op.attrs[f"{side}_scale"] = self._accept("scale")
            if op.attrs[f"{side}_scale"]:
                scales.append(self._value())
            self._expect(",")
        self._items(op)
        self._expect(":")
        types: list[Type] = []
        for side, after in (("lhs", "*"), ("rhs", "->")):
            types.append(self._type())
            if op.attrs[f"{side}_scale"]:
                self._expect(",")
                scale_types.append(self._type())
            self._expect(after)
        result = self._type()
        op.operands += scales
        _check(op.operands, [*types, result, *scale_types])
        return [result]

    def _branch(self, op: Op) -> list[Type]:
        if op.name == "cf.cond_br":
            op.operands.append(self._value())
            self._expect(",")
            self._successor(op)
            self._expect(",")
        self._successor(op)
        if self._peek() == "{":
            op.attrs.update(self._attributes())
        return []

    def _for(self, op: Op) -> list[Type]:
        if self._accept("unsigned"):
            op.attrs["unsigned"] = True
        induction = self._next()
        for word in ("=", "to", "step"):
            self._expect(word)
            op.operands.append(self._value())
        names: list[str] = []
        types: list[Type] = []
        if self._accept("iter_args"):
            names, inits = self._assignments()
            op.operands += inits
            self._expect("->")
            types = self._type_list()
        type = self._type() if self._accept(":") else read_type("index")
        if self._accept("unsigned"):
            op.attrs["unsigned"] = True
        _check(op.operands, [type] * 3 + types)
        self._body(op, [(induction, type), *zip(names, types, strict=True)])
        if self._peek() == "{":
            op.attrs.update(self._attributes())
        return types

    def _assignments(self) -> tuple[list[str], list[Value]]:
        """`(%a = %x, %b = %y)`"""
        self._expect("(")
        names: list[str] = []
        values: list[Value] = []
        while not self._accept(")"):
            names.append(self._next())
            self._expect("=")
            values.append(self._value())
            self._accept(",")
        return names, values

    def _while(self, op: Op) -> list[Type]:
        names: list[str] = []
        if self._peek() == "(":
            names, op.operands = self._assignments()
        ins, outs = self._types()
        _check(op.operands, ins)
        self._body(op, list(zip(names, ins, strict=True)))
        self._expect("do")
        self._body(op)
        if self._accept("attributes"):
            op.attrs.update(self._attributes())
        return outs or []

    def _if(self, op: Op) -> list[Type]:
        op.operands.append(self._value())
        types = self._type_list() if self._accept("->") else []
        self._body(op)
        if self._accept("else"):
            self._body(op)
        if self._peek() == "{":
            op.attrs.update(self._attributes())
        return types

    def _execute_region(self, op: Op) -> list[Type]:
        if self._accept("no_inline"):
            op.attrs["no_inline"] = True
        types = self._type_list() if self._accept("->") else []
        self._body(op)
        if self._peek() == "{":
            op.attrs.update(self._attributes())
        return types

    def _condition(self, op: Op) -> list[Type]:
        self._expect("(")
        op.operands.append(self._value())
        self._expect(")")
        passed = Op(op.name)
        self._items(passed)
        _check(passed.operands, self._types()[0])
        op.operands += passed.operands
        op.attrs.update(passed.attrs)
        return []

    def _end(self, op: Op) -> list[Type]:
        """A terminator: values and their types."""
        self._items(op)
        _check(op.operands, self._types()[0])
        return []


def _format(
    results: Callable[[list[Type]], list[Type]] | None = None,
    words: tuple[str, ...] = (),
    operands: Callable[[list[Type]], list[Type]] | None = None,
) -> Callable[[_Parser, Op], list[Type]]:
    """A reader for `op words, operands attributes : types`.

    `results` gives the result types where they are not printed after an arrow, from the types that
    are printed; `operands` gives the operand types, where not all of them are printed.
    """

    def read(parser: _Parser, op: Op) -> list[Type]:
        parser._items(op, words)
        if missing := [w for w in words if w not in op.attrs]:
            raise Malformed(f"its {missing[0]} is missing")
        ins, outs = parser._types()
        if operands is not None:
            _check(op.operands, operands(ins))
        elif len(ins) == 1:
            _check(op.operands, ins * len(op.operands))
        else:
            _check(op.operands, ins)
        if results is not None:
            return results(ins)
        return ins if outs is None else outs

    return read


def _memory(parser: _Parser, op: Op) -> list[Type]:
    """Loads and stores print the type of the pointer; the values and the mask have its shape."""
    parser._items(op, ("sem", "scope") if op.name == "tt.atomic_store" else ())
    (pointer,), _ = parser._types()
    if pointer.pointee is None:
        raise Malformed(f"{pointer} is not a pointer")
    value = _tensor(pointer.pointee, pointer.shape)
    mask = _tensor(read_type("i1"), pointer.shape)
    if op.name == "tt.load":
        expected = [pointer, mask, value]
    else:
        expected = [pointer, value, mask]
    _check(op.operands, expected[: len(op.operands)])
    return [value] if op.name == "tt.load" else []


def _nothing(ins: list[Type]) -> list[Type]:
    return []


def _tensor(scalar: Type, shape: tuple[int, ...]) -> Type:
    return scalar.with_shape(shape) if shape else scalar


def _truth(ins: list[Type]) -> list[Type]:
    return [_tensor(read_type("i1"), ins[0].shape)]


def _select(parser: _Parser, op: Op) -> list[Type]:
    """The condition's type is printed when it is not `i1`."""
    parser._items(op)
    ins, _ = parser._types()
    if len(ins) == 1:
        ins = [read_type("i1"), *ins]
    condition, value = ins
    _check(op.operands, [condition, value, value])
    return [value]


def _split(parser: _Parser, op: Op) -> list[Type]:
    """Both halves have the one type that is printed after the arrow."""
    return parser._regular(op) * 2


def _histogram(parser: _Parser, op: Op) -> list[Type]:
    """The type of the optional mask is not printed."""
    parser._items(op)
    (source,), outs = parser._types()
    expected = [source, _tensor(read_type("i1"), source.shape)]
    _check(op.operands, expected[: len(op.operands)])
    return outs or []


def _atomic_poll(parser: _Parser, op: Op) -> list[Type]:
    """`acquire, gpu, %ptr, %expected timeout %ns : P, T -> i1`; the timeout is optional."""
    parser._items(op, ("sem", "scope"))
    if parser._accept("timeout"):
        op.operands.append(parser._value())
        parser._items(op)
    ins, outs = parser._types()
    _check(op.operands, [*ins, read_type("i64")][: len(op.operands)])
    return outs or []


_COMPARE = _format(_truth, ("predicate",))
_AXIS = _format(words=("axis",))
_BARRIER = _format(_nothing, ("scope",))
_READERS: dict[str, Callable[[_Parser, Op], list[Type]]] = {
    "arith.constant": _Parser._constant,
    "arith.cmpi": _COMPARE,
    "arith.cmpf": _COMPARE,
    "arith.select": _select,
    "arith.addui_extended": _format(lambda ins: list(ins), operands=lambda ins: [ins[0]] * 2),
    "arith.mulsi_extended": _format(lambda ins: [ins[0]] * 2),
    "arith.mului_extended": _format(lambda ins: [ins[0]] * 2),
    "math.fpowi": _format(lambda ins: [ins[0]]),
    "cf.br": _Parser._branch,
    "cf.cond_br": _Parser._branch,
    "scf.for": _Parser._for,
    "scf.while": _Parser._while,
    "scf.if": _Parser._if,
    "scf.execute_region": _Parser._execute_region,
    "scf.condition": _Parser._condition,
    "scf.yield": _Parser._end,
    "tt.return": _Parser._end,
    "tt.reduce.return": _Parser._end,
    "tt.scan.return": _Parser._end,
    "tt.map_elementwise.return": _Parser._end,
    "tt.call": _Parser._call,
    "tt.load": _memory,
    "tt.store": _memory,
    "tt.addptr": _format(lambda ins: [ins[0]]),
    "tt.get_program_id": _AXIS,
    "tt.get_num_programs": _AXIS,
    "tt.atomic_rmw": _format(words=("op", "sem", "scope")),
    "tt.atomic_cas": _format(words=("sem", "scope")),
    "tt.atomic_load": _format(words=("sem", "scope")),
    "tt.atomic_store": _memory,
    "tt.atomic_poll": _atomic_poll,
    "tt.dot": _Parser._dot,
    "tt.dot_scaled": _Parser._dot_scaled,
    "tt.unsplat": _format(lambda ins: [ins[0].scalar]),
    "tt.split": _split,
    "tt.histogram": _histogram,
    "tt.join": _format(),
    "tt.cat": _format(),
    "tt.gather": _Parser._gather,
    "tt.print": _Parser._print,
    "tt.assert": _format(_nothing, ("message",)),
    "tt.elementwise_inline_asm": _format(words=("asm_string",)),
    "tt.make_tensor_descriptor": _Parser._make_descriptor,
    "tt.descriptor_load": _Parser._descriptor,
    "tt.descriptor_store": _Parser._descriptor,
    "tt.descriptor_reduce": _Parser._descriptor,
    "tt.descriptor_gather": _Parser._descriptor,
    "tt.descriptor_scatter": _Parser._descriptor,
    "llvm.intr.assume": _format(_nothing),
    "gpu.barrier": _format(_nothing),
    "ttg.barrier": _BARRIER,
}


#: Operations after which a block of an `scf` region does not need an `scf.yield`.
_TERMINATORS = {"scf.yield", "scf.condition", "cf.br", "cf.cond_br", "tt.return", "ub.unreachable"}
#: Attributes that are printed as a bare word.
_FLAGS = {"allow_reorder", "efficient_layout", "exact", "nneg", "disjoint"}


def _normalise(op: Op) -> None:
    """Give the attributes one form, whatever this version of Triton prints and leaves out."""
    fix = _NORMALISERS.get(op.name)
    if fix is not None:
        fix(op.attrs)


def _memory_attributes(attrs: dict[str, Any]) -> None:
    policy = attrs.pop("cachePolicy", "")
    cache, evict = attrs.pop("cacheModifier", None), attrs.pop("evictionPolicy", None)
    if policy:
        fields = dict(re.findall(r"(\w+) = (\w+)", policy))
        cache, evict = fields.get("cache_modifier"), fields.get("eviction_policy")
    if cache not in (None, "none"):
        attrs["cache"] = cache
    if evict not in (None, "evict_normal"):
        attrs["evict"] = evict
    if attrs.pop("isVolatile", False):
        attrs["is_volatile"] = True


def _axis_attribute(attrs: dict[str, Any]) -> None:
    attrs["axis"] = "xyz".index(attrs["axis"])


def _dot_attributes(attrs: dict[str, Any]) -> None:
    attrs.setdefault("inputPrecision", "ieee")
    attrs.setdefault("maxNumImpreciseAcc", 0)


def _scan_attributes(attrs: dict[str, Any]) -> None:
    attrs.setdefault("reverse", False)


def _clamp_attributes(attrs: dict[str, Any]) -> None:
    propagate = attrs.get("propagateNan", "none")
    if propagate not in ("none", "all"):
        raise Malformed(f"propagateNan = {propagate} is not known")
    attrs["propagateNan"] = propagate == "all"


def _rounding_attribute(attrs: dict[str, Any]) -> None:
    attrs.setdefault("rounding", None)


_NORMALISERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "tt.load": _memory_attributes,
    "tt.store": _memory_attributes,
    "tt.get_program_id": _axis_attribute,
    "tt.get_num_programs": _axis_attribute,
    "tt.dot": _dot_attributes,
    "tt.scan": _scan_attributes,
    "tt.clampf": _clamp_attributes,
    "tt.fp_to_fp": _rounding_attribute,
}


def _check(values: list[Value], types: list[Type]) -> None:
    """Compare operands with the types printed for them; learn those of values not defined yet."""
    if len(values) != len(types):
        raise Malformed(f"it has {len(values)} operands, but {len(types)} types for them")
    for value, type in zip(values, types, strict=True):
        if value.type is not type and value.type != type:
            if value.type is not _UNKNOWN:
                raise Malformed(f"%{value.name} is {value.type}, but is used as {type}")
            value.type = type
