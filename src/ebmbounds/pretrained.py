"""Pretrained models by name: `DATASET/METHOD@pretrained` is the folder `pretrained/DATASET/METHOD` of a checkout."""

from pathlib import Path

from ebmbounds.errors import BadInput, unknown
from ebmbounds.run import Run

SUFFIX = "@pretrained"
PLACES = (Path("pretrained"), Path(__file__).parents[2] / "pretrained")
"""Of the current folder, and of the checkout that this package lies in."""


def opened(run: Path | str | Run) -> Run:
    """A run folder, by its path or by the name of a pretrained model."""
    if isinstance(run, Run):
        return run
    return Run.open(folder_of(str(run)) if is_pretrained(run) else run)


def is_pretrained(run: Path | str) -> bool:
    """Whether it is the name of a pretrained model, and no folder."""
    return str(run).endswith(SUFFIX) and not Path(run).exists()


def folder_of(name: str) -> Path:
    """Where the pretrained model of that name lies."""
    known = pretrained()
    if name in known:
        return known[name]
    if known:
        raise unknown("pretrained model", name, known)
    raise BadInput(
        f"there are no pretrained weights for {name!r} here: they are in the folder `pretrained` of a checkout of the "
        "repository, so run this there, or name a run folder."
    )


def pretrained() -> dict[str, Path]:
    """The folders of the models that are at hand, by name; the first place that has one counts."""
    found: dict[str, Path] = {}
    for place in PLACES:
        for config in sorted(place.glob("*/*/config.json")):
            dataset, method = config.parts[-3:-1]
            found.setdefault(f"{dataset}/{method}{SUFFIX}", config.parent)
    return found
