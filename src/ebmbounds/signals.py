"""SIGINT and SIGTERM as something that a loop asks about, or, where leaving loses nothing, as an exception."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stopped(BaseException):
    """A signal came where leaving at once loses nothing. No Exception: evaluations may catch those."""


class Interruptions:
    """Notes the first SIGINT or SIGTERM; calling it gives its number, if any."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.leave = False

    def __call__(self) -> int | None:
        return self.number

    def note(self, number: int) -> None:
        self.number = number
        if self.leave:
            raise Stopped

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal end this block by raising `Stopped`."""
        self.leave = True
        try:
            if self.number is not None:
                raise Stopped
            yield
        finally:
            self.leave = False


@contextmanager
def interruptions() -> Iterator[Interruptions]:
    """Catches SIGINT and SIGTERM. A second one is not caught."""
    received = Interruptions()
    previous: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def note(number: int, _: Any) -> None:
        restore()
        received.note(number)

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, note)
    except ValueError:  # not in the main thread: whoever runs the loop there handles signals
        pass
    try:
        yield received
    finally:
        restore()
