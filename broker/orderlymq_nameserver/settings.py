"""
Every setting of a name server process, with unit and default.

`orderlymq up` and the operator write this file. Times are in milliseconds.
"""

from pathlib import Path
from typing import Literal

from orderlymq_runtime.settingsfile import Positive, ServerAddress, ServerSettings


class NameServerSettings(ServerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One name server.

    Attributes:
        listen: address for clients and broker groups; the default port is RocketMQ's.
        kv_path: file that keeps the key-value configuration; without it, the configuration is lost when the
            process ends. If there is a cluster secret, `routes.json` in the same folder keeps the routes of
            ordered topics.
        scan_ms: interval of the check for silent registrations.
        allow_unsigned_registrations: RocketMQ's own brokers, which cannot sign, may register next to this
            cluster's, but not under a name of its brokers.
        expiry_ms: a broker group that was silent for this long is removed from the routes.
        outside_addresses: JSON file with the `host:port` of each broker group by listener and group, for
            clients of an additional listener; read again when it changes.
    """

    listen: ServerAddress = ServerAddress("0.0.0.0", 9876)  # noqa: S104 - clients are on other machines
    kv_path: Path | None = None
    scan_ms: Positive = 10_000
    expiry_ms: Positive = 120_000
    allow_unsigned_registrations: bool = False
    outside_addresses: Path | None = None
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
