"""The page: charts, tables and pictures of runs, put into one HTML file that needs nothing else."""

import json
from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ebmbounds.report import charts
from ebmbounds.report.compare import Group, figure_tables, groups
from ebmbounds.report.pictures import film
from ebmbounds.report.record import Record

PICTURES = 1_500_000
"""Characters that the pictures of all runs may take together."""


def page(records: Sequence[Record], title: str = "") -> str:
    """The HTML of a report on these runs."""
    found = groups(records)
    names = distinct_names(records)
    by_name = list(zip(names, records, strict=True))
    energies = [
        chart
        for name, record in by_name
        for chart in (charts.energy_chart(name, record.energies), charts.roc_chart(name, record.energies))
        if chart is not None
    ]
    films = [(name, film(record.frames, PICTURES // len(records))) for name, record in by_name]
    environment = Environment(
        loader=PackageLoader("ebmbounds.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html").render(
        title=title or (names[0] if len(names) == 1 else f"{len(records)} runs of {len(found)} experiments"),
        groups=found,
        tables=figure_tables(found),
        curves=[
            (dataset, members, charts.curves(members)) for dataset, members in by_dataset(found) if logged(members)
        ],
        colour_of=charts.colour_of,
        densities=[charts.density_chart(name, record.density) for name, record in by_name if record.density],
        energies=energies,
        films=[(name, frames) for name, frames in films if frames],
        runs=by_name,
        as_json=lambda value: json.dumps(value, indent=2),
        plotly=Markup(get_plotlyjs()),
    )


def by_dataset(found: Sequence[Group]) -> list[tuple[str, list[Group]]]:
    names = dict.fromkeys(group.dataset for group in found)
    return [(name, [group for group in found if group.dataset == name]) for name in names]


def logged(members: Sequence[Group]) -> bool:
    return any(record.log for group in members for record in group.records)


def distinct_names(records: Sequence[Record]) -> list[str]:
    """The names of the run folders; with their parents where two have the same."""
    names = [record.name for record in records]
    return [
        name if names.count(name) == 1 else "/".join(record.run.path.resolve().parts[-2:])
        for name, record in zip(names, records, strict=True)
    ]
