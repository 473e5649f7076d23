"""Keep learned policies in JSON files beside the store, one per kernel and device.

It is derived from the store, and can be made again from it at any time.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tritune.policy.learning.learned import LearnedPolicy
from tritune.store.errors import FormatError
from tritune.store.jsonfile import load as load_json
from tritune.store.jsonfile import write

if TYPE_CHECKING:
    from tritune.store import Store

FORMAT = "tritune-policy"
VERSION = 3
#: Files of version 2 also have a tree or a list of winners, which is not read.
READABLE = (2, VERSION)


def path_of(store: Store, kernel: str, device: str) -> Path:
    folder = store.database.location.beside("policy")
    return folder / f"{_file_name(kernel)}-{device}.json"


def save(store: Store, policy: LearnedPolicy) -> Path:
    """Write a policy where `load` finds it, in one step."""
    path = path_of(store, policy.kernel, policy.device)
    document = {"format": FORMAT, "version": VERSION, **policy.to_json()}
    write(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
    return path


def load(store: Store, kernel: str, identity: str, device: str) -> LearnedPolicy | None:
    """Read the policy of a kernel on a device; return None if there is none for this identity.

    A file that makes no sense is a FormatError.
    """
    path = path_of(store, kernel, device)
    if not path.exists():
        return None
    document = load_json(path)
    try:
        if document["format"] != FORMAT or document["version"] not in READABLE:
            return None
        policy = LearnedPolicy.from_json(document)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{path} is no learned policy ({type(error).__name__}: {error}): delete it; "
            "tritune tune makes it again"
        ) from None
    return policy if policy.identity == identity else None


def _file_name(kernel: str) -> str:
    """Return a kernel's name without what a file's name cannot hold."""
    plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in kernel)
    if plain == kernel:
        return kernel
    return f"{plain}-{hashlib.sha256(kernel.encode()).hexdigest()[:8]}"
