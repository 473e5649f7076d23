"""One form of attributes for all versions of Triton."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tritune.cpu.ir import Op
from tritune.cpu.ttir.literals import Malformed


def normalise(op: Op) -> None:
    """Bring the attributes that versions of Triton print differently into one form."""
    fix = _NORMALISERS.get(op.name)
    if fix is not None:
        fix(op.attrs)


def _memory_attributes(attrs: dict[str, Any]) -> None:
    policy = attrs.pop("cachePolicy", "")
    cache, evict = attrs.pop("cacheModifier", None), attrs.pop("evictionPolicy", None)
    if policy:
        fields = dict(re.findall(r"(\w+) = (\w+)", policy))
        cache, evict = fields.get("cache_modifier"), fields.get("eviction_policy")
    if cache not in (None, "none"):
        attrs["cache"] = cache
    if evict not in (None, "evict_normal"):
        attrs["evict"] = evict
    if attrs.pop("isVolatile", False):
        attrs["is_volatile"] = True


def _axis_attribute(attrs: dict[str, Any]) -> None:
    attrs["axis"] = "xyz".index(attrs["axis"])


def _dot_attributes(attrs: dict[str, Any]) -> None:
    attrs.setdefault("inputPrecision", "ieee")
    attrs.setdefault("maxNumImpreciseAcc", 0)


def _scan_attributes(attrs: dict[str, Any]) -> None:
    attrs.setdefault("reverse", False)


def _clamp_attributes(attrs: dict[str, Any]) -> None:
    propagate = attrs.get("propagateNan", "none")
    if propagate not in ("none", "all"):
        raise Malformed(f"propagateNan = {propagate} is not known")
    attrs["propagateNan"] = propagate == "all"


def _rounding_attribute(attrs: dict[str, Any]) -> None:
    attrs.setdefault("rounding", None)


_NORMALISERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "tt.load": _memory_attributes,
    "tt.store": _memory_attributes,
    "tt.get_program_id": _axis_attribute,
    "tt.get_num_programs": _axis_attribute,
    "tt.dot": _dot_attributes,
    "tt.scan": _scan_attributes,
    "tt.clampf": _clamp_attributes,
    "tt.fp_to_fp": _rounding_attribute,
}
