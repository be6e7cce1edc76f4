"""The licences of everything that the set-up installs, as its own metadata states them: a Markdown page on standard
output. Run it in the environment that `make setup` made."""

import re
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def licence(name: str) -> str:
    """The licence expression, else the classifiers, else the first line of the free text."""
    held = metadata(name)
    classified = [c.rpartition(" :: ")[2] for c in held.get_all("Classifier", []) if c.startswith("License :: ")]
    free = (held.get("License") or "").strip().splitlines()
    return held.get("License-Expression") or ", ".join(classified) or (free[0] if free else "not stated")


def main() -> None:
    rows = []
    for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE):
        try:
            rows.append(f"| {name} | {version} | {licence(name)} |")
        except PackageNotFoundError:
            rows.append(f"| {name} | {version} | (not installed here) |")
    head = "# Licences of the dependencies\n\nWritten by `make licences`, from the packages' own metadata.\n"
    sys.stdout.write("\n".join([head, "| package | version | licence |", "|---|---|---|", *rows]) + "\n")


if __name__ == "__main__":
    main()
