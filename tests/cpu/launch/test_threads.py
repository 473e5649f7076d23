"""Threads: whose they are, how many, and what a fork does to them."""

from collections import defaultdict

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu import programs
from tritune.cpu import env
from tritune.cpu.launch import loader


@triton.jit
def square(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    value = tl.load(x + i, mask=mask)
    tl.store(out + i, value * value, mask=mask)


def check_square():
    # Small enough for torch to stay on one thread: its own parallel code does not survive a fork.
    n = 20_000
    x = torch.randn(n)
    out = torch.empty(n)
    square[(triton.cdiv(n, 64),)](x, out, n, BLOCK=64)
    assert torch.equal(out, x * x)


FORK = """
    import os, sys, torch, triton
    from tests.cpu.launch.test_threads import check_square
    torch.set_num_threads(2)

    def in_child(work):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def several():
        for _ in range(5):
            check_square()
"""


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_the_result_does_not_depend_on_the_number_of_threads(torch_threads, threads):
    torch_threads(threads)
    check_square()


def test_torchs_number_of_threads_is_honoured_when_it_changes(torch_threads):
    properties = triton.runtime.driver.active.utils.get_device_properties
    for threads in (3, 1, 2):
        torch_threads(threads)
        assert properties(None)["multiprocessor_count"] == threads


def test_the_environment_has_the_last_word(tmp_path):
    program = """
        import torch
        from tests.cpu.launch.test_threads import check_square
        from tritune.cpu.launch import threads
        torch.set_num_threads(1)
        check_square()
        print(threads.count())
    """
    result = programs.run(tmp_path, program, TRITUNE_NUM_THREADS="3")
    assert programs.check(result).strip() == "3"


@pytest.mark.parametrize("text", ["0", "-2", "many", "1.5", "5000"])
def test_a_bad_number_of_threads_is_explained(monkeypatch, text):
    monkeypatch.setenv("TRITUNE_NUM_THREADS", text)
    with pytest.raises(ValueError, match=f"TRITUNE_NUM_THREADS='{text}': expected a number of"):
        env.NUM_THREADS.read()


def test_a_bad_number_of_threads_stops_the_program_that_asks_for_the_cpu(tmp_path):
    program = """
        import triton, tritune.cpu
        tritune.cpu.enable()
    """
    result = programs.run(tmp_path, program, TRITUNE_NUM_THREADS="none")
    assert result.returncode != 0
    assert "TRITUNE_NUM_THREADS='none'" in result.stderr


def test_no_threads_are_made_beside_torchs(tmp_path):
    program = """
        import os, torch
        from tests.cpu.launch.test_threads import check_square
        torch.set_num_threads(3)
        torch.randn(1 << 22).sum()
        before = len(os.listdir("/proc/self/task"))
        check_square()
        print(len(os.listdir("/proc/self/task")) - before)
    """
    assert programs.check(programs.run(tmp_path, program)).strip() == "0"


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param("check_square(); in_child(several); check_square()", id="after a launch"),
        pytest.param("torch.randn(1 << 22).sum(); in_child(several)", id="after torch only"),
        pytest.param(
            "check_square(); in_child(lambda: (several(), in_child(several), several()))",
            id="a fork in the child",
        ),
        pytest.param(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "check_square()\n"
            "in_child(lambda: list(ThreadPoolExecutor(3).map(lambda _: several(), range(6))))",
            id="threads in the child",
        ),
    ],
)
def test_launches_go_on_in_a_forked_child(tmp_path, scenario):
    lines = "".join(f"\n    {line}" for line in scenario.splitlines())
    programs.check(programs.run(tmp_path, FORK + lines, timeout_s=40))


def test_a_failed_assertion_reaches_the_caller_in_a_forked_child(tmp_path):
    program = """
    import torch
    from tests.cpu.launch.test_launcher import refuse
    from tritune.errors import DeviceAssertionError

    def fails():
        try:
            refuse[(8,)](torch.full((8,), 9.0), 1.0, debug=True)
        except DeviceAssertionError:
            return
        raise SystemExit("not raised")

    check_square()
    in_child(fails)
    """
    programs.check(programs.run(tmp_path, FORK + program, timeout_s=40))


def test_multiprocessing_by_fork_works(tmp_path):
    program = """
        import multiprocessing
        from tests.cpu.launch.test_threads import check_square

        def work(_):
            check_square()
            return 1

        if __name__ == "__main__":
            check_square()
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(sum(pool.map(work, range(6))))
    """
    assert programs.check(programs.run(tmp_path, program, timeout_s=40)).strip() == "6"


def test_where_torch_has_no_openmp_a_launch_runs_on_the_calling_thread(monkeypatch):
    monkeypatch.setattr(loader, "_gomp_parallel", lambda: None)
    # Loaded anew, and not left to the tests that come after.
    monkeypatch.setattr(square, "device_caches", defaultdict(square.create_binder))
    check_square()
