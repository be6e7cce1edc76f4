"""The charts of a report, as Plotly figures. Colours are safe for the colour-blind, and never the only sign."""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from sklearn.metrics import roc_curve

from ebmbounds.evaluated import DensityMap
from ebmbounds.report.compare import Group

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
"""Okabe and Ito's, without those that vanish on white or on black."""
DASHES = ("solid", "dash", "dot", "dashdot")
MOST_POINTS = 300
"""In a line; a longer log is shown by means over equal stretches."""
BINS = 80
RANGE = 15.0
"""Nats below the highest log-density that a map shows."""


@dataclass(frozen=True)
class Chart:
    title: str
    alternative: str
    """What it shows, in words, for those who cannot see it."""
    figure: go.Figure

    @property
    def spec(self) -> dict[str, Any]:
        """Plain JSON, as Plotly's JavaScript takes it."""
        return json.loads(self.figure.to_json())


PANELS = (
    ("Lower bound and negative log-likelihood, nats", ("lower_bound", "nll")),
    ("Upper bound, nats", ("upper_bound",)),
    ("Loss of the energy", ("loss_energy",)),
    ("Loss of the generator", ("loss_generator",)),
    ("Energy of data and of generated samples", ("energy_data", "energy_generated")),
    ("Entropy of the generator, nats", ("entropy",)),
    (
        "Entropy by each estimator, nats",
        ("entropy_exact", "entropy_bound_exact_s1", "entropy_bound_few_steps", "entropy_hutchinson"),
    ),
    ("Smallest singular value s1", ("s1",)),
    ("Gradient penalty", ("penalty",)),
    ("Time of a step, milliseconds", ("ms",)),
)
"""What of the log is shown together; all else gets a panel of its own."""


def curves(groups: Sequence[Group]) -> list[Chart]:
    """Every figure of the logs over iterations: a colour for each experiment, its seeds as mean and spread. A trace's
    `meta` is the number of its experiment, by which the page's one legend shows and hides it."""
    logged = dict.fromkeys(key for g in groups for r in g.records for line in r.log for key in line if key != "step")
    known = {key for _, keys in PANELS for key in keys}
    charts = []
    for title, keys in [*PANELS, *((key, (key,)) for key in logged if key not in known)]:
        taken = [key for key in keys if key in logged]
        if not taken:
            continue
        figure = base_figure(xaxis_title="iteration", hovermode="x unified", showlegend=len(taken) > 1)
        for number, group in enumerate(groups):
            for dash, key in zip(DASHES, taken, strict=False):
                add_curve(figure, group, number, key, dash, group.label if len(taken) == 1 else f"{group.label}: {key}")
        for dash, key in zip(DASHES, taken, strict=False) if len(taken) > 1 else ():
            line = {"color": "#888888", "dash": dash}
            figure.add_scatter(x=[None], y=[None], mode="lines", line=line, name=key, legendgroup=key)
        lines = "; ".join(dict.fromkeys(html.unescape(trace.name) for trace in figure.data if trace.name))
        charts.append(Chart(title, f"{title} over iterations. Lines: {lines}.", figure))
    return charts


def colour_of(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def add_curve(figure: go.Figure, group: Group, number: int, key: str, dash: str, name: str) -> None:
    found = [(steps, values) for record in group.records for steps, values in [record.curve(key)] if steps]
    if not found:
        return
    style: dict[str, Any] = {"legendgroup": key, "showlegend": False, "meta": number}
    shared = sorted(set.intersection(*(set(steps) for steps, _ in found)))
    if len(found) > 1 and shared:
        tables = [dict(zip(steps, values, strict=True)) for steps, values in found]
        stacked = np.array([[table[step] for step in shared] for table in tables])
        steps, mean, std = thinned(np.array(shared), stacked.mean(0), stacked.std(0, ddof=1))
        figure.add_scatter(
            x=np.concatenate([steps, steps[::-1]]),
            y=np.concatenate([mean + std, (mean - std)[::-1]]),
            fill="toself",
            fillcolor=colour_of(number),
            opacity=0.2,
            line={"width": 0},
            hoverinfo="skip",
            **style,
        )
        name = f"{name}, mean of {len(found)} seeds"
        lines = [(steps, mean)]
    else:
        lines = [(x, y) for steps, values in found for x, y in [thinned(np.array(steps), np.array(values, float))]]
    for steps, values in lines:
        figure.add_scatter(
            x=steps,
            y=values,
            name=escaped(name),
            mode="lines+markers" if len(steps) < 15 else "lines",
            line={"color": colour_of(number), "dash": dash, "width": 2},
            marker={"size": 5},
            **style,
        )


def thinned(*series: NDArray[Any]) -> list[NDArray[np.float32]]:
    """Means over equal stretches, so that no more than MOST_POINTS are left."""
    parts = min(MOST_POINTS, len(series[0]))
    return [np.array([part.mean() for part in np.array_split(each, parts)], np.float32) for each in series]


def density_chart(name: str, density: DensityMap) -> Chart:
    """The log-density as a map, with points of the data and of the generator over it."""
    high = float(density.log_density.max())
    low = max(high - RANGE, float(density.log_density.min()))
    figure = base_figure(
        xaxis={"constrain": "domain", "showgrid": False, "zeroline": False},
        yaxis={"scaleanchor": "x", "constrain": "domain", "showgrid": False, "zeroline": False},
        height=350,
        legend={"y": -0.12},
    )
    figure.add_heatmap(
        x=density.axis,
        y=density.axis,
        z=density.log_density.T,
        zmin=low,
        zmax=high,
        colorscale="Viridis",
        colorbar={"title": {"text": "nats", "side": "right"}, "thickness": 12},
        hovertemplate="x %{x:.3f}, y %{y:.3f}<br>log-density %{z:.2f} nats<extra></extra>",
    )
    marks = {"data": ("#ffffff", "circle"), "samples": ("#d55e00", "x")}
    for kind, (colour, symbol) in marks.items():
        points = getattr(density, kind)
        figure.add_scatter(
            x=points[:, 0],
            y=points[:, 1],
            mode="markers",
            name=kind,
            visible=True if kind == "samples" else "legendonly",
            marker={
                "color": colour,
                "symbol": symbol,
                "size": 3,
                "opacity": 0.8,
                "line": {"width": 0.5, "color": "#333333"},
            },
            hovertemplate=f"{kind} %{{x:.3f}}, %{{y:.3f}}<extra></extra>",
        )
    limit = float(density.axis[-1] + (density.axis[1] - density.axis[0]) / 2) if len(density.axis) > 1 else 1.0
    figure.update_xaxes(range=[-limit, limit])
    figure.update_yaxes(range=[-limit, limit])
    return Chart(
        name,
        f"Map of the log-density of {name} at temperature 1, coloured from {low:.2f} to {high:.2f} nats, with "
        f"{len(density.samples)} samples of the generator and, on a click, {len(density.data)} points of data.",
        figure,
    )


def energy_chart(name: str, energies: Mapping[str, NDArray[np.floating]]) -> Chart | None:
    """Histograms of the energies of each set on one axis, from the 0.1% to the 99.9% quantile of each."""
    finite = {key: each[np.isfinite(each)].astype(np.float64) for key, each in energies.items()}
    finite = {key: each for key, each in finite.items() if len(each)}
    if not finite:
        return None
    ends = np.array([np.quantile(each, (0.001, 0.999)) for each in finite.values()])
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    edges = np.linspace(low, high, BINS + 1) if low < high else np.linspace(low - 1, low + 1, BINS + 1)
    figure = base_figure(xaxis_title="energy (the lower, the more likely)", yaxis_title="share per unit of energy")
    for colour, dash, (key, values) in zip(_cycle(COLOURS), _cycle(DASHES), finite.items(), strict=False):
        counts, _ = np.histogram(values, edges)
        figure.add_scatter(
            x=((edges[1:] + edges[:-1]) / 2).astype(np.float32),
            y=(counts / len(values) / (edges[1] - edges[0])).astype(np.float32),
            name=f"{escaped(key)}: mean {values.mean():.4g}",
            line={"color": colour, "dash": dash, "shape": "hvh"},
        )
    means = ", ".join(f"{key} {values.mean():.4g}" for key, values in finite.items())
    return Chart(f"{name}: energies", f"Histograms of energies of {name}. Means: {means}.", figure)


def roc_chart(name: str, energies: Mapping[str, NDArray[np.floating]]) -> Chart | None:
    """How well the energy tells each other set from the test set: found share over falsely found share."""
    others = [key for key in energies if key not in ("train", "test", "samples")]
    if "test" not in energies or not others:
        return None
    figure = base_figure(xaxis_title="test images taken for others", yaxis_title="others found")
    figure.add_scatter(x=[0, 1], y=[0, 1], name="chance", line={"color": "#999999", "dash": "dot", "width": 1})
    areas = []
    for colour, dash, key in zip(COLOURS, _cycle(DASHES), others, strict=False):
        score = np.concatenate([energies["test"], energies[key]])
        if not np.isfinite(score).all():
            continue
        fpr, tpr, _ = roc_curve(np.repeat([0, 1], [len(energies["test"]), len(energies[key])]), score)
        area = float(np.trapezoid(tpr, fpr))
        areas.append(f"{key} {area:.3f}")
        x = np.linspace(0, 1, 201)
        figure.add_scatter(
            x=x.astype(np.float32),
            y=np.interp(x, fpr, tpr).astype(np.float32),
            name=f"{escaped(key)}: AUROC {area:.3f}",
            line={"color": colour, "dash": dash},
        )
    return Chart(
        f"{name}: told from the test set", f"ROC of energies of {name}. AUROC: {', '.join(areas) or 'none'}.", figure
    )


def base_figure(height: int = 320, legend: dict[str, Any] | None = None, **layout: Any) -> go.Figure:
    """Without a background of its own; the page sets the colours of text and grid, light or dark."""
    figure = go.Figure()
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 56, "r": 12, "t": 30, "b": 44},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "y": -0.3, "yanchor": "top"} | (legend or {}),
        font={"size": 12},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#999999", "activecolor": "#0072b2"},
        **layout,
    )
    return figure


def escaped(name: str) -> str:
    """Plotly reads some HTML in names."""
    return html.escape(name)


def _cycle(values: Sequence[str]) -> Iterable[str]:
    while True:
        yield from values
