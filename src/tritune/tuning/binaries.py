"""What a build is: a digest of everything a config's launches are made of, and facts about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from tritune.space import Config
from tritune.tuning.case import CaseSpec, Launch

#: What a GPU's launch takes from the metadata, beside the binary. A CPU's takes nothing.
_LAUNCH_METADATA = (
    "num_warps", "num_ctas", "cluster_dims", "shared", "tmem_size", "global_scratch_size",
    "profile_scratch_size", "launch_cooperative_grid", "launch_pdl", "launch_cluster",
)  # fmt: skip
#: Names that the compiled kernel or its metadata may have, and the fact each one is.
_LARGEST = {"registers": "n_regs", "shared_bytes": "shared", "num_warps": "num_warps"}


def digest_of(config: Config, launches: Sequence[Launch | Any]) -> str:
    """The same for two configs exactly where they launch the same thing.

    A compiled kernel without its grid does not tell what the host does with the config, so the
    config itself counts then.
    """
    digest = hashlib.sha256()
    for launch in launches:
        if not isinstance(launch, Launch):
            _add(digest, sorted(config.as_kwargs().items()))
            launch = Launch(launch, ())
        compiled, metadata = launch.compiled, launch.compiled.metadata
        digest.update(hashlib.sha256(_binary(compiled)).digest())
        _add(digest, [metadata.name, launch.grid, launch.scalars])
        if metadata.target.backend != "cpu":
            _add(digest, [(name, getattr(metadata, name, None)) for name in _LAUNCH_METADATA])
    return digest.hexdigest()


def facts_of(launches: Sequence[Launch | Any]) -> dict[str, Any]:
    """What is known of the binaries without taking them apart; the worst kernel counts."""
    kernels = [each.compiled if isinstance(each, Launch) else each for each in launches]
    facts: dict[str, Any] = {
        "kernels": len(kernels),
        "code_bytes": sum(len(_binary(kernel)) for kernel in kernels),
    }
    for fact, name in _LARGEST.items():
        values = [value for kernel in kernels if (value := _known(kernel, name)) is not None]
        if values:
            facts[fact] = max(values)
    spills = [value for kernel in kernels if (value := _known(kernel, "n_spills")) is not None]
    if spills:
        facts["spills"] = sum(spills)
    return facts


def signature_of(spec: CaseSpec) -> str:
    """A digest of what decides the binary beside the config: known before anything is compiled."""
    text = json.dumps([spec.factory, dict(spec.arguments)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _binary(compiled: Any) -> bytes:
    binary = compiled.kernel
    return binary if isinstance(binary, bytes) else str(binary).encode()


def _known(compiled: Any, name: str) -> int | None:
    # Registers and spills are None until the kernel is loaded, which building does not do.
    value = getattr(compiled, name, None)
    if value is None:
        value = getattr(compiled.metadata, name, None)
    return value


def _add(digest: hashlib._Hash, value: Any) -> None:
    digest.update(json.dumps(value, default=str).encode() + b"\0")
