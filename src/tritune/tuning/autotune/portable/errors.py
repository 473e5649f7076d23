"""The one error of this folder."""

from __future__ import annotations

from tritune.errors import TrituneError


class PortableError(TrituneError):
    """Something that a call needs cannot be sent to a worker process: what, and where it is."""
