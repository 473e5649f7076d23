"""Set-up that every test shares."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile

import pytest

# Before anything imports triton: a test must neither find nor leave kernels in the user's cache.
# Worker processes of one run inherit the folder of the process that started them.
_own_cache: tempfile.TemporaryDirectory[str] | None = None
if "TRITON_CACHE_DIR" not in os.environ:
    _own_cache = tempfile.TemporaryDirectory(prefix="tritune-tests-")
    os.environ["TRITON_CACHE_DIR"] = _own_cache.name

# Nor may one depend on, or change, what the user has tuned. Tests that tune say where.
os.environ["TRITUNE_STORE"] = os.path.join(os.environ["TRITON_CACHE_DIR"], "no-store.sqlite")

# Tests run beside each other, and what else the machine does must not decide what they find.
os.environ["TRITUNE_BUSY"] = "1"

try:
    from hypothesis import HealthCheck, settings
except ImportError:
    pass
else:
    # Compiling takes its time. The same examples in every run make a failure repeatable.
    settings.register_profile(
        "tritune",
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("tritune")


@pytest.fixture(autouse=True)
def empty_call_caches() -> None:
    """Empty the call caches, so that no test depends on those before it."""
    call_cache = sys.modules.get("tritune.ops.call.call_cache")
    if call_cache is not None:
        for op in call_cache.CallCache.instances:
            op.clear()


def pytest_unconfigure() -> None:
    if _own_cache is not None:
        _own_cache.cleanup()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needs = {
        "gpu": (_gpu_present, "torch sees no GPU"),
        "cxx": (_compiler_present, "torch's compiler needs a C++ compiler, and there is none"),
    }
    for name, (present, reason) in needs.items():
        marked = [item for item in items if item.get_closest_marker(name)]
        if marked and not present():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def _compiler_present() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++"))


def _gpu_present() -> bool:
    import torch

    return bool(torch.cuda.is_available())


@pytest.fixture
def fresh_triton_cache(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty cache folder for Triton, for one test and the processes it starts."""
    path = os.path.join(tmp_path, "triton-cache")
    monkeypatch.setenv("TRITON_CACHE_DIR", path)
    return path
