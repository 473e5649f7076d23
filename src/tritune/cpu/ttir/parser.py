"""The structure of a module: functions, blocks, values, and operations as MLIR prints most."""

from __future__ import annotations

import re
from typing import Any

from tritune.cpu.faults import unexpected
from tritune.cpu.ir import Block, Function, Loc, Module, Op, Region, Type, Value
from tritune.cpu.ttir.attributes import Attributes
from tritune.cpu.ttir.checks import UNKNOWN, check
from tritune.cpu.ttir.literals import Malformed, read_string, read_symbol
from tritune.cpu.ttir.locations import Locations
from tritune.cpu.ttir.operations import READERS, regular
from tritune.cpu.ttir.tokens import END
from tritune.cpu.ttir.versions import normalise
from tritune.errors import CompileError

_ALIAS = re.compile(r"^(#\w+) = (.*)$", re.MULTILINE)

#: Operations after which a block of an `scf` region does not need an `scf.yield`.
_TERMINATORS = {"scf.yield", "scf.condition", "cf.br", "cf.cond_br", "tt.return", "ub.unreachable"}
#: Attributes that are printed as a bare word.
_FLAGS = {"allow_reorder", "efficient_layout", "exact", "nneg", "disjoint"}


def parse(text: str) -> Module:
    """Read the printed form of a TTIR module, with or without debug locations."""
    parser = Parser(text)
    try:
        return parser.module()
    except Malformed as error:
        raise CompileError(
            "builtin.module", f"its text cannot be read: {error}", str(Loc())
        ) from None
    except (CompileError, MemoryError):
        raise
    except Exception as error:
        raise unexpected("builtin.module", Loc(), error) from error


class Parser(Attributes):
    """Reads a module; what is peculiar to an operation is in `operations.py`."""

    def __init__(self, text: str) -> None:
        super().__init__(_ALIAS.sub("", text))
        self._locations = Locations(dict(_ALIAS.findall(text)))
        self._values: dict[str, Value] = {}
        self._defined: list[str] = []
        self._forward: dict[str, Value] = {}
        self._blocks: list[dict[str, Block]] = []

    # Structure

    def module(self) -> Module:
        functions: list[Function] = []
        self.skip_newlines()
        wrapped = self.accept("module")
        if wrapped:
            if self.peek().startswith("@"):
                self.next()
            if self.accept("attributes"):
                self.attributes()
            if not self.accept("{"):
                raise CompileError("builtin.module", "its text has no body", str(Loc()))
        while True:
            self.skip_newlines()
            token = self.next()
            if token == "tt.func":
                functions.append(self._function())
            elif token == ("}" if wrapped else END) and functions:
                return Module(functions)
            else:
                raise CompileError(token, "only functions are understood in a module", str(Loc()))

    def _function(self) -> Function:
        name = "tt.func"
        try:
            public = True
            if self.peek() in ("public", "private", "nested"):
                public = self.next() == "public"
            name = read_symbol(self.next())
            self._values.clear()
            self._defined.clear()
            self._forward.clear()
            args, arg_attrs = self._function_arguments()
            results: list[Type] = []
            if self.accept("->"):
                results = self._function_results()
            if self.accept("attributes"):
                self.attributes()
            body = Region()
            if self.accept("{"):
                body = self.region(args)
            loc = self.location()
        except Malformed as error:
            reason = f"its text cannot be read: {error}"
            raise CompileError(f"tt.func @{name}", reason, str(self.next_location())) from None
        except (CompileError, MemoryError):
            raise
        except Exception as error:
            raise unexpected(f"tt.func @{name}", self.next_location(), error) from error
        values = body.blocks[0].args if body.blocks else [Value(t, n[1:]) for n, t in args]
        if self._forward:
            raise CompileError(
                f"tt.func @{name}", f"{', '.join(self._forward)} is used but not defined", str(loc)
            )
        return Function(name, values, results, body, public, arg_attrs, loc)

    def _function_arguments(self) -> tuple[list[tuple[str, Type]], list[dict[str, Any]]]:
        self.expect("(")
        args: list[tuple[str, Type]] = []
        attrs: list[dict[str, Any]] = []
        while not self.accept(")"):
            name = self.next()
            self.expect(":")
            args.append((name, self.type()))
            attrs.append(self.attributes() if self.peek() == "{" else {})
            self.location()
            self.accept(",")
        return args, attrs

    def _function_results(self) -> list[Type]:
        if not self.accept("("):
            return [self.type()]
        results: list[Type] = []
        while not self.accept(")"):
            results.append(self.type())
            if self.peek() == "{":
                self.attributes()
            self.accept(",")
        return results

    def region(self, args: list[tuple[str, Type]] | None = None) -> Region:
        """The blocks up to and with the closing brace.

        `args` are those of an entry block without a label. What a region defines ends with it:
        MLIR uses the names again in the next one.
        """
        mark = len(self._defined)
        labels: dict[str, Block] = {}
        self._blocks.append(labels)
        region = Region()
        block = Block([self._define(name, type, None) for name, type in args or []])
        self.skip_newlines()
        if self.peek()[0] != "^":
            region.blocks.append(block)
        while True:
            self.skip_newlines()
            token = self.peek()
            if token == "}":
                self._at += 1
                break
            if token[0] == "^":
                block = labels.setdefault(self.next(), Block())
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
        if self.accept("("):
            while not self.accept(")"):
                name = self.next()
                self.expect(":")
                args.append(self._define(name, self.type(), None))
                self.location()
                self.accept(",")
        self.expect(":")
        return args

    # Values

    def _define(self, name: str, type: Type, owner: Op | None) -> Value:
        value = self._forward.pop(name, None)
        if value is None:
            value = Value(type, name[1:], owner)
        elif value.type not in (type, UNKNOWN):
            raise Malformed(f"{name} is used as {value.type} and defined as {type}")
        value.type, value.owner = type, owner
        if name in self._values or name[0] != "%":
            raise Malformed(f"{name} is defined twice or is no name of a value")
        self._values[name] = value
        self._defined.append(name)
        return value

    def value(self) -> Value:
        name = self.next()
        value = self._values.get(name)
        if value is not None:
            return value
        if name[0] != "%":
            raise Malformed(f"expected a value, found {name!r}")
        if name not in self._forward:
            self._forward[name] = Value(UNKNOWN, name[1:])
        return self._forward[name]

    def values_until(self, close: str) -> list[Value]:
        values: list[Value] = []
        while not self.accept(close):
            values.append(self.value())
            self.accept(",")
        return values

    # Locations

    def location(self) -> Loc:
        token = self.peek()
        if token.startswith("loc("):
            self._at += 1
            return self._locations.of_alias(token[4:-1])
        if token != "loc":
            return Loc()
        frames, self._at = self._locations.read(self._tokens, self._at)
        return self._locations.user_line(frames)

    def next_location(self) -> Loc:
        """The first location after the current token, for an operation that cannot be read."""
        try:
            while self.peek() != END:
                if self.peek() == "loc" or self.peek().startswith("loc("):
                    return self.location()
                self._at += 1
        except (Malformed, IndexError, ValueError):
            pass
        return Loc()

    # Operations

    def _op(self) -> Op:
        start = self._at
        name = "an operation"
        try:
            names = self._result_names()
            token = self.next()
            if token[0] == '"':
                op = Op(read_string(token))
                name = op.name
                types = self._generic(op)
            else:
                op = Op(token)
                name = token
                if not (token[0].isalpha() and "." in token):
                    raise Malformed(f"expected an operation, found {token!r}")
                types = READERS.get(name, regular)(self, op)
            normalise(op)
            op.loc = self.location()
            if self.peek() not in ("\n", "}", END):
                raise Malformed(f"{self.peek()!r} is not expected in its text")
            self._define_results(op, names, types)
        except Malformed as error:
            line = " ".join(self._tokens[start : start + 200]).partition("\n")[0]
            reason = f"its text cannot be read: {error}. The text is: {line[:200]}"
            raise CompileError(name, reason, str(self.next_location())) from None
        except (CompileError, MemoryError):
            raise
        except Exception as error:
            raise unexpected(name, self.next_location(), error) from error
        return op

    def _result_names(self) -> list[str]:
        """`%a, %b:2 =`, with one name per result."""
        names: list[str] = []
        if self.peek()[0] != "%":
            return names
        while True:
            name = self.next()
            if self.accept(":"):
                names += [f"{name}#{i}" for i in range(int(self.next()))]
            else:
                names.append(name)
            if self.accept("="):
                return names
            self.expect(",")

    def _define_results(self, op: Op, names: list[str], types: list[Type]) -> None:
        if len(names) != len(types) and (names or op.results):
            raise Malformed(f"it has {len(names)} results, but {len(types)} types for them")
        op.results = [self._define(n, t, op) for n, t in zip(names, types, strict=False)]

    def _generic(self, op: Op) -> list[Type]:
        """`"tt.reduce"(%a) <{axis = 0 : i32}> ({...}) {...} : (T) -> U`"""
        self.expect("(")
        op.operands = self.values_until(")")
        if self.accept("["):
            while not self.accept("]"):
                op.successors.append((self.block(), []))
                self.accept(",")
        if self.peek() == "<{":
            op.attrs.update(self.attributes())
        if self.accept("("):
            while not self.accept(")"):
                self.expect("{")
                op.regions.append(self.region())
                self.accept(",")
        self.more_attributes(op)
        self.expect(":")
        ins, outs = self.signature()
        if outs is None:
            raise Malformed("its type is not that of a function")
        check(op.operands, ins)
        return outs

    def items(self, op: Op, positional: tuple[str, ...] = ()) -> None:
        """Operands, words and attributes up to the types; `positional` names the bare words."""
        remaining = list(positional)
        while True:
            token = self.peek()
            if token[0] == "%":
                op.operands.append(self.value())
            elif token == "{" or token == "<{":
                op.attrs.update(self.attributes())
            elif token in (":", "->", "\n", "}", "loc", "timeout", END) or token.startswith("loc("):
                break
            elif token == ",":
                self._at += 1
            elif token[0] == '"' and remaining:
                op.attrs[remaining.pop(0)] = read_string(self.next())
            elif self._tokens[self._at + 1] == "=":
                self._at += 2
                op.attrs[token] = self.attribute()
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

    def more_attributes(self, op: Op) -> None:
        """A dictionary of attributes, if one comes next."""
        if self.peek() == "{":
            op.attrs.update(self.attributes())

    def block(self) -> Block:
        label = self.next()
        if label[0] != "^":
            raise Malformed(f"expected a block, found {label!r}")
        return self._blocks[-1].setdefault(label, Block())

    def successor(self, op: Op) -> None:
        block = self.block()
        values: list[Value] = []
        if self.accept("("):
            values = self.values_until(":")
            check(values, self.type_list_until(")"))
        op.successors.append((block, values))

    def body(self, op: Op, args: list[tuple[str, Type]] | None = None) -> None:
        """A region of `op`; MLIR leaves out an `scf.yield` without values, which is put back."""
        self.expect("{")
        region = self.region(args)
        last = region.blocks[-1]
        if not (last.ops and last.ops[-1].name in _TERMINATORS):
            last.ops.append(Op("scf.yield"))
        op.regions.append(region)
