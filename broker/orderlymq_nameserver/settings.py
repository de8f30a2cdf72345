"""
Every setting of a name server process, with unit and default.

The local backend and the operator write this file. Times are in milliseconds.
"""

from pathlib import Path
from typing import Literal

from orderlymq_runtime.settingsfile import Positive, ServerAddress, ServerSettings


class NameServerSettings(ServerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One name server.

    Attributes:
        listen: where clients and groups connect; RocketMQ's default port.
        kv_path: file that keeps the key-value configuration; without it, it ends with the process. `routes.json` beside it keeps
            the routes of ordered topics where there is a cluster secret.
        scan_ms: how often silent registrations are looked for.
        allow_unsigned_registrations: RocketMQ's own brokers, which cannot sign, may register beside this
            cluster's, but under no name of its brokers.
        expiry_ms: a group that was silent for so long is taken out of the routes.
        outside_addresses: JSON file with `host:port` of each group by listener and group, which clients of a further listener
            get; read again when it changes.
    """

    listen: ServerAddress = ServerAddress("0.0.0.0", 9876)  # noqa: S104 - clients are on other machines
    kv_path: Path | None = None
    scan_ms: Positive = 10_000
    expiry_ms: Positive = 120_000
    allow_unsigned_registrations: bool = False
    outside_addresses: Path | None = None
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
