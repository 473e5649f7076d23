"""Words that stores, files and packs hold: renaming one orphans results, so all are listed here.

`vocabulary.json` is the list. A word that is new is added to it; one that changes or disappears
needs a migration of what is stored under it.
"""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tritune import env
from tritune.pack.contents import to_json
from tritune.pack.file import CONTENTS, Pack
from tritune.store import Store, export, schema, winners_file
from tritune.store.contents import contents
from tritune.store.records import FAILURES, STAGES
from tritune.store.winners_file import WinnersFile
from tritune.tuning.case import CaseSpec
from tritune.tuning.compile.binaries import signature_of
from tritune.workloads.catalog import WORKLOADS

FIXTURES = Path(__file__).parents[1] / "fixtures" / "c60291b"
VOCABULARY = json.loads(Path(__file__).with_name("vocabulary.json").read_text())


def words() -> dict[str, Any]:
    """Collect what today's code writes."""
    kernels = {workload.kernel.name: workload.kernel for workload in WORKLOADS.values()}
    return {
        "tables": {name: table.c.keys() for name, table in schema.metadata.tables.items()},
        "formats": [export.FORMAT, winners_file.FORMAT],
        "failures": list(FAILURES),
        "stages": list(STAGES),
        "modes": list(env.MODES),
        "ops": {name: workload.kernel.name for name, workload in WORKLOADS.items()},
        "kernels": {
            name: {
                "parameters": sorted({parameter.name for parameter in kernel.space.parameters}),
                "problem": list(kernel.problem.__dataclass_fields__),
            }
            for name, kernel in kernels.items()
        },
    }


def test_every_persisted_word_is_listed_and_none_has_changed() -> None:
    assert words() == VOCABULARY


@pytest.fixture
def old_store(tmp_path: Path) -> Path:
    path = tmp_path / "old.sqlite"
    path.write_bytes(gzip.decompress((FIXTURES / "store.sqlite.gz").read_bytes()))
    return path


def test_an_old_store_is_exported_as_it_was(old_store: Path) -> None:
    with Store(old_store, read_only=True) as opened:
        assert export.to_text(contents(opened)) == _unzipped("export.json.gz")
        assert WinnersFile.of(opened.winners(), opened.devices()).text() == _text("winners.json")


def test_an_old_file_of_winners_is_written_as_it_was() -> None:
    assert WinnersFile.read(FIXTURES / "winners.json").text() == _text("winners.json")


@pytest.mark.parametrize("name", ["cpu.pack", "cuda90.pack"])
def test_an_old_pack_is_described_as_it_was(name: str) -> None:
    with zipfile.ZipFile(FIXTURES / name) as archive:
        written: Mapping[str, Any] = json.loads(archive.read(CONTENTS))
    with Pack(FIXTURES / name) as pack:
        again = json.loads(json.dumps(to_json(pack.sections, list(pack.entries.values()))))
    assert again == written


def test_builds_are_found_again_under_the_signature_of_their_case(old_store: Path) -> None:
    with Store(old_store, read_only=True) as opened:
        (task,) = opened.tasks("gated")
        (signature,) = {build.signature for build in contents(opened, "gated").builds}
    arguments = {"workload": "silu_mul", "problem": json.loads(task.problem), "device": "cpu"}
    assert signature_of(CaseSpec("tritune.workloads.case:open_case", arguments)) == signature


def _text(name: str) -> str:
    return (FIXTURES / name).read_text()


def _unzipped(name: str) -> str:
    return gzip.decompress((FIXTURES / name).read_bytes()).decode()
