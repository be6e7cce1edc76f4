"""Write the sha256 of every published file of each pinned version beside its pin, so that the set-up installs nothing
else: python tools/hash_constraints.py [WHEEL...]

Pins are the lines NAME==VERSION that are there. Hashes come from the index that pip uses, and from local wheels
(builds that it does not have), which are added to those of their name. Run it with any Python that has pip."""

import hashlib
import html
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pip._internal.models.index import PyPI

ROOT = Path(__file__).parents[1]
FILES = [
    ROOT / "constraints.txt",
    ROOT / "constraints-cpu.txt",
    ROOT / "constraints-cuda.txt",
    ROOT / "tests/fuzz/requirements.txt",
]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def published(pin: str) -> set[str]:
    """The hashes of all files of that version that the index lists."""
    name, version = pin.split()[0].split("==")
    with urllib.request.urlopen(f"{PyPI.simple_url}/{normal(name)}/", timeout=60) as page:
        links = re.findall(r'href="([^"]+)"', html.unescape(page.read().decode()))
    release = rf"{name_pattern(name)}-{re.escape(version)}"
    found = set()
    for link in links:
        file, _, digest = link.rpartition("/")[2].partition("#sha256=")
        stem = file.removesuffix(".metadata")
        if digest and re.fullmatch(rf"{release}(?:\.0)*(-.*\.whl|\.tar\.gz|\.zip)", stem, re.IGNORECASE):
            found.add(digest)
    return found


def name_pattern(name: str) -> str:
    return "[-_.]+".join(map(re.escape, re.split(r"[-_.]+", name)))


def add_hashes(file: Path, wheels: list[Path]) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    remarks = [line for line in lines if line.startswith("#")]
    pins = [line.split("--hash")[0].rstrip(" \\") for line in lines if re.match(r"[\w.-]+==", line)]  # markers stay
    with ThreadPoolExecutor(8) as pool:
        hashes = dict(zip(pins, pool.map(published, pins), strict=True))
    for pin in pins:
        mine = [wheel for wheel in wheels if normal(wheel.name.split("-")[0]) == normal(pin.split("==")[0])]
        hashes[pin] |= {hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in mine}
    if missing := [pin for pin, found in hashes.items() if not found]:
        raise SystemExit(f"the index has no files of {', '.join(missing)}")
    entries = [" \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in sorted(hashes[pin]))]) for pin in pins]
    file.write_text("\n".join([*remarks, *entries]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for file in FILES:
        add_hashes(file, [Path(name) for name in sys.argv[1:]])
