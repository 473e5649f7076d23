"""The source locations of operations."""

from __future__ import annotations

import re

from tritune.cpu.ir import Loc
from tritune.cpu.ttir.literals import read_string

# A file with a line, another string (a name), or an alias of another location.
_PART = re.compile(r'("(?:[^"\\]|\\.)*")(?:\s*:\s*(\d+))?|(#\w+)')


class Locations:
    """The source locations of a module: `#loc` aliases, resolved to the user's line on demand."""

    def __init__(self, aliases: dict[str, str]) -> None:
        self._aliases = aliases
        self._locs: dict[str, Loc] = {}

    def user_line(self, text: str) -> Loc:
        """Return the innermost frame outside of Triton's own library, else the outermost one."""
        loc = self._locs.get(text)
        if loc is None:
            frames = self._frames(text)
            own = (f for f in frames if "/triton/language/" not in f.file.replace("\\", "/"))
            loc = self._locs[text] = next(own, frames[-1] if frames else Loc())
        return loc

    def _frames(self, text: str) -> list[Loc]:
        """Return the frames of a location, innermost first: `callsite(callee at caller)`."""
        frames: list[Loc] = []
        for string, line, alias in _PART.findall(text):
            if alias:
                frames += self._frames(self._aliases.get(alias, ""))
            elif line:
                frames.append(Loc(read_string(string), int(line)))
        return frames
