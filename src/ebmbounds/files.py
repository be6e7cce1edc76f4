"""Files that are whole or not there: what was written before is replaced at one stroke, or stays."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ebmbounds.errors import BadInput

MOST_JSON = 2**26
"""Bytes of a JSON file that is still read: those written here are far smaller."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` to write to, which then takes its name; nothing is left of one that failed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_through(path: Path, content: bytes) -> None:
    """Onto the disk, not only into the system's memory."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        write_through(temporary, content)


def unwritable(path: Path, error: OSError) -> BadInput:
    return BadInput(
        f"{path} cannot be written ({error.strerror or error}): make room or allow writing there, and go on with the "
        "same command (--resume for training); what was saved before is whole."
    )


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        if path.stat().st_size > MOST_JSON:
            raise BadInput(f"{path} has more than {MOST_JSON:,} bytes, which no file of this program has.")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist.") from None
    except BadInput:
        raise
    except (ValueError, RecursionError, OSError) as error:
        raise BadInput(f"{path} cannot be read as JSON ({error}).") from None
