"""The run folder: what is written is whole or not there, and what cannot be read is refused by name."""

import json
import math
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from ebmbounds import run as run_module
from ebmbounds.errors import BadInput
from ebmbounds.run import FORMAT, Run, flatten, read_json, unflatten, write_atomically, write_json

names = st.text(st.characters(blacklist_characters="/", blacklist_categories=["Cs"]), min_size=1, max_size=6)
trees = st.dictionaries(names, st.recursive(st.just(0), lambda t: st.dictionaries(names, t, min_size=1, max_size=3)))


def a_state() -> dict:
    torch.manual_seed(0)
    return {
        "seed": torch.tensor(3),
        "step": torch.tensor(12),
        "parameters": {"energy": {"0.weight": torch.randn(3, 2), "0.bias": torch.randn(3)}},
        "second_moment": {"energy": {"0.weight": torch.rand(3, 2).double(), "0.bias": torch.zeros(3)}},
        "buffers": {"generator": {"1.num_batches_tracked": torch.tensor(7), "1.running_mean": torch.randn(0)}},
    }


def same(a: dict, b: dict) -> bool:
    one, two = flatten(a), flatten(b)
    return set(one) == set(two) and all(
        torch.equal(one[k], two[k]) and one[k].dtype == two[k].dtype and one[k].shape == two[k].shape for k in one
    )


@pytest.fixture
def run(tmp_path) -> Run:
    return Run.create(tmp_path / "run", {"steps": 3})


# -- the folder ------------------------------------------------------------------------------------------------------


def test_a_new_folder_has_its_config(tmp_path):
    run = Run.create(tmp_path / "deep" / "er" / "run", {"steps": 3, "device": None})
    assert Run.open(run.path).config == {"steps": 3, "device": None}
    assert sorted(p.name for p in run.path.iterdir()) == ["checkpoints", "config.json"]


def test_an_empty_folder_will_do(tmp_path):
    assert Run.create(tmp_path, {}).config == {}


def test_a_folder_that_exists_is_refused_and_nothing_touched(run):
    run.save(a_state())
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    with pytest.raises(BadInput, match=f"{run.path} exists.*--resume"):
        Run.create(run.path, {"steps": 4})
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before


def test_files_are_no_folders(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(BadInput, match="file exists"):
        Run.create(file, {})
    with pytest.raises(BadInput, match="file"):
        Run.create(file / "run", {})
    assert file.read_text() == "mine"


def test_what_is_no_run_folder_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(BadInput, match=r"no config\.json"):
            Run.open(path)


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1', b"\xff\xfe", b"nonsense"])
def test_a_broken_config_is_refused_by_name(run, content):
    (run.path / "config.json").write_bytes(content)
    with pytest.raises(BadInput, match=r"config\.json cannot be read as JSON"):
        _ = run.config


def test_missing_json_is_refused_by_name(tmp_path):
    with pytest.raises(BadInput, match=r"metrics\.json does not exist"):
        read_json(tmp_path / "metrics.json")


# -- atomic writes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*args):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(BadInput, match=f"{path} cannot be written .the disk is full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_file_is_complete_when_it_takes_its_name(tmp_path, monkeypatch):
    """And on the disk: the content is flushed before the name changes hands."""
    path, events = tmp_path / "file", []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: events.append("flushed") or fsync(fd))

    def watched(source, target):
        events.append(("named", source.read_bytes()))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    write_atomically(path, b"x" * 100_000)
    assert events == ["flushed", ("named", b"x" * 100_000)]


def test_folders_are_made_and_json_ends_in_a_newline(tmp_path):
    write_json(tmp_path / "a" / "b.json", {"x": [1, None, "é"]})
    assert read_json(tmp_path / "a" / "b.json") == {"x": [1, None, "é"]}
    assert (tmp_path / "a" / "b.json").read_bytes().endswith(b"}\n")


# -- log -------------------------------------------------------------------------------------------------------------


def test_the_log_rewinds_to_a_step(run):
    for step in (10, 20, 30, 40):
        run.log({"step": step, "loss": step / 7})
    run.rewind_log(20)
    assert list(run.records()) == [{"step": 10, "loss": 10 / 7}, {"step": 20, "loss": 20 / 7}]
    run.log({"step": 30, "loss": 0})
    assert [record["step"] for record in run.records()] == [10, 20, 30]


def test_a_line_cut_by_a_crash_is_left_out(run):
    run.log({"step": 10})
    with open(run.path / "log.jsonl", "a") as file:
        file.write('{"step": 20, "lo')
    assert list(run.records()) == [{"step": 10}]
    run.rewind_log(20)
    run.log({"step": 20})
    assert list(run.records()) == [{"step": 10}, {"step": 20}]


def test_no_log_has_no_records(run):
    assert list(run.records()) == []
    run.rewind_log(0)
    assert list(run.records()) == []


def test_a_long_log_is_kept_in_parts(run, monkeypatch):
    monkeypatch.setattr(run_module, "LOG_PART", 100)
    everything = [{"step": step, "loss": 0.5} for step in range(20)]
    for record in everything:
        run.log(record)
    assert len(run.log_parts()) > 3 and all(part.stat().st_size < 200 for part in run.log_parts() if part.exists())
    assert list(run.records()) == everything
    run.rewind_log(7)
    assert list(run.records()) == everything[:8]
    for record in everything[8:]:
        run.log(record)
    assert list(run.records()) == everything


def test_pictures_along_the_way_are_thinned(run, monkeypatch):
    monkeypatch.setattr(run_module, "MOST_PICTURES", 10)
    (run.path / "pictures").mkdir()
    for step in range(100):
        (run.path / "pictures" / f"step_{step:07d}.png").touch()
        run.thin_pictures()
    left = sorted(int(path.stem.removeprefix("step_")) for path in (run.path / "pictures").iterdir())
    assert 5 <= len(left) <= 10 and left[0] == 0 and left[-1] == 99


# -- checkpoints -----------------------------------------------------------------------------------------------------


@given(trees)
def test_a_tree_comes_back_from_its_table(tree):
    def filled(node):
        return {k: filled(v) if isinstance(v, dict) else torch.tensor(hash(k)) for k, v in node.items()}

    state = filled(tree)
    assert unflatten(flatten(state)) == state


def test_paths_are_readable():
    assert set(flatten(a_state())) >= {"step", "parameters/energy/0.weight", "buffers/generator/1.running_mean"}


def test_a_state_comes_back_bit_for_bit(run):
    state = a_state()
    state["parameters"]["energy"]["0.bias"] = torch.tensor([math.nan, -0.0, 1e-45])
    run.save(state, best=math.inf)
    loaded, notes = run.load()
    for key, tensor in flatten(state).items():
        other = flatten(loaded)[key]
        assert other.dtype == tensor.dtype and other.shape == tensor.shape
        assert tensor.numpy().tobytes() == other.numpy().tobytes()
    assert notes == {"best": math.inf}


def test_strided_tensors_come_back_too(run):
    state = {"a": torch.arange(6).reshape(2, 3).T, "b": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)}
    run.save(state)
    assert same(run.load()[0], state)


def test_last_and_best_are_two_files(run):
    run.save(a_state(), best=1.0)
    run.save(a_state() | {"step": torch.tensor(99)}, "best", best=0.5)
    assert int(run.load()[0]["step"]) == 12 and int(run.load("best")[0]["step"]) == 99
    assert run.load("best")[1] == {"best": 0.5}
    assert sorted(p.name for p in (run.path / "checkpoints").iterdir()) == ["best.safetensors", "last.safetensors"]


def test_a_missing_checkpoint_is_named(run):
    with pytest.raises(BadInput, match=r"best\.safetensors does not exist.*'best'"):
        run.load("best")


def test_a_foreign_file_is_refused_by_name(run):
    path = run.checkpoint()
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(BadInput, match=f"{path} is no checkpoint of this program"):
        run.load()
    save_file({"weight": torch.zeros(3)}, path, {"format": FORMAT})
    with pytest.raises(BadInput, match=f"{path} is damaged"):
        run.load()
    for content in (b"", b"PK\x03\x04 a pickled checkpoint of someone else's", os.urandom(5000)):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=str(path)):
            run.load()


def test_a_truncated_file_is_refused_by_name(run):
    run.save(a_state(), best=0.25)
    content = run.checkpoint().read_bytes()
    for length in range(0, len(content), 7):
        run.checkpoint().write_bytes(content[:length])
        with pytest.raises(BadInput, match=str(run.checkpoint())):
            run.load()


def test_a_flipped_bit_never_passes(run):
    """Wherever it is: the file is refused by name, or (in the padding, or the version) says the same as before."""
    state = a_state()
    run.save(state, best=0.25)
    content = bytearray(run.checkpoint().read_bytes())
    refused = 0
    for position in range(len(content)):
        for bit in range(position % 4, 8, 4):
            content[position] ^= 1 << bit
            run.checkpoint().write_bytes(content)
            try:
                loaded, notes = run.load()
            except BadInput as error:
                assert str(run.checkpoint()) in str(error)
                refused += 1
            else:
                assert same(loaded, state) and notes == {"best": 0.25}
            content[position] ^= 1 << bit
    assert refused > 1.7 * len(content)


def test_notes_are_json(run):
    run.save(a_state(), best=0.25, figure="nll")
    header = run.checkpoint().read_bytes()[8:2000].split(b"}}")[0]
    assert json.dumps({"best": 0.25, "figure": "nll"}).replace('"', '\\"').encode() in header
