"""Files of recorded calls: what is written over, what is left alone, what is not read."""

import json
import warnings
import zipfile

import pytest
import torch
import triton
import triton.language as tl

from tritune.policy import mode
from tritune.policy.sources import PolicyWarning
from tritune.store import Store
from tritune.tuning.autotune.decorator import autotune
from tritune.tuning.autotune.recorded_calls import folder_of, recorded_calls
from tritune.tuning.autotune.tune_call import process_store


@triton.jit
def fill(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, 1.0, offsets < n)


@pytest.fixture
def store(tmp_path, monkeypatch):
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("TRITUNE_STORE", str(path))
    monkeypatch.setattr("tritune.policy.sources._warned", set())
    process_store.cache_clear()
    with Store(path) as opened:
        yield opened
    process_store.cache_clear()


def record():
    configs = [triton.Config({"BLOCK": size}) for size in (16, 32)]
    with mode("record"):
        autotune(configs, key=["n"])(fill)[(1,)](torch.zeros(16), 16)


def write_metadata(path, metadata):
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("about.json", json.dumps(metadata))
    path.chmod(0o600)


@pytest.mark.parametrize("metadata", [{"format": 1}, {}, [2]], ids=repr)
def test_a_file_that_cannot_be_used_is_written_over(store, metadata):
    record()
    (call,) = recorded_calls(store)
    write_metadata(call.path, metadata)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PolicyWarning)
        record()
        assert recorded_calls(store) == [call]


def test_a_file_that_another_user_could_have_written_is_left_alone(store):
    record()
    (call,) = recorded_calls(store)
    call.path.write_text("what somebody else has there")
    call.path.chmod(0o666)
    with pytest.warns(PolicyWarning, match="cannot be recorded: .*another user"):
        record()
    assert call.path.read_text() == "what somebody else has there"


def test_a_file_that_cannot_be_written_is_a_warning(store):
    folder_of(store).write_text("no folder")
    with pytest.warns(PolicyWarning, match=r"calls/.* cannot be written: "):
        record()


@pytest.mark.parametrize("metadata", [[2], "text", {"format": 2}, {"format": 2, "python": None}])
def test_metadata_that_does_not_say_for_which_python_it_is_is_passed_over(store, metadata):
    write_metadata(folder_of(store) / "odd-0.call", metadata)
    assert recorded_calls(store) == []
