"""From run folders to summary, tables, pictures and page, on folders written by hand."""

import json
import math
import shutil
import statistics
from pathlib import Path

import pytest
from PIL import Image

from ebmbounds.errors import BadInput
from ebmbounds.reproduce import reproduce
from ebmbounds.reproduce.catalog import REPRODUCTIONS
from ebmbounds.reproduce.page import page
from ebmbounds.reproduce.summary import summarise, table, training_seconds
from ebmbounds.run import Run

ROOT = Path(__file__).parents[2]
KLS = (0.030, 0.034, 0.032)


@pytest.fixture
def counted(tmp_path, write_run) -> Path:
    """The runs of `modes`: three seeds of ebm-bb and one of ebm-0gp are finished."""
    tasks = REPRODUCTIONS["modes"].tasks(tmp_path)
    for task in tasks:
        figures = {
            "modes": 1000 - task.seed,
            "kl": KLS[task.seed],
            "kl_floor": 0.019,
            "kl_uniform": "not measured: why",
        }
        if task.name.endswith("ebm-bb") or (task.name.endswith("ebm-0gp") and task.seed == 0):
            write_run(task, figures)
    return tmp_path


@pytest.fixture
def summary(counted) -> dict:
    reproduction = REPRODUCTIONS["modes"]
    return summarise(reproduction, reproduction.tasks(counted), counted, {}, quick=False)


def test_rows_have_mean_and_spread_beside_the_papers(summary):
    ours, single = summary["rows"]
    assert ours["label"] == "stackedmnist/ebm-bb" and ours["seeds"] == 3
    assert ours["figures"]["kl"] == pytest.approx([statistics.mean(KLS), statistics.stdev(KLS)])
    assert ours["paper"] == {"modes": [1000, 0.0], "kl": [0.045, 0.003]}
    assert single["figures"]["kl"] == [KLS[0]]
    assert len(summary["unfinished"]) == len(REPRODUCTIONS["modes"].tasks(Path())) - 4
    assert {each["state"] for each in summary["unfinished"]} == {"not started"}


def test_a_summary_survives_json(summary):
    assert json.loads(json.dumps(summary)) == summary


def test_one_table_in_three_ways(summary):
    shown = table(summary)
    assert shown.head[:3] == ("experiment", "modes", "KL") and len({len(row) for row in (shown.head, *shown.rows)}) == 1
    ours, paper, single, _ = shown.rows
    assert ours[:3] == ("ebm-bb", "999.0 ± 1.0", "0.032 ± 0.002")
    assert paper[:3] == ("- paper", "1000.0 ± 0.0", "0.045 ± 0.003") and paper[3] == "-"
    assert single[2] == "0.030" and "not measured" in single and single[-1] == "1"
    for text, rule in ((shown.markdown(), "|"), (shown.latex(), "&")):
        lines = [line for line in text.splitlines() if line.count(rule) >= len(shown.head) - 1]
        assert len({line.count(rule) for line in lines}) == 1
        assert "missing" in text and "0.045" in text
    assert r"0.032 $\pm$ 0.002" in shown.latex() and "±" not in shown.latex()
    assert shown.latex().count(r"\\") == 1 + len(shown.rows)


def test_seconds_of_training_are_those_of_the_log(tmp_path):
    run = Run.create(tmp_path / "run", {})
    for step, ms in ((10, 100.0), (30, 2.0), (35, 4.0)):
        run.log({"step": step, "ms": ms})
    assert training_seconds(run) == pytest.approx((10 * 100 + 20 * 2 + 5 * 4) / 1e3)


def test_rows_over_training_come_from_the_log(tmp_path, write_run):
    reproduction = REPRODUCTIONS["entropy"]
    keys = [column.key for column in reproduction.columns]
    tasks = reproduction.tasks(tmp_path, seeds=2)
    for task in tasks:
        taken = [{"step": step, "ms": 1.0} | {key: step + task.seed for key in keys} for step in (5_000, 56_250)]
        write_run(task, {}, [{"step": 500, "ms": 1.0}, *taken])
    rows = summarise(reproduction, tasks, tmp_path, {}, quick=False)["rows"]
    assert [row["label"] for row in rows] == ["5,000", "56,250"]
    assert rows[1]["figures"]["entropy_exact"] == pytest.approx([56_250.5, math.sqrt(0.5)])


def page_with(results: Path) -> str:
    return page(results, results.parent / "docs")


def test_finished_runs_are_only_gathered(counted, write_run, tmp_path, change):
    """Nothing is trained where everything is finished, and checkpoints are not needed."""
    change("modes", experiments=("stackedmnist/ebm-bb",))
    results = tmp_path / "results"
    found = reproduce("modes", runs=counted, results=results, device="cpu")
    assert found.summary["unfinished"] == [] and json.loads((results / "modes.json").read_text()) == found.summary
    assert {path.name for path in found.written} == {"modes.json", "modes.png", "modes.md", "modes.tex", "modes.html"}
    assert Image.open(results / "modes.png").width > 500
    text = page_with(results)
    for part in (table(found.summary).markdown(), "](../results/modes.png)", "how kl was taken", "120,000", "2-core"):
        assert part.replace("2-core", "-core CPU") in text
    assert text.count("**Not run yet.**") == len(REPRODUCTIONS) - 1


def test_runs_without_a_folder_keep_what_the_results_held_of_them(counted, tmp_path, change):
    """As on another machine, to which only some folders came. The rows of what has other settings now say so."""
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    before = reproduce("modes", runs=counted, results=results, device="cpu", budget=0)
    assert before.kept == 0 and len(before.summary["runs"]) == 4
    (elsewhere / "modes").mkdir(parents=True)
    for seed in (0, 1):
        shutil.move(counted / f"modes/stackedmnist-ebm-bb-seed{seed}", elsewhere / "modes")
    metrics = elsewhere / "modes/stackedmnist-ebm-bb-seed1/metrics.json"
    metrics.write_text(json.dumps(json.loads(metrics.read_text()) | {"kl": 0.029}))
    after = reproduce("modes", runs=elsewhere, results=results, device="cpu", budget=0)
    assert after.kept == 2
    assert [run["figures"]["kl"] for run in after.summary["runs"]] == [KLS[0], 0.029, KLS[2], KLS[0]]
    assert after.summary["protocol"] == before.summary["protocol"]
    assert after.summary["unfinished"] == before.summary["unfinished"]

    written = {path: path.read_bytes() for path in results.iterdir()}
    for overrides, dated in (({"precision": "tf32"}, 0), ({"steps": 130_000}, 4), ({"precision": "fp32"}, 4)):
        change("modes", overrides=overrides)
        none_here = reproduce("modes", runs=tmp_path / "nowhere", results=results, device="cpu", budget=0)
        assert none_here.kept == len(none_here.summary["runs"]) == 4 and none_here.written == ()
        rows = none_here.summary["rows"]
        assert sum(row["seeds"] for row in rows if row["label"].endswith(" (earlier settings)")) == dated
        assert table(none_here.summary).markdown().count("(earlier settings)") == len(rows) * bool(dated)
    assert {path: path.read_bytes() for path in results.iterdir()} == written  # what it knows less of, it leaves alone


@pytest.mark.parametrize("text", ["{", "[]", '{"runs": 3}', '{"runs": [1]}'])
def test_a_damaged_summary_is_named_before_anything_is_trained(tmp_path, text):
    (tmp_path / "modes.json").write_text(text)
    with pytest.raises(BadInput, match=r"modes\.json"):
        reproduce("modes", runs=tmp_path / "runs", results=tmp_path, device="cpu")
    assert not (tmp_path / "runs").exists() and (tmp_path / "modes.json").read_text() == text


def test_the_samples_of_every_method_are_shown_beside_each_other(write_run, tmp_path, change):
    """Six grids, five in a row; where a folder has none, its place says so."""
    names = tuple(f"cifar10/{name}" for name in ("ebm-bb", "ebm-0gp", "wgan-0gp", "meg", "vera", "dcgan"))
    change("cifar10-images", experiments=names)
    sizes = []
    for count in (5, 6):
        runs = tmp_path / str(count)
        for i, task in enumerate(REPRODUCTIONS["cifar10-images"].tasks(runs)[:count]):
            write_run(task, {"fid": 30.0 + i, "f8": 0.9, "f1_8": 0.9})
            if i:
                Image.new("RGB", (64, 64), (250, 0, 0)).save(task.folder / "samples.png")
        reproduce("cifar10-images", runs=runs, results=runs, device="cpu", budget=0)
        sizes.append(Image.open(runs / "cifar10-images.png").size)
        red = red_pixels(runs / "cifar10-images.png")
        assert red == pytest.approx((count - 1) * (sizes[-1][0] / 5) ** 2, rel=0.2)
    assert sizes[1][1] - sizes[0][1] > sizes[0][0] / 5  # a second row
    for task in REPRODUCTIONS["cifar10-images"].tasks(runs)[1:]:  # all but one are elsewhere
        shutil.rmtree(task.folder)
    assert reproduce("cifar10-images", runs=runs, results=runs, device="cpu", budget=0).kept == 5
    assert red_pixels(runs / "cifar10-images.png") == red
    again = REPRODUCTIONS["cifar10-images"].tasks(runs)[1]
    write_run(again, {"fid": 31.0, "f8": 0.9, "f1_8": 0.9})  # made anew, its grid of samples is elsewhere
    reproduce("cifar10-images", runs=runs, results=runs, device="cpu", budget=0)
    assert red_pixels(runs / "cifar10-images.png") == pytest.approx(red * 4 / 5, rel=0.01)


def red_pixels(path: Path) -> int:
    return sum(n for n, colour in Image.open(path).convert("RGB").getcolors(2**24) if colour == (250, 0, 0))


def test_the_page_follows_the_results(counted, tmp_path):
    results = tmp_path / "results"
    assert page_with(results).count("**Not run yet.**") == len(REPRODUCTIONS)
    reproduction = REPRODUCTIONS["modes"]
    summary = summarise(reproduction, reproduction.tasks(counted), counted, {}, quick=False)
    results.mkdir()
    texts = []
    for figure in (0.031, 0.035):
        summary["rows"][0]["figures"]["kl"] = [figure, 0.001]
        (results / "modes.json").write_text(json.dumps(summary))
        texts.append(page_with(results))
    assert "0.031 ± 0.001" in texts[0] and "0.035 ± 0.001" in texts[1]
    assert "Not finished:" in texts[0]


def test_the_page_names_runs_whose_settings_have_changed_since(counted, tmp_path):
    results = tmp_path / "results"
    summary = reproduce("modes", runs=counted, results=results, device="cpu", budget=0).summary
    assert "changed since" not in page_with(results)
    first, second, *_ = summary["runs"]
    first["settings"]["lr_energy"] *= 2
    second["iterations"] -= 1
    (results / "modes.json").write_text(json.dumps(summary))
    listed = page_with(results).partition("changed since")[2]
    assert f"- {first['run']}: lr_energy\n- {second['run']}: steps\n\n" in listed


def test_docs_reproduction_says_what_the_results_say():
    written = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert written == page(ROOT / "results", ROOT / "docs"), "run `ebmbounds reproduce page`"
