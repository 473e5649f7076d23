"""Triton's cache: what a second process finds in it, and what happens when an entry is damaged."""

import textwrap
from pathlib import Path

import pytest
from tests.cpu import programs

from tritune.cpu import loader
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
        compiling = ("tritune.cpu.lower", "tritune.cpu.codegen", "tritune.cpu.ttir")
        print([name for name in sys.modules if name in compiling])
    """
    assert programs.check(launch(tmp_path, cache, extra)).strip() == "[]"


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
def test_a_damaged_object_is_compiled_again_with_a_warning(tmp_path, cache, damage):
    programs.check(launch(tmp_path, cache))
    path = object_file(cache)
    sound = path.read_bytes()
    path.write_bytes(damage(sound))
    result = launch(tmp_path, cache)
    programs.check(result)
    assert "is damaged" in result.stderr
    assert "compiling it again" in result.stderr
    assert object_file(cache).read_bytes() == sound
    healed = launch(tmp_path, cache)
    programs.check(healed)
    assert "damaged" not in healed.stderr


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
