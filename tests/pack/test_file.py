"""A pack is data from outside: what is not as it was written is refused, and says why."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path

import pytest

from tests.pack.made import KERNELS, TARGET, make_pack, rewritten, section
from tritune.pack import file
from tritune.pack.entries import PackError
from tritune.pack.file import Pack


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_pack(tmp_path / "some.pack")


def test_a_pack_says_what_was_put_into_it(path: Path) -> None:
    with Pack(path) as pack:
        assert pack.sections == [section()]
        assert sorted(pack.entries) == [kernel.key for kernel in KERNELS]


def test_the_same_contents_give_the_same_file(path: Path, tmp_path: Path) -> None:
    assert make_pack(tmp_path / "other.pack").read_bytes() == path.read_bytes()


def test_a_change_of_any_byte_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(PackError, match=r"damaged|allowed|no pack|member"):
            Pack(path)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.99])
def test_part_of_a_pack_is_refused(path: Path, part: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(PackError, match="damaged"):
        Pack(path)


@pytest.mark.parametrize("name", ["../escaped", "/etc/escaped", "files/../../escaped", "files/x"])
def test_a_name_that_leaves_the_folder_is_refused(path: Path, name: str) -> None:
    rewritten(path, lambda members: {**members, name: b"harm"})
    with pytest.raises(PackError, match=r"allowed: contents\.json and files/SHA256") as error:
        Pack(path)
    assert name in str(error.value)


def test_a_member_that_is_there_twice_is_refused(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("contents.json", "{}")
    with pytest.raises(PackError, match=r"contents\.json twice"):
        Pack(path)


def test_a_file_with_another_digest_than_its_name_is_refused(path: Path) -> None:
    def swap(members: dict[str, bytes]) -> dict[str, bytes]:
        return {n: b"harm" if data == KERNELS[0].kernel else data for n, data in members.items()}

    rewritten(path, swap)
    with pytest.raises(PackError, match="another digest"):
        Pack(path)


def test_metadata_of_another_kernel_is_refused(path: Path) -> None:
    def exchange(members: dict[str, bytes]) -> dict[str, bytes]:
        contents = json.loads(members["contents.json"])
        first, second = contents["entries"][:2]
        first["metadata_sha256"] = second["metadata_sha256"]
        return {**members, "contents.json": json.dumps(contents).encode()}

    rewritten(path, exchange)
    with pytest.raises(PackError, match="another kernel"):
        Pack(path)


def test_a_missing_file_is_refused(path: Path) -> None:
    rewritten(path, lambda members: {"contents.json": members["contents.json"]})
    with pytest.raises(PackError, match="lacks files/"):
        Pack(path)


def test_a_large_member_is_refused_before_it_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "MOST_MEMBER_BYTES", 100)
    with pytest.raises(PackError, match="has a member of 500 bytes"):
        Pack(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 99}, "version 99"),
        ({"format": "something else"}, "format is 'something else'"),
        ({"sections": [{}]}, "not what tritune writes"),
        ({"sections": 7}, "not what tritune writes"),
        ({"entries": []}, "lacks 3 kernels"),
    ],
    ids=["version", "format", "empty-section", "no-sections", "no-entries"],
)
def test_contents_that_make_no_sense_are_refused(
    path: Path, change: dict[str, object], says: str
) -> None:
    def alter(members: dict[str, bytes]) -> dict[str, bytes]:
        contents = {**json.loads(members["contents.json"]), **change}
        return {**members, "contents.json": json.dumps(contents).encode()}

    rewritten(path, alter)
    with pytest.raises(PackError, match=says):
        Pack(path)


@pytest.mark.parametrize(
    "field", [{"name": "../../x"}, {"name": "a/b"}, {"extension": "so"}, {"key": "ABC"}], ids=str
)
def test_an_entry_that_would_become_another_file_is_refused(
    path: Path, field: dict[str, str]
) -> None:
    def alter(members: dict[str, bytes]) -> dict[str, bytes]:
        contents = json.loads(members["contents.json"])
        contents["entries"][0].update(field)
        return {**members, "contents.json": json.dumps(contents).encode()}

    rewritten(path, alter)
    with pytest.raises(PackError, match=r"none of Triton's|allowed: cubin"):
        Pack(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"missing\.pack cannot be read"):
        Pack(tmp_path / "missing.pack")


def test_what_is_installed_lies_where_triton_looks(path: Path, tmp_path: Path) -> None:
    from triton import knobs
    from triton.runtime.cache import get_cache_manager

    cache = tmp_path / "cache"
    kernel = KERNELS[0]
    with Pack(path) as pack:
        pack.install([kernel.key], cache)
    with knobs.cache.scope():
        knobs.cache.dir = str(cache)
        group = get_cache_manager(kernel.key).get_group(f"{kernel.name}.json")
    assert group is not None
    assert Path(group[f"{kernel.name}.cubin"]).read_bytes() == kernel.kernel
    assert Path(group[f"{kernel.name}.json"]).read_text() == kernel.metadata_text()


def sealed(path: Path, whole: bytes) -> None:
    """Other bytes with a digest that is right."""
    path.write_bytes(whole[: -file._COMMENT_BYTES])
    with path.open("rb+") as opened:
        digest = file._digest(opened, len(whole) - file._COMMENT_BYTES)
        opened.write((file._COMMENT + digest).encode())


@pytest.mark.parametrize(
    ("offset", "value"), [(8, 99), (6, 1), (0, 0)], ids=["method", "encrypted", "no-header"]
)
def test_a_member_that_cannot_be_unpacked_is_refused(path: Path, offset: int, value: int) -> None:
    whole = bytearray(path.read_bytes())
    # The same field of the member's own header and of the archive's list of members.
    for header, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2 if offset else 0)):
        whole[whole.index(header) + offset + shift] = value
    sealed(path, bytes(whole))
    with pytest.raises(PackError, match="damaged, or no pack"):
        Pack(path)


def test_a_member_with_broken_compression_is_refused(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    start = whole.index(b"contents.json") + len(b"contents.json")
    whole[start : start + 20] = b"\xff" * 20
    sealed(path, bytes(whole))
    with pytest.raises(PackError, match="damaged, or no pack"):
        Pack(path)


def test_contents_that_are_nested_without_end_are_refused(path: Path) -> None:
    rewritten(path, lambda members: {**members, "contents.json": b"[" * 1_000_000})
    with pytest.raises(PackError, match="damaged, or no pack"):
        Pack(path)


@pytest.mark.parametrize(
    "problem",
    [{}, {"rows": 16}, {"rows": "many", "columns": 512}, {"rows": 16, "harm": 1}],
    ids=str,
)
def test_a_problem_that_the_op_does_not_have_is_refused(
    tmp_path: Path, problem: dict[str, object]
) -> None:
    from tritune.errors import TrituneError
    from tritune.workloads.tuning_from_pack import _problem

    made = make_pack(tmp_path / "some.pack", section(problem=problem))
    with Pack(made) as pack, pytest.raises(TrituneError):
        _problem(pack.sections[0], TARGET, pack)
