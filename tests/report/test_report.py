"""The page as a file: what it holds, what it weighs, and that nothing a run folder says becomes more than text."""

import json
import shlex
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from ebmbounds.cli import parse
from ebmbounds.data.toy import TOYS
from ebmbounds.errors import BadInput
from ebmbounds.evaluated import DensityMap
from ebmbounds.experiments import experiment, from_config
from ebmbounds.launch import RUN_KEYS
from ebmbounds.metrics.ood import detection
from ebmbounds.metrics.toy import normalise
from ebmbounds.noise import noise
from ebmbounds.report import LARGEST, Record, write_report
from ebmbounds.report.charts import MOST_POINTS, curves, energy_chart, roc_chart, thinned
from ebmbounds.report.compare import figure_tables, groups
from ebmbounds.report.pictures import film

HOSTILE = "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"


class Loads(HTMLParser):
    """The addresses that a page loads something from, and its tags."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.tags = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for key, value in attributes if key in ("src", "href", "srcset", "data", "action")]


@pytest.fixture
def compared(make_run):
    """Two seeds of one experiment, and one of another."""
    return [
        make_run("a0", seed=0, figures={"nll": 1.0, "modes": 20, "entropy": {"exact": 0.5}}),
        make_run("a1", seed=1, figures={"nll": 2.0, "modes": 22, "entropy": {"exact": 0.5}}),
        make_run(
            "b0", "25gaussians/wgan-0gp@quick", figures={"nll": 1.2, "modes": 25, "kid": "not measured: no network"}
        ),
    ]


def test_a_page_loads_nothing_and_is_small(compared, tmp_path):
    write_report(compared, tmp_path / "page.html")
    content = (tmp_path / "page.html").read_bytes()
    page = Loads(content.decode())
    assert len(content) < LARGEST
    assert page.addresses and all(each.startswith(("data:", "#")) for each in page.addresses)
    assert page.tags.count("img") == 6 and b'alt="a0 at iteration 1000"' in content


def test_what_a_run_says_stays_text(make_run, tmp_path):
    run = make_run(f"run {HOSTILE.replace('/', '')}", figures={"nll": 1.0, HOSTILE: 2.0})
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"source": HOSTILE, "machine": HOSTILE}))
    with (run / "log.jsonl").open("a") as log:
        log.write(json.dumps({"step": 1100, "ms": 1.0, HOSTILE: 1.0}) + "\n")
    write_report([run], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert HOSTILE not in text and HOSTILE.replace("/", "") not in text
    assert all(each.startswith(("data:", "#")) for each in Loads(text).addresses)


@pytest.mark.parametrize("figures", [None, {}, {"nll": float("nan")}, {"nll": True}])
def test_a_run_that_has_not_got_far_has_a_page(make_run, tmp_path, figures):
    run = make_run("early", figures=figures)
    (run / "log.jsonl").unlink()
    write_report([run], tmp_path / "page.html")
    assert "ebmbounds train" in (tmp_path / "page.html").read_text()


def test_the_table_has_means_spreads_and_the_best(compared):
    (table,) = figure_tables(groups([Record.open(run) for run in compared]))
    rows = {row.name: row for row in table.rows}
    assert [cell.text for cell in rows["nll"].cells] == ["1.5 ± 0.71", "1.2"]
    assert [cell.best for cell in rows["nll"].cells] == [False, True]
    assert [cell.best for cell in rows["modes"].cells] == [False, True]
    assert not any(cell.best for cell in rows["entropy.exact"].cells)
    assert [cell.text for cell in rows["kid"].cells] == ["", "not measured"]


@pytest.mark.parametrize(("protocol", "fid"), [("samples10k-test", "28.63 ± 0.29"), ("samples10k-test, reduced", "")])
def test_the_papers_value_stands_beside_ours_where_they_compare(make_run, protocol, fid):
    run = make_run("cifar", "cifar10/ebm-bb@quick", figures={"fid": 30.0, "ood": {"svhn": {"auroc": 0.9}}})
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps(metrics | {"protocol": {"fid": {"protocol": protocol}}}))
    (table,) = figure_tables(groups([Record.open(run)]))
    assert {row.name: row.cells[0].paper for row in table.rows} == {"fid": fid, "ood.svhn.auroc": "0.88"}


def test_runs_of_one_experiment_are_told_apart_by_what_differs(make_run):
    runs = [
        make_run("a", batch_size=16, log_every=7),
        make_run("b", batch_size=32),
        make_run("c", batch_size=32, seed=1),
    ]
    found = groups([Record.open(run) for run in runs])
    assert [group.label for group in found] == [f"25gaussians/ebm-bb@quick batch_size={n}" for n in (16, 32)]
    assert [len(group.records) for group in found] == [1, 2]


@pytest.mark.parametrize("overrides", [{}, {"batch_size": 7, "deterministic": True, "lr_energy": 1e-5}])
@pytest.mark.parametrize("name", ["25gaussians/ebm-bb", "cifar10/wgan-0gp@quick"])
def test_the_command_repeats_the_run(make_run, name, overrides):
    record = Record.open(make_run("run", name, seed=3, **overrides))
    program, train, named, *settings, seed, number = shlex.split(record.command)
    assert (program, train, seed, number) == ("ebmbounds", "train", "--seed", "3")
    config = {key: value for key, value in record.config.items() if key not in RUN_KEYS}
    assert experiment(named, parse(settings)) == from_config(config)


@pytest.mark.parametrize("budget", [10, 5_000, 10**9])
def test_a_film_ends_with_the_last_picture_within_its_budget(make_run, budget):
    frames = film(Record.open(make_run("run")).frames, budget)
    assert frames[-1].iteration == 1000 and [f.iteration for f in frames] == sorted(f.iteration for f in frames)
    assert len(frames) == 1 or sum(len(frame.address) for frame in frames) <= budget


def test_curves_of_seeds_are_their_mean_with_a_band(compared):
    charts = {chart.title: chart for chart in curves(groups([Record.open(run) for run in compared]))}
    loss = charts["Loss of the energy"].figure
    mean = next(trace for trace in loss.data if trace.name and "mean of 2 seeds" in trace.name)
    np.testing.assert_allclose(mean.y, 0.5 + np.arange(1, 11) / 10, rtol=1e-6)
    band = next(trace for trace in loss.data if trace.fill)
    assert max(band.y) == pytest.approx(1.5 + 0.5**0.5) and {trace.meta for trace in loss.data} == {0, 1}


def test_thinning_keeps_the_mean():
    x = np.random.default_rng(0).normal(size=10 * MOST_POINTS)
    (thin,) = thinned(x)
    assert len(thin) == MOST_POINTS and thin.mean() == pytest.approx(x.mean(), abs=1e-6)


def test_energy_charts_agree_with_the_metrics(compared):
    energies = Record.open(compared[0]).energies
    histogram = energy_chart("run", energies).figure.data[0]
    assert sum(histogram.y) * (histogram.x[1] - histogram.x[0]) == pytest.approx(1, abs=0.02)
    auroc = detection(energies["test"], energies["other"]).auroc
    assert f"other {auroc:.3f}" in roc_chart("run", energies).alternative


@pytest.mark.parametrize("name", ["25gaussians", "checkerboard"])
def test_a_density_map_keeps_the_mass(name):
    toy = TOYS[name]
    energies = torch.cat([-toy.log_density(part) for part in toy.grid()[0].split(65_536)])
    energies = energies.reshape(toy.resolution, toy.resolution)
    points = toy.draw(noise(0), 2000)
    density = DensityMap.of(toy, energies, normalise(energies, toy).log_partition, points, points)
    cell = float(density.axis[1] - density.axis[0])
    assert len(density.axis) <= 120 and float(np.exp(density.log_density).sum()) * cell**2 == pytest.approx(1, abs=0.01)
    assert density.axis.max() + cell / 2 >= float(points.abs().max())


def test_what_is_no_run_is_refused(make_run, tmp_path):
    with pytest.raises(BadInput, match="no run folder"):
        write_report([tmp_path / "nowhere"], tmp_path / "page.html")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"estimator": "EnergyModel"}')
    with pytest.raises(BadInput, match="no run of an experiment"):
        write_report([tmp_path / "other"], tmp_path / "page.html")
    run = make_run("broken")
    (run / "pictures" / "step_0001000.png").write_bytes(b"GIF89a no picture")
    with pytest.raises(BadInput, match="no picture that can be read"):
        write_report([run], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
