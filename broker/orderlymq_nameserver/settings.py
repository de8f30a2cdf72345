"""
Every setting of a name server process, with unit and default, and how a file of them is read.

The local backend and the operator write this file. Times are in milliseconds.
"""

from pathlib import Path
from typing import Literal

import msgspec

from orderlymq_runtime.tls import TlsError, TlsSettings


class Address(msgspec.Struct, frozen=True):
    """A host name or IP and a TCP port; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class NameServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One name server.

    Attributes:
        listen: where clients and groups connect; RocketMQ's default port.
        http: address of /healthz, /readyz, /metrics and /status; none without it.
        kv_path: file that keeps the key-value configuration; without it, it ends with the process.
        scan_ms: how often silent registrations are looked for.
        tls: whether clients may or must speak TLS.
        expiry_ms: a group that was silent for so long is taken out of the routes.
    """

    listen: Address = Address("0.0.0.0", 9876)  # noqa: S104 - clients are on other machines
    http: Address | None = None
    kv_path: Path | None = None
    scan_ms: int = 10_000
    expiry_ms: int = 120_000
    tls: TlsSettings = TlsSettings()
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["text", "json"] = "text"


class SettingsError(ValueError):
    """The settings file cannot be used; the text names the field."""


def load(path: Path) -> NameServerSettings:
    """Read settings from a JSON file.

    Raises:
        SettingsError: The file is missing, not JSON, or a field has a wrong name, type or range.
    """
    try:
        settings = msgspec.json.decode(
            path.read_bytes(), type=NameServerSettings, dec_hook=_decode_path
        )
    except OSError as error:
        raise SettingsError(
            f"{path}: {error.strerror}; give the path of a settings file"
        ) from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise SettingsError(f"{path}: {error}") from error
    try:
        settings.tls.server()
    except TlsError as error:
        raise SettingsError(f"{path}: {error}") from error
    for name in ("scan_ms", "expiry_ms"):
        if getattr(settings, name) <= 0:
            raise SettingsError(f"{path}: {name} must be above 0")
    return settings


def _decode_path(kind: type, value: object) -> object:
    # msgspec knows no paths; its other types never come here.
    if isinstance(value, str):
        return kind(value)
    raise TypeError(f"expected the path of a file, got {value!r}")
