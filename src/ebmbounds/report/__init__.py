"""Run folders as one page to look at: self-contained, offline, for one run or for many side by side.

from ebmbounds.report import write_report
write_report(["runs/one", "runs/other"], "report.html")
"""

from collections.abc import Sequence
from pathlib import Path

from ebmbounds.errors import BadInput
from ebmbounds.report.record import Record
from ebmbounds.run import write_atomically

LARGEST = 8_000_000
"""Bytes of a page."""


def write_report(runs: Sequence[Path | str], path: Path | str, title: str = "") -> None:
    """Write the page of these run folders to `path`."""
    try:
        from ebmbounds.report.page import page
    except ModuleNotFoundError as missing:
        raise BadInput(
            f"a report needs the package {missing.name}: install it with pip install 'ebmbounds[report]'."
        ) from None
    if not runs:
        raise BadInput("name at least one run folder.")
    content = page([Record.open(run) for run in runs], title).encode()
    if len(content) > LARGEST:
        raise BadInput(f"the page of {len(runs)} runs would have {len(content) / 1e6:.0f} MB: name fewer runs.")
    write_atomically(Path(path), content)


__all__ = ["LARGEST", "Record", "write_report"]
