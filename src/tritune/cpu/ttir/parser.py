"""The parser's part for functions, blocks, values, and operations as MLIR prints most."""

from __future__ import annotations

import re
from typing import Any

from tritune.cpu.faults import unexpected
from tritune.cpu.ir import Block, Function, Loc, Module, Op, Region, Type, Value
from tritune.cpu.ttir.attributes import UNKNOWN, Attributes, check
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
    except (CompileError, MemoryError):
        raise
    except Malformed as error:
        name, line = parser.reading()
        reason = f"its text cannot be read: {error}{line and f'. The text is: {line}'}"
        raise CompileError(name, reason, str(parser.next_location())) from None
    except Exception as error:
        raise unexpected(parser.reading()[0], parser.next_location(), error) from error


class Parser(Attributes):
    """Reads a module; what is peculiar to an operation is in `operations.py`."""

    def __init__(self, text: str) -> None:
        super().__init__(_ALIAS.sub("", text))
        self._locations = Locations(dict(_ALIAS.findall(text)))
        self._values: dict[str, Value] = {}
        self._defined: list[str] = []
        self._forward: dict[str, Value] = {}
        self._blocks: list[dict[str, Block]] = []
        #: What is being read, and its first token; the innermost last.
        self._reading: list[tuple[str, int | None]] = [("builtin.module", None)]

    def reading(self) -> tuple[str, str]:
        """Return the name of what is being read, and its line if it is an operation."""
        name, start = self._reading[-1]
        if start is None:
            return name, ""
        return name, " ".join(self._tokens[start : start + 200]).partition("\n")[0][:200]

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
        self._reading.append(("tt.func", None))
        public = True
        if self.peek() in ("public", "private", "nested"):
            public = self.next() == "public"
        name = read_symbol(self.next())
        self._reading[-1] = (f"tt.func @{name}", None)
        self._values.clear()
        self._defined.clear()
        self._forward.clear()
        self.expect("(")
        found = self.until(")", self._argument)
        args, arg_attrs = [arg for arg, _ in found], [attrs for _, attrs in found]
        results: list[Type] = []
        if self.accept("->"):
            results = self.until(")", self._result) if self.accept("(") else [self.type()]
        if self.accept("attributes"):
            self.attributes()
        body = Region()
        if self.accept("{"):
            body = self.region(args)
        loc = self.location()
        values = body.blocks[0].args if body.blocks else [Value(t, n[1:]) for n, t in args]
        if self._forward:
            raise CompileError(
                f"tt.func @{name}", f"{', '.join(self._forward)} is used but not defined", str(loc)
            )
        self._reading.pop()
        return Function(name, values, results, body, public, arg_attrs, loc)

    def _argument(self) -> tuple[tuple[str, Type], dict[str, Any]]:
        name = self.next()
        self.expect(":")
        type = self.type()
        attrs = self.attributes() if self.peek() == "{" else {}
        self.location()
        return (name, type), attrs

    def _result(self) -> Type:
        type = self.type()
        if self.peek() == "{":
            self.attributes()
        return type

    def region(self, args: list[tuple[str, Type]] | None = None) -> Region:
        """Read the blocks up to and with the closing brace.

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

    def _braced_region(self) -> Region:
        self.expect("{")
        return self.region()

    def _block_arguments(self) -> list[Value]:
        args: list[Value] = []
        if self.accept("("):
            found = self.until(")", self._argument)
            args = [self._define(name, type, None) for (name, type), _ in found]
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

    # Locations

    def location(self) -> Loc:
        """Read a location, if one comes next."""
        start = self._at
        if self.accept("loc"):
            depth = 0
            while self.peek() not in ("\n", END):
                token = self.next()
                depth += (token == "(") - (token == ")")
                if depth == 0:
                    break
            else:
                raise Malformed("its location does not end")
        elif self.peek().startswith("loc("):
            self._at += 1
        return self._locations.user_line(" ".join(self._tokens[start : self._at]))

    def next_location(self) -> Loc:
        """Return the first location after the current token, for what cannot be read."""
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
        self._reading.append(("an operation", start))
        names = self._result_names()
        token = self.next()
        generic = token[0] == '"'
        op = Op(read_string(token) if generic else token)
        self._reading[-1] = (op.name, start)
        if not generic and not (token[0].isalpha() and "." in token):
            raise Malformed(f"expected an operation, found {token!r}")
        types = self._generic(op) if generic else READERS.get(op.name, regular)(self, op)
        normalise(op)
        op.loc = self.location()
        if self.peek() not in ("\n", "}", END):
            raise Malformed(f"{self.peek()!r} is not expected in its text")
        self._define_results(op, names, types)
        self._reading.pop()
        return op

    def _result_names(self) -> list[str]:
        """Read `%a, %b:2 =` as one name per result."""
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
        """Read `"tt.reduce"(%a) <{axis = 0 : i32}> ({...}) {...} : (T) -> U`."""
        self.expect("(")
        op.operands = self.until(")", self.value)
        if self.accept("["):
            op.successors += [(block, []) for block in self.until("]", self.block)]
        if self.peek() == "<{":
            op.attrs.update(self.attributes())
        if self.accept("("):
            op.regions += self.until(")", self._braced_region)
        self.more_attributes(op)
        self.expect(":")
        ins, outs = self.signature()
        if outs is None:
            raise Malformed("its type is not that of a function")
        check(op.operands, ins)
        return outs

    def items(self, op: Op, positional: tuple[str, ...] = ()) -> None:
        """Read operands, words and attributes up to the types; `positional` names bare words."""
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
        """Read a dictionary of attributes, if one comes next."""
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
            values = self.until(":", self.value)
            check(values, self.until(")", self.type))
        op.successors.append((block, values))

    def body(self, op: Op, args: list[tuple[str, Type]] | None = None) -> None:
        """Read a region of `op`; add the `scf.yield` that MLIR leaves out if it has no values."""
        self.expect("{")
        region = self.region(args)
        last = region.blocks[-1]
        if not (last.ops and last.ops[-1].name in _TERMINATORS):
            last.ops.append(Op("scf.yield"))
        op.regions.append(region)
