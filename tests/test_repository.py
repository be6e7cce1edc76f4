"""What the repository promises of itself: its commands, its package, its documents."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import ebmbounds
from ebmbounds import cli, experiments

ROOT = Path(__file__).parents[1]


def tracked_files() -> list[Path]:
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def code_of(document: str) -> str:
    """The code blocks and code spans of a Markdown document."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text_of(document), re.DOTALL))


def test_no_tracked_file_names_a_folder_of_one_machine_or_a_package_index():
    foreign = re.compile(rb"/(?:w[o]rk|r[o]ot|h[o]me|U[s]ers)/|index-[u]rl|pythonh[o]sted")
    for path in tracked_files():
        found = foreign.search(path.read_bytes())
        assert found is None, f"{path}: {found.group() if found else ''}"


@pytest.mark.parametrize(
    "file", ["constraints.txt", "constraints-cpu.txt", "constraints-cuda.txt", "tests/fuzz/requirements.txt"]
)
def test_constraints_pin_exact_versions_with_their_hashes(file):
    text = re.sub(r"^#.*\n", "", text_of(file), flags=re.MULTILINE).replace("\\\n", "")
    assert text and all(
        re.fullmatch(r"[\w.-]+==[\w.+]+( ; platform_system == \"Linux\")?( +--hash=sha256:[0-9a-f]{64})+", line)
        for line in text.splitlines()
    )


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_the_commands_in_a_document_exist(document):
    code = code_of(document)
    targets = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([\w-]+)", code)) <= targets
    commands = {command.name for command in cli.app.registered_commands} | {"data"}
    assert set(re.findall(r"^ebmbounds (\w+)", code, re.MULTILINE)) <= commands
    for name in re.findall(r"[\w]+/(?:ebm|wgan)-[\w]+(?:@\w+)?", code):
        experiments.experiment(name.removesuffix("@pretrained"))


def test_the_links_of_the_documents_lead_somewhere():
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_version_is_the_newest_of_the_changelog():
    newest = re.search(r"^## (\S+)", text_of("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None and newest.group(1) == ebmbounds.__version__


def resolve(name: str) -> Any:
    """The object of a dotted name below `ebmbounds`; fails where there is none."""
    found: Any = ebmbounds
    path = "ebmbounds"
    for part in name.split("."):
        path = f"{path}.{part}"
        if not hasattr(found, part):
            importlib.import_module(path)
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("document", ["docs/paper-map.md", "docs/deviations.md", "docs/design.md"])
def test_every_name_in_a_document_exists(document):
    modules = {path.stem for path in (ROOT / "src/ebmbounds").iterdir() if path.suffix in ("", ".py")}
    spans = re.findall(r"`([^`\n]+)`", text_of(document))
    names = [span for span in spans if re.fullmatch(r"\w+(\.\w+)+", span) and span.split(".")[0] in modules]
    assert names or document != "docs/paper-map.md"
    for name in names:
        if not name.endswith((".py", ".json", ".jsonl")):
            resolve(name)
    for span in spans:
        if span.startswith(("tests/", "benchmarks/", "examples/", "docs/", "src/")):
            file, _, test = span.partition("::")
            assert (ROOT / file).exists(), span
            assert not test or f"def {test}(" in text_of(file), span


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="hatchling (the extra dev) is not installed")
def test_the_wheel_builds_installs_and_holds_its_data(tmp_path):
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src/ebmbounds"
    kinds = ("py", "toml", "safetensors", "html", "css", "js")
    wanted = [*(path for kind in kinds for path in package.rglob(f"*.{kind}")), package / "py.typed"]
    assert {path.relative_to(ROOT / "src").as_posix() for path in wanted} <= held
    assert any(name.endswith("licenses/LICENSE") for name in held)
    assert not any(name.startswith(("tests", "docs")) for name in held)

    site = tmp_path / "site"
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel)
    script = "import ebmbounds, ebmbounds.experiments as e; print(ebmbounds.__file__); print(len(e.names()))"
    where, count = run(sys.executable, "-c", script, PYTHONPATH=str(site)).split()
    assert Path(where).is_relative_to(site) and int(count) == len(experiments.names())
