"""
The file of settings that a server process is started with: JSON of one class of settings.

Rule: whatever is wrong with it, or with the key material that it names, is one sentence that begins with its path.
"""

from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from orderlymq_protocol.decodeerrors import UNREADABLE
from orderlymq_runtime.tls import TlsError, TlsSettings


class ServerSettings(Protocol):
    """What the settings of every server have."""

    @property
    def tls(self) -> TlsSettings:
        """Whether clients may or must speak TLS."""


Settings = TypeVar("Settings", bound=ServerSettings)


class SettingsError(ValueError):
    """The settings cannot be used; the text names the field."""


def read_settings(path: Path, kind: type[Settings]) -> Settings:
    """Read settings from a JSON file.

    Raises:
        SettingsError: the file is missing, not JSON, a field has a wrong name, type or range, or there is no
            such key material.
    """
    try:
        settings = msgspec.json.decode(path.read_bytes(), type=kind, dec_hook=_decode_path)
    except OSError as error:
        raise SettingsError(
            f"{path}: {error.strerror}; give the path of a settings file"
        ) from error
    except UNREADABLE as error:
        raise SettingsError(f"{path}: {error}") from error
    try:
        settings.tls.server()
    except TlsError as error:
        raise SettingsError(f"{path}: {error}") from error

    return settings


def _decode_path(kind: type, value: object) -> object:
    # msgspec knows no paths; its other types never come here.
    if isinstance(value, str):
        return kind(value)
    raise TypeError(f"expected a path, got {value!r}")
