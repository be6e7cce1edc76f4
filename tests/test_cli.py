"""The command line: what each command leaves behind, and one sentence with exit code 2 for unusable input."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from ebmbounds import __version__

TINY = ["compile=off", "width=8", "steps=20", "checkpoint_every=10", "log_every=5", "batch_size=16"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    from ebmbounds.cli import parse
    from ebmbounds.launch import train

    return train(
        "8gaussians/ebm-bb@quick", parse(TINY), run=tmp_path_factory.mktemp("cli") / "run", progress=False
    ).path


def test_version(command):
    assert command("--version")[:2] == (0, f"ebmbounds {__version__}\n")


@pytest.mark.parametrize(
    "name",
    ["train", "evaluate", "sample", "score", "list", "bench", "data", "reproduce", "report", "export", "explore"],
)
def test_help_is_there(command, name):
    code, out, _ = command(name, "--help")
    assert code == 0 and "Usage" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train"], "name an experiment"),
        (["train", "25gaussian/ebm-bb"], "did you mean '25gaussians'?"),
        (["train", "25gaussians/ebm-b"], "did you mean 'ebm-bb'?"),
        (["train", "25gaussians/ebm-bb@quik"], "did you mean 'quick'?"),
        (["train", "25gaussians"], "write DATASET/METHOD"),
        (["train", "moons/ebm-bb", "step=3"], "did you mean 'steps'?"),
        (["train", "moons/ebm-bb", "margin=-1"], "margin=-1.0 is out of range"),
        (["train", "moons/ebm-bb", "steps=ten"], "steps='ten' is not a valid int"),
        (["train", "moons/ebm-bb", "entropy_estimator=s2"], "s1, exact, hutchinson"),
        (["train", "moons/ebm-bb", "steps"], "write KEY=VALUE"),
        (["train", "moons/ebm-bb", "steps=1", "steps=2"], "steps is set twice"),
        (["train", "moons/ebm-bb@paper", "width=1"], "below latent_dim=2"),
        (["train", "moons/ebm-bb", "--device", "tpu"], "is no device"),
        (["train", "--resume"], "--resume needs the run folder"),
        (["evaluate", "nowhere"], "is no run folder"),
        (["sample", "nowhere", "-o", "x.npy"], "is no run folder"),
        (["sample", "nowhere", "-o", "x.jpg"], ".npy, .csv or .png"),
        (["reproduce", "toy-densities"], "did you mean 'toy-density'?"),
        (["reproduce", "modes", "--budget", "soon"], "'soon' is no time limit"),
        (["reproduce", "modes", "--method", "ebm-b"], "did you mean 'ebm-bb'?"),
        (["reproduce", "entropy", "--method", "wgan-0gp"], "no run of this reproduction"),
        (["reproduce", "page"], "from the root of a checkout"),
        (["report", "nowhere"], "is no run folder"),
        (["report", "nowhere", "-o", "page.pdf"], "ends in .html"),
        (["explore", "nowhere"], "is no run folder"),
        (["export", "nowhere", "-o", "folder"], "is no run folder"),
    ],
)
def test_bad_input_gets_one_sentence(command, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, _, err = command(*arguments)
    assert code == 2
    assert err.startswith("ebmbounds: ") and err.count("\n") == 1 and sentence in err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_said(command):
    code, _, err = command("train", "moons/ebm-bb", "--device", "cuda")
    assert code == 2 and "no usable GPU" in err


def test_train_refuses_a_folder_that_exists(command, trained):
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    code, _, err = command("train", "8gaussians/ebm-bb@quick", "--run", trained)
    assert code == 2 and "--resume" in err
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


def test_resume_takes_more_steps_and_nothing_else(command, trained, tmp_path):
    import shutil

    run = shutil.copytree(trained, tmp_path / "run")
    code, _, err = command("train", "--resume", "--run", run, "margin=0.5")
    assert code == 2 and "other settings (margin)" in err
    assert command("train", "--resume", "--run", run, "steps=30")[0] == 0
    steps = [json.loads(line)["step"] for line in (run / "log.jsonl").read_text().splitlines()]
    assert steps == [5, 10, 15, 20, 25, 30]


def test_a_truncated_checkpoint_is_named(command, trained, tmp_path):
    import shutil

    run = shutil.copytree(trained, tmp_path / "run")
    last = run / "checkpoints" / "last.safetensors"
    last.write_bytes(last.read_bytes()[:-100])
    code, _, err = command("evaluate", run)
    assert code == 2 and "last.safetensors" in err and "truncated" in err


def test_evaluate_writes_metrics_and_picture(command, trained):
    code, out, _ = command("evaluate", trained, "--json")
    figures = json.loads(out)
    assert code == 0 and figures == json.loads((trained / "metrics.json").read_text())
    for key in ("nll", "nll_best_temperature", "best_temperature", "data_entropy", "modes", "good_fraction"):
        assert key in figures
    assert figures["lower_bound"] <= figures["nll"] + 0.5 <= figures["upper_bound"] + 0.5
    assert {"nll", "modes", "good_fraction", "lower_bound", "upper_bound"} <= set(figures["protocol"])
    assert Image.open(trained / "density.png").width > 1000


@pytest.mark.parametrize("refine", [[], ["--refine", "sir"], ["--refine", "langevin"]])
def test_sample_writes_every_kind_of_file(command, trained, tmp_path, refine):
    for name in ("x.npy", "x.csv", "x.png"):
        assert command("sample", trained, "-n", 50, "-o", tmp_path / name, *refine)[0] == 0
    array = np.load(tmp_path / "x.npy")
    assert array.shape == (50, 2) and np.isfinite(array).all()
    table = np.loadtxt(tmp_path / "x.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(table, array, rtol=1e-6)
    code, _, err = command("sample", trained, "-o", tmp_path / "x.npy")
    assert code == 2 and "exists" in err


def test_score_gives_an_energy_for_each_row(command, trained, tmp_path):
    command("sample", trained, "-n", 7, "-o", tmp_path / "x.csv")
    assert command("score", trained, tmp_path / "x.csv", "-o", tmp_path / "e.csv")[0] == 0
    head, *rows = (tmp_path / "e.csv").read_text().splitlines()
    assert head == "name,energy" and len(rows) == 7


def test_list_as_json(command):
    rows = json.loads(command("list", "--json")[1])
    assert {"name", "steps", "network", "source"} == set(rows[0])
    assert {"25gaussians/ebm-bb", "25gaussians/ebm-bb@paper", "25gaussians/ebm-bb@code"} <= {
        row["name"] for row in rows
    }


@pytest.mark.parametrize("arguments", [["list"], ["reproduce"], ["data", "list"], ["data", "info", "cifar10"]])
def test_tables_fit_80_columns_and_are_plain_when_piped(command, monkeypatch, arguments):
    piped = command(*arguments)[1]
    assert "\x1b" not in piped and all("\t" in line for line in piped.splitlines())
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    monkeypatch.setenv("COLUMNS", "80")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", command(*arguments)[1])
    assert "\t" not in shown and max(map(len, shown.splitlines())) <= 80
    first = {line.split("\t")[0] for line in piped.splitlines()[1:]}
    assert first <= {line.split("  ")[0] for line in shown.splitlines()}  # names stay whole


def test_report_writes_a_page(command, trained, tmp_path):
    code, out, _ = command("report", trained, "-o", tmp_path / "page.html")
    assert code == 0 and "page.html" in out and (tmp_path / "page.html").stat().st_size < 8e6


def test_reproduce_gathers_what_is_finished_and_tells_what_is_not(command, tmp_path, monkeypatch):
    from ebmbounds.reproduce import REPRODUCTIONS, runs

    monkeypatch.setattr("ebmbounds.reproduce.complete_all", lambda tasks, **options: runs.Outcome())  # trains nothing
    assert {line.split("\t")[0] for line in command("reproduce")[1].splitlines()[1:]} == set(REPRODUCTIONS)
    places = ["--runs", tmp_path / "runs", "--results", tmp_path / "results", "--device", "cpu"]
    code, out, err = command("reproduce", "toy-density", "--quick", *places)
    total = len(REPRODUCTIONS["toy-density"].tasks(tmp_path, quick=True))
    assert code == 0 and "quick" in out
    assert f"{total} of {total} runs are not finished: go on with the same command" in err
    summary = json.loads(command("reproduce", "toy-density", "--quick", "--json", *places)[1])
    assert summary["quick"] and len(summary["unfinished"]) == total
    assert not list(tmp_path.iterdir())


def test_data_commands(command):
    assert "swissroll" in command("data", "list")[1]
    assert "nats" in command("data", "info", "moons")[1]
    code, _, err = command("data", "info", "cifar1")
    assert code == 2 and "did you mean" in err
