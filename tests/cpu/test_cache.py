"""Triton's cache: what a second process finds in it, and what happens when an entry is damaged."""

import textwrap
import warnings
from pathlib import Path

import pytest
import torch

from tests.cpu import programs
from tests.cpu.test_backend import add, inputs
from tritune.cpu.launch import loader
from tritune.errors import DamagedObjectError

LAUNCH = textwrap.dedent("""
    import torch, triton
    from tests.cpu.test_backend import add, inputs
    hits = []
    triton.knobs.compilation.listener = lambda **facts: hits.append(facts["cache_hit"])
    x, y, out = inputs()
    kernel = add[(4,)](x, y, out, 1000, BLOCK=256)
    assert torch.equal(out, x + y)
""")


def launch(folder, cache, extra="", **environment):
    return programs.run(
        folder, LAUNCH + textwrap.dedent(extra), TRITON_CACHE_DIR=str(cache), **environment
    )


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def object_file(cache: Path) -> Path:
    (path,) = cache.rglob("add.obj")
    return path


def test_a_second_process_does_no_compiling(tmp_path, cache):
    programs.check(launch(tmp_path, cache))
    extra = """
        import sys
        assert hits == [True], hits
        from tritune.cpu import codegen
        assert not codegen.optimise.cache_info().misses
        assert not {"tritune.cpu.lower", "tritune.cpu.ttir"} & set(sys.modules)
    """
    programs.check(launch(tmp_path, cache, extra))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda code: code[: len(code) // 2], id="truncated"),
        pytest.param(lambda code: b"", id="empty"),
        pytest.param(lambda code: b"\x00" * len(code), id="zeros"),
        pytest.param(lambda code: code[:200] + bytes([code[200] ^ 1]) + code[201:], id="one bit"),
        pytest.param(lambda code: code + b"x", id="longer"),
    ],
)
def test_a_damaged_object_is_compiled_again_with_a_warning(fresh_triton_cache, damage):
    def launch_as_a_new_process_would():
        add.device_caches.clear()
        x, y, out = inputs()
        add[(4,)](x, y, out, 1000, BLOCK=256)
        assert torch.equal(out, x + y)

    launch_as_a_new_process_would()
    path = object_file(Path(fresh_triton_cache))
    sound = path.read_bytes()
    path.write_bytes(damage(sound))
    with pytest.warns(RuntimeWarning, match=r"add: .* is damaged .* compiling it again"):
        launch_as_a_new_process_would()
    assert path.read_bytes() == sound
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch_as_a_new_process_would()


def test_processes_that_compile_the_same_kernel_at_once_all_succeed(tmp_path, cache):
    processes = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        processes.append(programs.start(folder, LAUNCH, TRITON_CACHE_DIR=str(cache)))
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert object_file(cache)


def test_an_entry_of_another_cpu_is_not_used(tmp_path, cache):
    as_lesser_cpu = textwrap.dedent("""
        from tritune.cpu import features
        here = features.host()
        lesser = features.Cpu(here.triple, here.name, here.features + ",-sse4a", 128)
        features.host = lambda: lesser
        features.resolve = lambda arch: lesser
    """)
    first = programs.run(tmp_path, as_lesser_cpu + LAUNCH, TRITON_CACHE_DIR=str(cache))
    programs.check(first)
    programs.check(launch(tmp_path, cache, "assert hits == [False]"))


def test_a_seal_is_opened_only_by_what_was_sealed():
    sealed = loader.seal(b"code")
    assert loader.unseal(sealed) == b"code"
    for broken in (b"", b"code", sealed[:-1], sealed + b"!", b"X" + sealed[1:]):
        with pytest.raises(DamagedObjectError):
            loader.unseal(broken)
