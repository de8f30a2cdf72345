"""
Java class files: replace a text constant, to direct a compiled program to another address.

Programs that are published as jars often contain an address. Constants are in a pool at the beginning of a class file,
each with its length, so another text can replace one while the rest of the file stays the same (JVM specification,
chapter 4.4).
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from typing import Final

_HEAD: Final = Struct(">IHHH")  # magic, minor, major, number of constants + 1
_LENGTH: Final = Struct(">H")
_MAGIC: Final = 0xCAFEBABE
_UTF8: Final = 1
# Bytes after the tag of every other kind; long and double take two entries of the pool.
_SIZES: Final = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4}
_SIZES_LATER: Final = {15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
_WIDE: Final = (5, 6)


def with_constants(code: bytes, texts: Mapping[str, str]) -> bytes:
    """Return the class with the keys of *texts* replaced in all text constants."""
    magic, _, _, count = _HEAD.unpack_from(code)
    assert magic == _MAGIC, "no class file"
    parts = [code[: _HEAD.size]]
    at, index = _HEAD.size, 1
    while index < count:
        tag = code[at]
        if tag == _UTF8:
            start = at + 1 + _LENGTH.size
            end = start + _LENGTH.unpack_from(code, at + 1)[0]
            text = code[start:end]
            for former, other in texts.items():
                text = text.replace(former.encode(), other.encode())
            parts += [bytes((tag,)), _LENGTH.pack(len(text)), text]
        else:
            end = at + 1 + {**_SIZES, **_SIZES_LATER}[tag]
            parts.append(code[at:end])
        index += 2 if tag in _WIDE else 1
        at = end

    return b"".join([*parts, code[at:]])


def unpack(jar: Path, target: Path, texts: Mapping[str, str]) -> None:
    """Write the classes of *jar* into *target*, with texts replaced."""
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.endswith(".class"):
                path = target / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(with_constants(archive.read(name), texts))
