"""Registration with torch: opaque to its compilers, with a fake kernel that knows shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_torch_library: Any = torch.library  # without its types: half of its functions have none
_LIBRARY = _torch_library.Library("tritune", "DEF")


def register(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Define `tritune::<schema>` and return what calls it.

    `run` gets real tensors of one device; `fake` makes empty ones with the same shapes, dtypes and
    strides as `run` would.
    """
    name = schema.split("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    _torch_library.register_fake(f"tritune::{name}", fake, lib=_LIBRARY)
    overload: Callable[..., Any] = getattr(torch.ops.tritune, name).default
    return overload
