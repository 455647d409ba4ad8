"""The header of a GGUF file: the few facts that a listing of models needs, read without loading it.

GGUF (versions 2 and 3, little-endian): a magic, counts, then keys with values of 13 types. The tokenizer's
arrays come before some of the keys wanted here, so they are walked over; what is read is bounded.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

MAX_HEADER = 64 * 2**20
"""Bytes that are read at most. The largest vocabularies (262,144 tokens) take about 16 MiB."""

MAX_KEYS = 65_536
MAX_STRINGS = 4_000_000
"""Strings in all arrays together; bounds the time that a hostile file can take."""

_MAGIC = b"GGUF"
_CHUNK = 2**18
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")

_STRING, _ARRAY = 8, 9
_SCALARS = {
    number: struct.Struct("<" + code)
    for number, code in {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"}.items()
} | {10: _UINT64, 11: struct.Struct("<q"), 12: struct.Struct("<d")}

# By llama.cpp's number of the file type (`general.file_type`).
_FILE_TYPES = {
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    7: "q8_0",
    8: "q5_0",
    9: "q5_1",
    10: "q2_k",
    11: "q3_k_s",
    12: "q3_k_m",
    13: "q3_k_l",
    14: "q4_k_s",
    15: "q4_k_m",
    16: "q5_k_s",
    17: "q5_k_m",
    18: "q6_k",
    19: "iq2_xxs",
    20: "iq2_xs",
    21: "q2_k_s",
    22: "iq3_xs",
    23: "iq3_xxs",
    24: "iq1_s",
    25: "iq4_nl",
    26: "iq3_s",
    27: "iq3_m",
    28: "iq2_s",
    29: "iq2_m",
    30: "iq4_xs",
    31: "iq1_m",
    32: "bf16",
    36: "tq1_0",
    37: "tq2_0",
    38: "mxfp4",
}


@dataclass(frozen=True)
class Header:
    """What a header says; None where it says nothing. `context_length` in tokens, as trained."""

    architecture: str
    context_length: int | None
    quantization: str | None
    chat_template: str | None


def read(path: Path) -> Header:
    """The header of a file.

    Raises `OSError` where the file cannot be read, and `ValueError`, which never names the path, where it is no
    GGUF, is cut short, or asks for more than the bounds above.
    """
    with path.open("rb") as file:
        reader = _Reader(file)
        if reader.take(len(_MAGIC)) != _MAGIC:
            raise ValueError("This is not a GGUF file.")
        version = reader.scalar(_UINT32)
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version} is not supported; versions 2 and 3 are.")
        reader.scalar(_UINT64)  # tensors
        keys = reader.scalar(_UINT64)
        if keys > MAX_KEYS:
            raise ValueError(f"The GGUF header claims {keys} keys; at most {MAX_KEYS} are read.")
        return _header(reader, keys)


def _header(reader: _Reader, keys: int) -> Header:
    values: dict[str, Any] = {}
    for _ in range(keys):
        key = reader.string()
        value = reader.value()
        values[key] = value
        architecture = values.get("general.architecture")
        wanted = (
            f"{architecture}.context_length",
            "general.file_type",
            "tokenizer.chat_template",
        )
        if all(name in values for name in wanted):
            break
    architecture = values.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ValueError("The GGUF header does not name the model's architecture.")
    context_length = values.get(f"{architecture}.context_length")
    file_type = values.get("general.file_type")
    template = values.get("tokenizer.chat_template")
    return Header(
        architecture=architecture,
        context_length=context_length if _is_positive(context_length) else None,
        quantization=_FILE_TYPES.get(file_type) if isinstance(file_type, int) else None,
        chat_template=template if isinstance(template, str) else None,
    )


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and value > 0


class _Reader:
    """Reads forward through a file in chunks; keeps one chunk."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._chunk = b""
        self._at = 0
        self._read = 0
        self._strings = 0

    def take(self, size: int) -> bytes:
        if self._at + size > len(self._chunk):
            self._more(size)
        start, self._at = self._at, self._at + size
        return self._chunk[start : self._at]

    def scalar(self, kind: struct.Struct) -> Any:
        return kind.unpack(self.take(kind.size))[0]

    def string(self) -> str:
        return self.take(self.scalar(_UINT64)).decode("utf-8", errors="replace")

    def value(self) -> Any:
        """The next value; None for an array, which is walked over."""
        kind = self.scalar(_UINT32)
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._skip_array()
        return self.scalar(_scalar(kind))

    def _skip_array(self) -> None:
        kind = self.scalar(_UINT32)
        count = self.scalar(_UINT64)
        if kind != _STRING:
            self._skip(count * _scalar(kind).size)
            return
        self._strings += count
        if self._strings > MAX_STRINGS:
            raise ValueError(f"The GGUF header claims over {MAX_STRINGS} strings.")
        for _ in range(count):
            self._skip(self.scalar(_UINT64))

    def _skip(self, size: int) -> None:
        if self._at + size > len(self._chunk):
            self._more(size)
        self._at += size

    def _more(self, size: int) -> None:
        """Have `size` bytes at hand."""
        rest = self._chunk[self._at :]
        missing = size - len(rest)
        if self._read + missing > MAX_HEADER:
            raise ValueError(f"The GGUF header claims more than {MAX_HEADER} bytes.")
        chunk = self._file.read(max(missing, _CHUNK))
        if len(chunk) < missing:
            raise ValueError("The GGUF header is cut short; the file is not whole.")
        self._read += len(chunk)
        self._chunk, self._at = rest + chunk, 0


def _scalar(kind: int) -> struct.Struct:
    if kind not in _SCALARS:
        raise ValueError(f"The GGUF header has a value of the unknown type {kind}.")
    return _SCALARS[kind]
