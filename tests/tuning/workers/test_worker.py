from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tritune.tuning.workers import worker as worker_module
from tritune.tuning.workers.worker import Death, Reply, Report, Worker, WorkerError

SERVICE = "tests.tuning.workers.services:Troublemaker"
SECONDS = 20.0


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(SERVICE, {"greeting": "good day"}) as worker:
        yield worker


def wait_for_end(pid: int) -> bool:
    """Whether the process ends within seconds; one that is gone already has."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 10.0)[0])
    finally:
        os.close(handle)


def events(worker: Worker) -> list[Report | Reply | Death]:
    """What the worker says next, as soon as it does."""
    while not (found := list(worker.poll())):
        select.select([worker], [], [], SECONDS)
    return found


def test_a_worker_answers_with_its_service_and_keeps_its_process(worker):
    assert worker.call("greet", {"name": "Ada"}, SECONDS) == "good day Ada"
    first = worker.call("whereabouts", {}, SECONDS)["pid"]
    assert worker.call("whereabouts", {}, SECONDS)["pid"] == first == worker.pid


def test_a_worker_turns_to_something_else_in_the_same_process(worker):
    first = worker.call("whereabouts", {}, SECONDS)["pid"]
    worker.switch_to({"greeting": "good night"})
    assert worker.call("greet", {"name": "Ada"}, SECONDS) == "good night Ada"
    assert worker.pid == first


def test_what_a_worker_turned_to_outlives_its_process(worker):
    worker.call("greet", {"name": "Ada"}, SECONDS)
    worker.switch_to({"greeting": "good night"})
    assert isinstance(worker.call("segfault", {}, SECONDS), Death)
    assert worker.call("greet", {"name": "Ada"}, SECONDS) == "good night Ada"


def test_a_busy_worker_does_not_turn(worker):
    worker.post("greet", {"name": "Ada"}, SECONDS)
    with pytest.raises(WorkerError, match="busy"):
        worker.switch_to({"greeting": "good night"})


def test_progress_arrives_before_the_answer_and_in_order(worker):
    heard: list[int] = []
    assert worker.call("count", {"steps": 5}, SECONDS, heard.append) == 5
    assert heard == [0, 1, 2, 3, 4]


def test_what_a_kernel_prints_does_not_disturb_the_answers(worker):
    assert worker.call("shout", {"text": '{"answer": "a lie"}\n'}, SECONDS) == "shouted"
    assert worker.call("greet", {"name": "again"}, SECONDS) == "good day again"


def test_a_worker_finds_modules_where_its_parent_does(tmp_path, monkeypatch):
    (tmp_path / "found_here.py").write_text(
        "class Service:\n"
        "    def __init__(self, report): pass\n"
        "    def place(self): return __file__\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with Worker("found_here:Service", {}) as worker:
        assert worker.call("place", {}, SECONDS) == str(tmp_path / "found_here.py")


def test_a_segfault_is_named_with_its_place_and_the_last_step_is_known(worker):
    heard: list[str] = []
    failure = worker.call("segfault", {}, SECONDS, heard.append)
    assert isinstance(failure, Death)
    assert failure.reason == "crash"
    assert "segmentation fault (SIGSEGV)" in failure.message
    assert "segfault (services.py" in failure.message
    assert heard == ["the step before the end"]


def test_an_exit_is_told_with_its_status_and_the_last_words(worker):
    failure = worker.call("exit", {"status": 3}, SECONDS)
    assert failure == Death("crash", "the process ended with status 3\nwhat was on my mind")


@pytest.mark.parametrize("heir", [False, True], ids=["alone", "with_an_heir"])
def test_a_process_may_end_within_a_message(worker, heir):
    heard: list[str] = []
    failure = worker.call("exit_within_a_message", {"heir": heir}, SECONDS, heard.append)
    assert failure == Death("crash", "the process ended with status 3")
    assert heard == ["the message before it"]
    assert worker.call("greet", {"name": "heir"}, SECONDS) == "good day heir"


def test_messages_may_be_longer_than_the_pipe_holds(worker):
    heard: list[bytes] = []
    count = 5 << 20
    answer = worker.call("send_much", {"count": count}, SECONDS, heard.append)
    assert heard == [b"a" * count]
    assert answer == b"b" * count


def test_a_death_costs_one_request_and_the_next_gets_a_new_process(worker):
    before = worker.call("whereabouts", {}, SECONDS)["pid"]
    worker.call("exit", {"status": 1}, SECONDS)
    assert worker.call("whereabouts", {}, SECONDS)["pid"] != before


def test_a_worker_that_died_while_idle_is_replaced(worker):
    pid = worker.call("whereabouts", {}, SECONDS)["pid"]
    os.kill(pid, signal.SIGKILL)
    assert wait_for_end(pid)
    assert worker.call("greet", {"name": "heir"}, SECONDS) == "good day heir"


def test_a_loop_in_c_is_ended_by_the_time_limit(worker):
    worker.call("greet", {"name": "first"}, SECONDS)
    pid = worker.pid
    failure = worker.call("loop_for_ever", {}, 0.5)
    assert failure == Death("timeout", "not done after 0.5 s")
    assert worker.pid is None
    assert wait_for_end(pid)


def test_the_time_limit_takes_down_what_the_worker_has_started(worker):
    heard: list[int | str] = []
    failure = worker.call("start_another_and_loop", {}, 1.0, heard.append)
    assert failure.reason == "timeout"
    assert isinstance(heard[0], int)
    assert wait_for_end(heard[0])


def test_memory_beyond_the_limit_is_refused_and_memory_below_it_is_not():
    with Worker(SERVICE, {"greeting": ""}, memory_bytes=256 << 20) as worker:
        assert worker.call("allocate", {"count": 64 << 20}, SECONDS) == 64 << 20
        with pytest.raises(WorkerError, match="MemoryError"):
            worker.call("allocate", {"count": 512 << 20}, SECONDS)


def test_a_stopped_worker_stands_still_and_finishes_afterwards(worker):
    worker.call("greet", {"name": "first"}, SECONDS)
    worker.pause()
    _, status = os.waitpid(worker.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    worker.post("greet", {"name": "late"}, SECONDS)
    assert not select.select([worker.fileno()], [], [], 0.05)[0]
    worker.resume()
    (answer,) = events(worker)
    assert answer.value == "good day late"


def test_the_time_limit_does_not_run_while_a_worker_is_stopped(worker, monkeypatch):
    now = 0.0
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=lambda: now))
    worker.post("loop_for_ever", {}, 10.0)
    assert events(worker) == [Report("the step that never ends")]
    worker.pause()
    now = 100.0
    assert list(worker.poll()) == []
    worker.resume()
    now = 109.0
    assert list(worker.poll()) == []
    now = 111.0
    assert list(worker.poll()) == [Death("timeout", "not done after 10 s")]


def test_a_service_that_cannot_be_made_is_an_error_with_its_reason():
    with (
        Worker("tests.tuning.workers.services:Unmakeable", {}) as worker,
        pytest.raises(WorkerError, match="the inputs are nowhere to be found"),
    ):
        worker.call("greet", {"name": "nobody"}, SECONDS)


def test_an_exception_in_the_service_is_an_error_and_the_next_request_is_answered(worker):
    with pytest.raises(WorkerError, match="ValueError: not today"):
        worker.call("refuse", {}, SECONDS)
    assert worker.call("greet", {"name": "again"}, SECONDS) == "good day again"


def test_a_worker_dies_with_its_parent():
    program = (
        "import sys, time\n"
        "from tritune.tuning.workers.worker import Worker\n"
        f"worker = Worker({SERVICE!r}, {{'greeting': ''}})\n"
        "print(worker.call('whereabouts', {}, 20)['pid'], flush=True)\n"
        "time.sleep(1000)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    assert wait_for_end(pid)
