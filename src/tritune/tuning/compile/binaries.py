"""Digests of builds, and facts that are read from their binaries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from tritune.space import Config
from tritune.targets.binary import BinaryError, BinaryFacts, read_compiled
from tritune.targets.binary.read import KINDS
from tritune.targets.binary.same_code import code_digest
from tritune.tuning.case import CaseSpec, Launch

#: What a GPU's launch takes from the metadata, beside the binary. A CPU's takes nothing.
_LAUNCH_METADATA = (
    "num_warps", "num_ctas", "cluster_dims", "shared", "tmem_size", "global_scratch_size",
    "profile_scratch_size", "launch_cooperative_grid", "launch_pdl", "launch_cluster",
)  # fmt: skip


def digest_of(config: Config, launches: Sequence[Launch | Any]) -> str:
    """Digest the launches of a config; equal digests launch the same thing.

    A compiled kernel without its grid does not tell what the host does with the config, so the
    config itself counts then.
    """
    digest = hashlib.sha256()
    for launch in launches:
        if not isinstance(launch, Launch):
            _add(digest, sorted(config.as_kwargs().items()))
            launch = Launch(launch, ())
        compiled, metadata = launch.compiled, launch.compiled.metadata
        digest.update(code_digest(_binary(compiled)).encode())
        _add(digest, [metadata.name, launch.grid, launch.scalars])
        if metadata.target.backend != "cpu":
            _add(digest, [(name, getattr(metadata, name, None)) for name in _LAUNCH_METADATA])
    return digest.hexdigest()


def facts_of(launches: Sequence[Launch | Any]) -> dict[str, Any]:
    """Return what the binaries of a config need; of several, the most that any of them does.

    Nothing is loaded for it, so no device is needed.
    """
    kernels = [each.compiled if isinstance(each, Launch) else each for each in launches]
    read = [_read(kernel) for kernel in kernels]
    facts: dict[str, Any] = {
        "kernels": len(kernels),
        "code_bytes": sum(each.code_bytes for each in read),
        "shared_bytes": max((each.shared_bytes for each in read), default=0),
        "num_warps": max((kernel.metadata.num_warps for kernel in kernels), default=0),
    }
    columns = [getattr(kernel.metadata, "tmem_size", None) for kernel in kernels]
    for name, values in (
        ("registers", [each.registers for each in read]),
        ("spills", [each.spill_bytes for each in read]),
        ("tensor_memory_columns", columns),
    ):
        known = [value for value in values if value is not None]
        if known:
            facts[name] = max(known)
    return facts


def signature_of(spec: CaseSpec) -> str:
    """Digest what decides the binary beside the config; known before anything is compiled."""
    text = json.dumps([spec.factory, dict(spec.arguments)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(compiled: Any) -> BinaryFacts:
    """Read the facts of one binary; only its size if no reader knows its format."""
    metadata = compiled.metadata
    unread = BinaryFacts(None, None, metadata.shared or 0, len(_binary(compiled)))
    if metadata.target.backend not in KINDS:
        return unread
    try:
        return read_compiled(compiled)
    except BinaryError:
        return unread


def _binary(compiled: Any) -> bytes:
    binary = compiled.kernel
    return binary if isinstance(binary, bytes) else str(binary).encode()


def _add(digest: hashlib._Hash, value: Any) -> None:
    digest.update(json.dumps(value, default=str).encode() + b"\0")
