"""One process at a time measures on a device; a lock ends with its process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tuning.killable import CONFIGS
from tests.tuning.tasks import TASK
from tritune.errors import DeviceTakenError, TrituneError
from tritune.store import Store
from tritune.tuning.workers.device_lock import device_lock, lock_path

ROOT = Path(__file__).parents[3]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for locks of this test's own: others may be tuning on this machine."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("TRITUNE_BUSY")
    return tmp_path


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a module of the tests as a process, which does not outlive the test."""
    processes: list[subprocess.Popen[str]] = []

    def started(module: str, *arguments: str) -> subprocess.Popen[str]:
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", f"tests.tuning.{module}", *arguments],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        return processes[-1]

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def test_a_second_process_waits_says_for_whom_and_then_has_the_device(start: Start) -> None:
    first = start("workers.lock_holder")
    assert heard(first) == "measures"
    second = start("workers.lock_holder")
    assert heard(second) == f"waits for {first.pid}"
    tell(first, "done")
    assert heard(second) == "measures"


def test_who_must_not_wait_is_told_who_measures(start: Start) -> None:
    first = start("workers.lock_holder")
    assert heard(first) == "measures"
    refused = pytest.raises(DeviceTakenError, match=f"process {first.pid} measures on cpu")
    with refused, device_lock("cpu", wait=False):
        pass


def test_a_process_that_is_killed_gives_the_device_back(start: Start) -> None:
    first = start("workers.lock_holder")
    assert heard(first) == "measures"
    first.kill()
    first.wait()
    with device_lock("cpu", wait=False):
        pass


def test_who_has_waited_comes_before_who_wants_it_again(start: Start) -> None:
    first = start("workers.lock_holder")
    assert heard(first) == "measures"
    second = start("workers.lock_holder")
    assert heard(second) == f"waits for {first.pid}"
    tell(first, "again")
    assert heard(second) == "measures"
    assert heard(first) == f"waits for {second.pid}"


def test_within_one_process_a_block_may_lie_in_another() -> None:
    with device_lock("cpu"), device_lock("cpu", wait=False):
        pass
    with device_lock("cpu", wait=False):
        pass


def test_devices_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda number: f"GPU {number}")
    import torch

    paths = {lock_path(torch.device(name)) for name in ("cpu", "cuda:0", "cuda:1")}
    assert len(paths) == 3


def test_on_request_nobody_waits(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start("workers.lock_holder")
    assert heard(first) == "measures"
    monkeypatch.setenv("TRITUNE_BUSY", "1")
    with device_lock("cpu", wait=False):
        pass


def test_a_lock_that_cannot_be_opened_is_named(folder: Path) -> None:
    import torch

    path = lock_path(torch.device("cpu"))
    path.mkdir()
    with pytest.raises(TrituneError, match=str(path)), device_lock("cpu"):
        pass


def test_a_second_run_waits_and_takes_over_what_the_first_has_measured(
    start: Start, tmp_path: Path
) -> None:
    location = str(tmp_path / "store.sqlite")
    first = start("second_run", location)
    said = []
    while said[-1:] != ["measured"]:
        said.append(heard(first))
    second = start("second_run", location)
    assert heard(second) == f"waits for {first.pid}"
    tell(first, "go on")
    assert heard(second) == "done 0 True"
    while not said[-1].startswith("done"):
        said.append(heard(first))
    assert said[-1] == f"done {len(CONFIGS)} True"
    assert not any(line.startswith("again") for line in said)
    with Store(location) as store:
        assert len(store.trials(TASK)) == len(CONFIGS)
