"""Where in the user's source an operation comes from."""

from __future__ import annotations

from tritune.cpu.ir import Loc
from tritune.cpu.ttir.literals import Malformed, read_string
from tritune.cpu.ttir.tokens import END, TOKEN


class Locations:
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
            tokens = [*TOKEN.findall(text), END]
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
