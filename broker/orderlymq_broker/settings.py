"""
Every setting of a broker process, with unit and default, and the code that reads a settings file.

The local backend and the operator write this file; people need not. Times are in
milliseconds and sizes in bytes unless the name says otherwise.
"""

from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from orderlymq_protocol.brokerkeys import ELECTION_MS_MAX, LOCK_LEASE_MS_MIN
from orderlymq_runtime.security.secretfile import read_secret
from orderlymq_runtime.security.tls import InternalTls, PeerTls, TlsError
from orderlymq_runtime.settingsfile import (
    Positive,
    ServerAddress,
    ServerSettings,
    SettingsError,
    read_settings,
)

# The ranges of fields; the text of an error names the field.
PORT_MAX: Final = 65_535
Port: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=PORT_MAX)]
# A DNS name has at most 253 characters.
HOST_LENGTH_MAX: Final = 255
Host: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=HOST_LENGTH_MAX)]
# Half of the most that one proposal may take in the log, so that every message fits with its properties and copies.
BodySize: TypeAlias = Annotated[int, msgspec.Meta(gt=0, le=8 << 20)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
# Half of the largest frame that replicas accept from each other.
FramePart: TypeAlias = Annotated[int, msgspec.Meta(gt=0, le=32 << 20)]
# The allowed bytes of the operator's secret; those made by the operator and `orderlymq up` have 43 or 64.
_SECRET_SIZES: Final = range(16, 1024 + 1)
Ratio: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Address(ServerAddress, frozen=True, forbid_unknown_fields=True):
    """A host name or IP and a TCP port.

    Raises:
        ValueError: they are not valid. Addresses are stored, and an unreadable one would make each start fail.
    """

    host: Host
    port: Port

    def __post_init__(self) -> None:
        if not 1 <= len(self.host) <= HOST_LENGTH_MAX:
            raise ValueError(
                f"a host must have 1 to {HOST_LENGTH_MAX} characters, not {len(self.host)}"
            )
        if not 1 <= self.port <= PORT_MAX:
            raise ValueError(f"a port must be a number from 1 to {PORT_MAX}")


class RaftSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Timing and flow control of replication inside one raft group."""

    tick_ms: int = 25
    heartbeat_ms: int = (
        50  # two ticks: a lost heartbeat is noticed long before the election time-out
    )
    # Randomised up to twice this value, which gives a new leader in about 0.3 s on a LAN.
    election_ms: Annotated[int, msgspec.Meta(le=ELECTION_MS_MAX)] = 200
    append_size_max: FramePart = 1 << 20
    inflight_appends_max: Positive = 64
    # Half of what a connection buffers for a peer that does not read, because the window of the last term may wait
    # there, too.
    inflight_size_max: FramePart = 16 << 20
    uncommitted_size_max: Positive = 64 << 20  # above it, sends are refused with code 2
    entries_kept: Count = 20_000  # compaction leaves this many entries for lagging followers
    snapshot_chunk_size: FramePart = 1 << 20


class TimerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """RocketMQ's timers, as settings so that tests need not wait."""

    # For RocketMQ's clients; the time beyond the minimum is for the listener that began last.
    lock_lease_ms: Annotated[int, msgspec.Meta(ge=LOCK_LEASE_MS_MIN)] = 60_000
    client_expiry_ms: Positive = 120_000
    scan_ms: Positive = 1_000
    member_return_grace_ms: int = (
        35_000  # heartbeat interval of 30 s plus a margin, after fail-over
    )
    delay_levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    delay_scan_ms: Positive = 100
    timer_enable: bool = True  # messages for any time, timerWheelEnable of RocketMQ 5
    # timerMaxDelaySec: waiting messages are kept, which delays retention
    timer_delay_max_ms: Positive = 3 * 24 * 3600 * 1000
    recall_enable: bool = True  # recallMessageEnable; RocketMQ's own default is off
    register_ms: Positive = 30_000
    retention_scan_ms: Positive = 10_000
    transaction_timeout_ms: int = (
        6_000  # how old a half message is when its producer is first asked
    )
    transaction_check_interval_ms: int = 60_000  # from one check to the next
    transaction_check_max: int = 15  # checks without an answer before it is given up
    transaction_scan_ms: int = 500  # the interval of scans for half messages that are due


class StorageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durability, retention and limits of stored data."""

    flush: Literal["SYNC_FLUSH", "ASYNC_FLUSH"] = "SYNC_FLUSH"
    retention_ms: Positive = 72 * 3600 * 1000
    retention_size: Positive | None = None
    disk_refuse_ratio: Ratio = 0.90  # above this use of the disk, sends are refused with code 14
    disk_resume_ratio: Ratio = 0.88
    body_size_max: BodySize = 4 << 20
    dedup_window_count: Count = 100_000
    dedup_window_ms: Count = 10 * 60 * 1000
    tail_cache_size: Count = 64 << 20
    block_cache_size: Count = 64 << 20
    backup_rate: Positive = (
        64 << 20
    )  # bytes a second that a backup may read while clients are served


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Access control: which accounts may do what with signed requests.

    Attributes:
        operator_key: the account of the cluster's own operator, an administrator that is in no table.
        operator_secret_file: the file with its secret, which is read together with the settings.
        signed_administration: all administration needs signatures of version 2, including RocketMQ's codes.
    """

    enable: bool = False
    operator_key: str = ""
    operator_secret_file: Path | None = None
    operator_secret: str = ""
    signed_administration: bool = False

    def __repr__(self) -> str:
        # Settings are shown in logs and errors; the secret must not be.
        return f"AccessSettings(enable={self.enable}, operator_key={self.operator_key!r})"


class AddressQuotas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one address at this broker; 0 means no limit."""

    requests_per_s: Count = 0
    bytes_per_s: Count = 0
    connections: Count = 0


class PodSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pod in which this replica runs, and whose label shows that it leads.

    Attributes:
        siblings: the pods of the other replicas of the group.
    """

    namespace: str
    name: str
    siblings: list[str] = []


class BrokerSettings(ServerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replica of one group.

    Attributes:
        cluster: the RocketMQ cluster name.
        group: the broker name in RocketMQ's terms; all replicas of a raft group share it.
        node_id: this replica's id, a key of *peers*.
        peers: the raft address of every replica of the group, by node id.
        address: the group's stable client address, published as broker id 0.
        bind: ``leader`` if only the leader listens on *address* (one machine), ``always``
            if an external service routes clients to the leader (Kubernetes).
        listen: the address to bind if it differs from *address* (a pod binds 0.0.0.0).
        listeners: further listeners; name servers know the group's addresses there.
        name_servers: all name servers; the replica registers with each.
        raft_listen: the address to bind for the other replicas if it differs from the own entry of *peers*.
        internal_tls: mutual TLS between the replicas; without it, `tls` decides how they communicate.
        pod: the pod that is labelled while this replica leads; none outside Kubernetes.
    """

    cluster: str
    group: str
    node_id: int
    peers: dict[int, Address]
    address: Address
    http: Address
    data_dir: Path
    name_servers: list[Address] = msgspec.field(default_factory=list)
    bind: Literal["leader", "always"] = "leader"
    listen: Address | None = None
    raft_listen: Address | None = None
    internal_tls: InternalTls | None = None
    pod: PodSettings | None = None
    join: bool = False  # a replica that is added later starts without a vote until it is a member
    auto_create_topic: bool = True
    auto_create_group: bool = True
    trace_topic_enable: bool = False  # create RMQ_SYS_TRACE_TOPIC with one queue
    enable_property_filter: bool = True  # RocketMQ's own default is off
    reject_transactions: bool = False
    default_topic_queues: Positive = 8  # of TBW102: no topic that a send creates has more
    permission: Literal[2, 4, 6] = 6  # brokerPermission: 4 reads, 2 writes
    raft: RaftSettings = RaftSettings()
    timers: TimerSettings = TimerSettings()
    storage: StorageSettings = StorageSettings()
    access: AccessSettings = AccessSettings()
    address_quotas: AddressQuotas = AddressQuotas()
    log_level: str = "INFO"

    @property
    def has_operator(self) -> bool:
        """Whether an operator manages the cluster; an operator's account has its secret in a file."""
        return self.access.operator_secret_file is not None

    def between_peers(self) -> PeerTls | None:
        """Return the TLS configuration between replicas, or None for plain connections.

        Raises:
            TlsError: a file cannot be used.
        """
        return (self.internal_tls or self.tls).between_peers()


def load(path: Path) -> BrokerSettings:
    """Read settings from a JSON file.

    Raises:
        SettingsError: they cannot be used, or the operator's secret or a certificate is missing.
    """
    settings = _with_secret(read_settings(path, BrokerSettings))
    try:
        settings.between_peers()
    except TlsError as error:
        raise SettingsError(f"{path}: {error}") from error
    return settings


def _with_secret(settings: BrokerSettings) -> BrokerSettings:
    """Return the settings with the operator's secret, which is in its own file.

    Raises:
        SettingsError: the operator's account is incomplete; without an account, the broker serves all administration
            unsigned.
    """
    access = settings.access
    if access.operator_secret_file is not None:
        secret = _operator_secret(access.operator_secret_file)
        access = msgspec.structs.replace(access, operator_secret=secret)
    if bool(access.operator_key) != bool(access.operator_secret):
        raise SettingsError(
            "access.operator_key and access.operator_secret_file are one account; give both, or "
            "neither if everybody may administer this broker"
        )

    return msgspec.structs.replace(settings, access=access)


def _operator_secret(file: Path) -> str:
    name, cure = "access.operator_secret_file", "write 16 or more random characters into it"
    secret = read_secret(file, name, _SECRET_SIZES, SettingsError, cure)
    try:
        return secret.decode()
    except UnicodeDecodeError as error:
        raise SettingsError(f"{name} {file}: it is not UTF-8 text; {cure}") from error
