"""What can happen to a run folder: each is noticed, said in one sentence, and the last good state survives."""

import errno
import itertools
import json
import os
import subprocess
import sys
import time
import warnings

import pytest
import torch
from whole_runs import IMAGES, child, content, saved_step, train, write_images

from ebmbounds import files, launch, run
from ebmbounds.errors import BadInput
from ebmbounds.run import Run


def one_sentence(caught: pytest.ExceptionInfo) -> bool:
    return "\n" not in str(caught.value)


@pytest.fixture
def half(tmp_path) -> Run:
    """A run that has come half-way, with a last and a previous checkpoint."""
    return train(tmp_path / "run", overrides={"steps": 16})


def finished_as(uninterrupted: Run, path) -> bool:
    """Whether a run of 16 steps, resumed, ends in the state of the uninterrupted one."""
    train(path, resume=True)
    return content(Run(path))["last"][0] == content(uninterrupted)["last"][0]


# -- the disk --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_disk_that_refuses(uninterrupted, half, monkeypatch, call, code):
    """From the third write on, whatever is then written: log, best or last."""
    calls = itertools.count()

    def refusing(function):
        def call(*args, **kwargs):
            if next(calls) >= 3:
                raise OSError(code, os.strerror(code))
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        if call == "write":
            refused = refusing(open)
            for module in (files, run):
                patch.setattr(module, "open", lambda p, m="r", **k: (open if m == "r" else refused)(p, m, **k), False)
        else:
            patch.setattr(os, call, refusing(getattr(os, call)))
        with pytest.raises(BadInput, match=f"cannot be written .{os.strerror(code)}") as caught:
            train(half.path, resume=True)
        assert one_sentence(caught)
    assert not list(half.path.rglob(".*.tmp"))
    assert finished_as(uninterrupted, half.path)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="to mount a small disk takes privileges")
def test_a_disk_that_is_really_full(uninterrupted, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", disk], capture_output=True).returncode:
        pytest.skip("mounting is not permitted")
    try:
        train(disk / "run", overrides={"steps": 16})
        with open(disk / "filler", "wb", buffering=0) as filler, pytest.raises(OSError, match="space"):
            while True:
                filler.write(bytes(512))
        with pytest.raises(BadInput, match=r"cannot be written .No space left") as caught:
            train(disk / "run", resume=True)
        assert one_sentence(caught) and saved_step(Run(disk / "run")) >= 16
        (disk / "filler").unlink()
        assert finished_as(uninterrupted, disk / "run")
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_what_a_killed_writer_left_is_removed(half):
    stale = [half.path / ".log.jsonl.123.tmp", half.path / "checkpoints" / ".last.safetensors.123.tmp"]
    for path in stale:
        path.write_bytes(b"half")
    train(half.path, resume=True)
    assert not any(path.exists() for path in stale)


# -- checkpoints -----------------------------------------------------------------------------------------------------


def cut(content: bytes, where: int) -> bytes:
    return content[:where]


def flipped(content: bytes, where: int) -> bytes:
    return content[:where] + bytes([content[where] ^ 16]) + content[where + 1 :]


@pytest.mark.parametrize("damage", [cut, flipped])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(uninterrupted, half, damage):
    """Cut at any byte, flipped at any: never taken for good. Then the run goes on from the one before."""
    last, whole = half.checkpoint(), half.checkpoint().read_bytes()
    for where in range(0, len(whole), 211):
        last.write_bytes(damage(whole, where))
        try:
            state, _ = half.load()
        except BadInput as error:
            assert str(last) in str(error)
        else:  # a bit of padding
            assert damage is flipped and int(state["step"]) == 16
    last.write_bytes(damage(whole, len(whole) // 2))
    with pytest.warns(UserWarning, match=r"last\.safetensors is .* goes on from the checkpoint before"):
        assert finished_as(uninterrupted, half.path)


def test_a_new_checkpoint_is_read_back_before_the_old_one_goes(half, monkeypatch):
    """A disk that keeps other bytes than it was given is found out at once."""
    before = {name: half.checkpoint(name).read_bytes() for name in ("last", "previous", "best")}
    write = run.write_through
    monkeypatch.setattr(run, "write_through", lambda path, content: write(path, flipped(content, len(content) // 2)))
    with pytest.raises(BadInput, match="reads back otherwise"):
        half.save(half.load()[0], best=0.0)
    assert {name: half.checkpoint(name).read_bytes() for name in before} == before


def test_without_any_good_checkpoint_nothing_is_overwritten(half):
    for name in ("last", "previous"):
        half.checkpoint(name).write_bytes(b"nonsense")
    with pytest.raises(BadInput, match=r"previous\.safetensors is truncated"):
        train(half.path, resume=True)
    assert half.checkpoint().read_bytes() == b"nonsense"


# -- config, data, other processes, clocks -----------------------------------------------------------------------------


def test_a_config_of_another_version_is_named(half):
    config = half.config
    (half.path / "config.json").write_text(json.dumps(config | {"version": "0.0.1"}))
    with pytest.warns(UserWarning, match=r"started with ebmbounds 0\.0\.1"):
        train(half.path, resume=True)
    (half.path / "config.json").write_text(json.dumps(config | {"version": "9.0", "warp": 3}))
    for act in (lambda: launch.train("", run=half.path, resume=True), lambda: launch.load(half.path)):
        with pytest.raises(BadInput, match=r"config\.json is from version 9\.0.*'warp'") as caught:
            act()
        assert one_sentence(caught)


def test_changed_data_are_refused(tmp_path):
    images = write_images(tmp_path / "images")
    half = train(tmp_path / "run", IMAGES, data=images, overrides={"steps": 2})
    assert half.config["data_digest"]
    other = write_images(tmp_path / "other")
    train(half.path, IMAGES, resume=True, data=other, overrides={"steps": 3})  # another folder, the same images
    for path in other.iterdir():
        path.write_bytes((other / "0.png").read_bytes())
    with pytest.raises(BadInput, match="data are not those") as caught:
        train(half.path, IMAGES, resume=True, data=other)
    assert one_sentence(caught) and saved_step(half) == 3


def test_a_second_process_is_refused(uninterrupted, half, processes):
    with half.claimed():
        with pytest.raises(BadInput, match="in use by another process") as caught:
            train(half.path, resume=True)
        assert one_sentence(caught)
        process = processes.Process(target=child, args=(half.path,))
        process.start()
        process.join(60)
        assert process.exitcode == 1 and saved_step(half) == 16
    assert finished_as(uninterrupted, half.path)


def test_a_clock_that_jumps_changes_nothing(uninterrupted, tmp_path, monkeypatch):
    jumps = itertools.cycle([0.0, 2e9, 1e9, -5.0])
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    monkeypatch.setattr(time, "perf_counter", lambda: 1.0)  # it has not moved since
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert content(train(tmp_path / "run")) == content(uninterrupted)


def test_a_file_system_without_links_and_locks_will_do(uninterrupted, half, monkeypatch):
    import fcntl

    def missing(*args):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", missing)
    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.warns(UserWarning, match="cannot be locked"):
        assert finished_as(uninterrupted, half.path)
    assert saved_step(half, "previous") == 28


def test_a_run_goes_on_without_a_warning_when_nothing_happened(half):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(half.path, resume=True)
    assert torch.equal(half.load()[0]["step"], torch.tensor(30))
