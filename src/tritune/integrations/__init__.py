"""Use of tritune by other libraries, without a change to the programs that use them.

Nothing is imported here until it is needed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritune.integrations.enabled import Enabled
from tritune.integrations.errors import IntegrationError

if TYPE_CHECKING:
    import torch

__all__ = ["Enabled", "IntegrationError", "disable", "enable", "enable_all", "enable_in_children"]

_LIBRARIES = ("transformers",)


def enable(what: str | torch.nn.Module, **options: Any) -> Enabled:
    """Let a library, by its name, or a transformers model compute with tritune.

    `enable("transformers")` makes `attn_implementation="tritune"` known. `enable(model)` changes a
    model; see docs/transformers.md for the options. What is returned takes it back, by its
    `disable()` or as the context of a `with`.
    """
    if not isinstance(what, str):
        from tritune.integrations.transformers.model import enable_model

        return enable_model(what, **options)
    if what not in _LIBRARIES:
        known = ", ".join(map(repr, _LIBRARIES))
        raise IntegrationError(f"enable does not know {what!r}, allowed: {known}, or a model")
    if options:
        raise IntegrationError(f"enable({what!r}) has no options, given: {', '.join(options)}")
    from tritune.integrations import transformers

    transformers.register()
    return Enabled()


def disable(model: torch.nn.Module) -> None:
    """Change a model back into what it was before `enable(model)`."""
    from tritune.integrations.transformers.model import disable_model

    disable_model(model)


def enable_all() -> Enabled:
    """Let torch's attention and transformers compute with tritune in this process.

    Calls of scaled_dot_product_attention go to `tritune.sdpa`. A transformers model is changed
    while its `generate` runs, and changed back after. What is not installed, or is not imported by
    the program, costs nothing; what is broken is left alone.
    """
    from tritune.integrations.generate import patch_generate
    from tritune.integrations.import_hook import when_imported
    from tritune.integrations.sdpa import route

    enabled = route()
    enabled.add("transformers", when_imported("transformers.generation.utils", patch_generate))
    return enabled


def enable_in_children() -> None:
    """Have `enable_all` called in the Python processes that this one starts, if they use torch.

    They find the folder `child_processes` first on PYTHONPATH, with what Python runs at its start.
    """
    folder = str(Path(__file__).with_name("child_processes"))
    before = os.environ.get("PYTHONPATH")
    path = [] if not before else before.split(os.pathsep)
    if folder not in path:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *path])
