"""The pickled batches of CIFAR-10 and CIFAR-100, read by an unpickler that cannot run code.

The published files hold a dictionary of strings, lists of integers and one numpy array. The unpickler here
knows only the opcodes for those, and puts a stand-in in the place of each global that they name: even numpy's
own `dtype` and `ndarray` can be led by a hostile pickle to touch memory that is not theirs.
"""

import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ebmbounds.errors import BadInput


def read_batch(path: Path, label_key: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3, 32, 32) uint8 and integer labels (N,) of one batch file, its labels under `label_key`."""
    try:
        batch = _Unpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except Exception as error:  # a corrupt pickle fails in whatever way its bytes lead to
        reason = f"{type(error).__name__}: {error}"
        raise BadInput(f"cannot read {path} as a CIFAR batch ({reason}): download it again.") from error
    held = batch if isinstance(batch, dict) else {}
    held = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in held.items()}
    images, labels = (
        value.array if isinstance(value, _Array) else value for value in (held.get("data"), held.get(label_key))
    )
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (3072,):
        raise BadInput(f"{path} has no array 'data' of shape (N, 3072) and type uint8: download it again.")
    if isinstance(labels, list) and all(type(label) is int for label in labels):
        labels = np.array(labels, dtype=np.int64)
    if not isinstance(labels, np.ndarray) or labels.ndim != 1:
        raise BadInput(f"{path} has no list of integers {label_key!r}: is it a file of another data set?")
    return images.reshape(-1, 3, 32, 32), labels


class _Dtype:
    """In the place of `numpy.dtype`: the plain numbers that pixels and labels are made of."""

    def __init__(self, code: str, *_flags: object) -> None:
        if code not in ("u1", "i4", "i8"):
            raise pickle.UnpicklingError(f"arrays of {code!r} are not admitted")
        self.dtype = np.dtype(code)

    def fill(self, state: tuple) -> None:
        self.dtype = self.dtype.newbyteorder(">" if state[1] == ">" else "<")


class _Array:
    """In the place of `numpy.ndarray`: empty until its state gives a shape and bytes."""

    array: np.ndarray

    def fill(self, state: tuple) -> None:
        _version, shape, kind, fortran, raw = state
        raw = raw.encode("latin1") if isinstance(raw, str) else raw  # Python 2 wrote bytes as strings
        self.array = np.frombuffer(raw, kind.dtype).reshape(shape, order="F" if fortran else "C")


def _reconstruct(*_args: object) -> _Array:
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the encoding {encoding!r} is not admitted")
    return text.encode("latin1")


_GLOBALS = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,  # its name since numpy 2
    ("_codecs", "encode"): _encode,  # protocol 2 writes bytes as encode(text, "latin1")
}

_OPCODES = """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2
    BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINUNICODE SHORT_BINUNICODE
    EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEMS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
    BINPUT LONG_BINPUT BINGET LONG_BINGET MEMOIZE GLOBAL STACK_GLOBAL REDUCE BUILD
"""

# The unpickler written in Python, since its table of opcodes can be cut down and its memo is a dictionary: in
# the one written in C, five hostile bytes take gigabytes. The whole of CIFAR-10 takes it half a second.
_PythonUnpickler: Any = pickle._Unpickler  # type: ignore[attr-defined]


class _Unpickler(_PythonUnpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _GLOBALS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not admitted")
        return _GLOBALS[module, name]

    def load_build(self) -> None:
        # The usual BUILD sets attributes of whatever lies on the stack, functions included.
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Dtype | _Array):
            raise pickle.UnpicklingError("it gives a state to something that is no array")
        self.stack[-1].fill(state)

    def load_setitems(self) -> None:
        # Names only: to hash tuples within tuples, thousands deep, overflows the stack of the interpreter.
        items = self.pop_mark()
        if not all(isinstance(key, str | bytes) for key in items[::2]):
            raise pickle.UnpicklingError("it has a dictionary of something else than names")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    dispatch: ClassVar[dict] = {
        code[0]: _PythonUnpickler.dispatch[code[0]] for code in (getattr(pickle, name) for name in _OPCODES.split())
    } | {pickle.BUILD[0]: load_build, pickle.SETITEMS[0]: load_setitems}
