"""The command line. It parses and prints; what it does is in the library."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from ebmbounds.cli import data, models, pages, training  # each adds its commands to the app
from ebmbounds.cli.base import app, parse
from ebmbounds.distributed import Lost
from ebmbounds.errors import BadInput
from ebmbounds.launch import Interrupted
from ebmbounds.trainer import Diverged


@contextmanager
def one_sentence() -> Iterator[None]:
    """Errors that the user can mend, as one sentence and exit code 2; interruptions and failed training by theirs."""
    try:
        yield
    except BadInput as error:
        fail(error, 2)
    except (Diverged, Lost) as error:
        fail(error, 1)
    except Interrupted as error:
        fail(error, 128 + error.signal)


def fail(error: Exception, code: int) -> None:
    typer.echo(f"ebmbounds: {error}", err=True)
    raise SystemExit(code)


def main() -> None:
    with one_sentence():
        app()


__all__ = ["app", "data", "main", "models", "pages", "parse", "training"]
