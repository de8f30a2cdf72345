"""
Every setting of a name server process, with unit and default, and how a file of them is read.

The local backend and the operator write this file. Times are in milliseconds.
"""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from orderlymq_runtime.pages.token import PageTokenError
from orderlymq_runtime.process.ending import SERVER_CLOSE_MAX_MS
from orderlymq_runtime.remoting.outside import ListenerError, OutsideListeners, check_listeners
from orderlymq_runtime.security.tls import TlsError
from orderlymq_runtime.settingsfile import ServerSettings, SettingsError, read_settings
from orderlymq_runtime.sockets.addresses import join_address

Positive: TypeAlias = Annotated[int, msgspec.Meta(gt=0)]


class Address(msgspec.Struct, frozen=True):
    """A host name or IP and a TCP port; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_address(self.host, self.port)


class NameServerSettings(ServerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One name server.

    Attributes:
        listen: where clients and groups connect; RocketMQ's default port.
        http: address of /healthz, /readyz, /metrics and /status; none without it.
        kv_path: file that keeps the key-value configuration; without it, it ends with the process. `routes.json` beside it keeps
            the routes of ordered topics where there is a cluster secret.
        scan_ms: how often silent registrations are looked for.
        allow_unsigned_registrations: RocketMQ's own brokers, which cannot sign, may register beside this
            cluster's, but under no name of its brokers.
        expiry_ms: a group that was silent for so long is taken out of the routes.
        listeners: further ones, whose clients get the addresses of *outside_addresses*.
        outside_addresses: JSON file with `host:port` of each group by listener and group; read again when it changes.
        shutdown_max_ms: how long the end may take from SIGTERM on, whatever hangs.
    """

    listen: Address = Address("0.0.0.0", 9876)  # noqa: S104 - clients are on other machines
    http: Address | None = None
    kv_path: Path | None = None
    scan_ms: Positive = 10_000
    expiry_ms: Positive = 120_000
    allow_unsigned_registrations: bool = False
    listeners: OutsideListeners = msgspec.field(default_factory=list)
    outside_addresses: Path | None = None
    shutdown_max_ms: Positive = SERVER_CLOSE_MAX_MS
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["text", "json"] = "text"


def load(path: Path) -> NameServerSettings:
    """Read settings from a JSON file.

    Raises:
        SettingsError: They cannot be used.
    """
    settings = read_settings(path, NameServerSettings)
    try:
        check_listeners(settings.listeners)
        if settings.http is not None:
            settings.pages(settings.http.host)
    except (PageTokenError, TlsError, ListenerError) as error:
        raise SettingsError(f"{path}: {error}") from error
    return settings
