"""Fetching published files: verified before they get their name, resumed where a transfer broke off."""

import hashlib
import os
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from tempfile import TemporaryDirectory

import pooch

from ebmbounds.errors import BadInput

TIMEOUT = 30  # seconds without a byte
TRIES = 2  # at each address: the second resumes a broken transfer, or starts over after a wrong checksum
MOST_UNPACKED = 2**29  # bytes; the published archives unpack to less than 200 MB


@dataclass(frozen=True)
class Remote:
    """A published file."""

    path: str
    """Where it belongs, relative to the data folder."""
    sha256: str
    addresses: tuple[str, ...]
    """The official address where it still answers, then mirrors; by HTTPS."""
    members: tuple[str, ...] = ()
    """For an archive, the files to take from it, relative to the data folder."""


def fetch_remote(remote: Remote, root: Path, *, progress: bool = False) -> None:
    """Bring a published file into the data folder `root`, its members in place of an archive.

    An archive that the user has put there is unpacked as it is.
    """
    target = root / remote.path
    if not remote.members:
        download(remote.addresses, remote.sha256, target, progress=progress)
    elif target.is_file():
        unpack(target, root, remote.members)
    else:
        download(remote.addresses, remote.sha256, target, progress=progress)
        unpack(target, root, remote.members)
        target.unlink()


def download(addresses: Sequence[str], sha256: str, target: Path, *, progress: bool = False) -> None:
    """Download `target` from the first address that gives a file with this checksum.

    Until then it is called `NAME.part`; a broken transfer leaves that, and the next call goes on from it.
    """
    part = target.with_name(target.name + ".part")
    reason = ""
    for address in (address for address in addresses for _ in range(TRIES)):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _append_rest(address, part, progress)
            if _sha256(part) == sha256:
                os.replace(part, target)
                return
            part.unlink()
            reason = f"{address}: wrong checksum"
        except OSError as error:  # the errors of HTTP among them
            reason = f"{address}: {error}"
    raise BadInput(
        f"could not download {target.name} ({reason}): try again later, or get it from {addresses[0]} on "
        f"another machine and put it at {target}."
    )


def _append_rest(address: str, part: Path, progress: bool) -> None:
    """Append to `part` what it still lacks of the file at `address`."""
    done = part.stat().st_size if part.exists() else 0
    # No Content-Encoding: it would unpack .gz files on the way, and byte ranges would count other bytes.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    get = pooch.HTTPDownloader(progressbar=progress, chunk_size=2**16, timeout=TIMEOUT, headers=headers)
    try:
        with part.open("ab") as file:
            get(address, file, None)
    except OSError as error:
        if part.exists() and part.stat().st_size == 0:
            part.unlink()
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status != 416:  # which says that nothing follows: the checksum tells whether the part is the whole
            raise


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack(archive: Path, root: Path, members: Sequence[str]) -> None:
    """Take `members` out of a .tar.gz into `root`: all of them, or nothing is written.

    An archive with a name that leads out of the folder, a link, or more than MOST_UNPACKED bytes is refused.
    """
    try:
        with TemporaryDirectory(dir=root, prefix=".unpacking-") as name:
            folder = Path(name)
            _extract(archive, folder, members)
            if missing := [member for member in members if not (folder / member).is_file()]:
                raise BadInput(f"the archive {archive} has no {', '.join(missing)}: download it again.")
            for member in members:
                (root / member).parent.mkdir(parents=True, exist_ok=True)
                os.replace(folder / member, root / member)
    except BadInput:
        raise
    except (OSError, EOFError, ValueError, zlib.error, tarfile.TarError) as error:
        raise BadInput(f"cannot unpack {archive} ({error}): download it again.") from error


def _extract(archive: Path, folder: Path, members: Sequence[str]) -> None:
    size = 0
    with tarfile.open(archive, "r:gz") as tar:
        for entry in tar:
            path = PurePosixPath(entry.name)
            if path.is_absolute() or ".." in path.parts or not (entry.isreg() or entry.isdir()):
                raise BadInput(f"refused the archive {archive}: its entry {entry.name!r} is a link or leads outside.")
            size += entry.size
            if size > MOST_UNPACKED:
                raise BadInput(f"refused the archive {archive}: it unpacks to more than {MOST_UNPACKED:,} bytes.")
            if entry.name in members and (content := tar.extractfile(entry)):
                (folder / entry.name).parent.mkdir(parents=True, exist_ok=True)
                with (folder / entry.name).open("wb") as file:
                    copyfileobj(content, file)
