"""The catalog: every run that it names exists, and every figure of the paper has its place."""

import pytest

from ebmbounds.errors import BadInput
from ebmbounds.objectives import METHODS
from ebmbounds.reproduce.catalog import REPRODUCTIONS, method_of, of_methods, paper_values
from ebmbounds.reproduce.summary import lookup


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_every_run_has_settings_and_a_folder_of_its_own(name, tmp_path):
    reproduction = REPRODUCTIONS[name]
    full, quick = reproduction.tasks(tmp_path), reproduction.tasks(tmp_path, quick=True)
    assert len({task.folder for task in [*full, *quick]}) == len(full) + len(quick)
    longest = max(task.experiment.schedule.steps for task in quick)
    assert longest <= 500 and longest < min(task.experiment.schedule.steps for task in full)
    assert {task.name.partition("@")[0] for task in full} == {task.name.removesuffix("@quick") for task in quick}
    assert len(full) == reproduction.seeds * len(reproduction.experiments)
    assert len(reproduction.tasks(tmp_path, seeds=5)) == 5 * len(reproduction.experiments)


def test_tables_of_one_family_share_their_runs(tmp_path):
    by_name = {name: {task.folder for task in REPRODUCTIONS[name].tasks(tmp_path)} for name in REPRODUCTIONS}
    assert by_name["runtime"] < by_name["cifar10-images"]
    assert len(by_name["cifar10-ood"] - by_name["cifar10-images"]) == 1
    assert not by_name["modes"] & by_name["entropy"]


@pytest.mark.parametrize("name", paper_values())
def test_the_papers_figures_are_of_methods_and_columns_that_there_are(name):
    columns = {column.key for column in REPRODUCTIONS[name].columns}
    for method, figures in paper_values()[name].items():
        assert method in METHODS
        given = {key for key in columns if lookup(figures, key) is not None}
        assert given and all(1 <= len(lookup(figures, key)) <= 2 for key in given)
        assert len(given) == count_leaves(figures)


def count_leaves(tree) -> int:
    return sum(map(count_leaves, tree.values())) if isinstance(tree, dict) else 1


def test_methods_are_chosen_by_name(tmp_path):
    tasks = REPRODUCTIONS["modes"].tasks(tmp_path)
    assert of_methods(tasks, []) == tasks
    assert {method_of(task.name) for task in of_methods(tasks, ["ebm-bb", "wgan-0gp"])} == {"ebm-bb", "wgan-0gp"}
    with pytest.raises(BadInput, match="did you mean 'ebm-bb'"):
        of_methods(tasks, ["ebm-b"])
    with pytest.raises(BadInput, match="no run of this reproduction"):
        of_methods(REPRODUCTIONS["entropy"].tasks(tmp_path), ["wgan-0gp"])
