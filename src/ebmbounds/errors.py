"""The one exception that is the user's to mend, and the sentence that suggests how."""

from collections.abc import Iterable
from difflib import get_close_matches


class BadInput(ValueError):
    """Input that cannot be used. The message names the value and the remedy; the command line prints it
    alone and exits with code 2."""

    def __init__(self, sentence: str) -> None:
        # Names in it may be a stranger's: no line breaks, and nothing that steers a terminal.
        super().__init__("".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in sentence))


def unknown(kind: str, value: str, known: Iterable[str]) -> BadInput:
    """The error for a name that is not in a table, with the closest name as the suggestion."""
    names = sorted(known)
    close = get_close_matches(value, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of: {', '.join(names)}."
    return BadInput(f"unknown {kind} {value!r}: {hint}")
