"""Read and write JSON files; every error is one line that names the file."""

from __future__ import annotations

import gzip
import json
import math
import os
import uuid
import zlib
from pathlib import Path
from typing import Any

from tritune.store.errors import FormatError, StoreError


def load(path: Path) -> Any:
    """Return the JSON value in a file, perhaps gzipped; NaN and Infinity are allowed."""
    try:
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        return json.loads(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FormatError(f"{path} is a damaged gzip file: {error}") from None
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise FormatError(f"{path} is not JSON: it is not text") from None
    except RecursionError:
        raise FormatError(f"{path} is not sensible JSON: it is nested too deeply") from None
    except ValueError as error:
        raise FormatError(f"{path} is not JSON: {error}") from None


def time_ms(value: Any) -> float | None:
    """Return a time as a float, or None where it is no positive, finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def brief(value: Any) -> str:
    """Return a value for an error message: its beginning, on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def write(path: Path, text: str) -> None:
    """Write the text to a file in one step, so that no reader sees half of it."""
    temporary = path.with_name(f".{path.name[:40]}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None
