"""
The status that a leader reports about its broker group (request 20500), parsed and checked.

Rule: unknown members are ignored. A replica whose store is being replaced reports nothing of its topics and consumer groups; None then
means "not reported". A status in another form is refused as a whole, and the broker group is unknown then.
"""

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from orderlymq_console.models import Model


class LagReport(Model):
    """Messages of a topic that a consumer group has not consumed, and the age of the oldest in seconds."""

    group: str
    topic: str
    messages: int
    seconds: float


class BlockedReport(Model):
    """A queue without progress for 30 s, although it has messages and its consumer group has members.

    Attributes:
        connected: whether the leader has a connection to the holder; None if that is not reported, or if no member holds the queue.
        by_key: the consumer group takes keys, not queues; None if that is not reported.
    """

    group: str
    topic: str
    queue: int
    offset: int
    since: int
    holder: str | None = None
    by_key: bool | None = None
    connected: bool | None = None
    lease_millis: int | None = None
    message_id: str | None = None
    key: str | None = None
    tries: int | None = None
    listener_tries: int | None = None
    listener_called: int | None = None
    listener_error: str | None = None
    listener_suspended: bool | None = None
    listener_running: bool | None = None
    listener: str | None = None


class FailingReport(Model):
    """A message that failed several times, or is a dead letter."""

    group: str
    topic: str
    message_id: str
    key: str | None = None
    tries: int = 0
    dead: bool = False


class ExpiringReport(Model):
    """A queue lock whose holder missed renewals."""

    group: str
    topic: str
    queue: int
    holder: str
    left_millis: int


class DisagreeingReport(Model):
    """A consumer group whose members disagree; *difference* says about what."""

    group: str
    members: tuple[str, ...]
    difference: str


class DuplicateReport(Model):
    """One client id on two live connections."""

    client_id: str
    addresses: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class GroupReport(Model):
    """A finding about a consumer group as a whole."""

    group: str
    keys: int = 0


class HotQueueReport(Model):
    """A queue with far more than its share of a topic's messages."""

    topic: str
    queue_id: int
    share: float


class HotKeyReport(Model):
    """A key with a fifth or more of its topic's messages."""

    topic: str
    key: str
    share: float


class ParkedKeysReport(Model):
    """The number of keys that a consumer group has parked behind dead letters."""

    group: str
    keys: int


class LanesReport(Model):
    """The number of lanes of a by-key consumer group in one state: inHand, ready, parked, held or deadLettering."""

    group: str
    state: str
    lanes: int


#: Rows that a broker puts into each list of findings; a list with fewer rows is complete.
SHOWN_MAX: Final = 100


class WatchReport(Model):
    """Findings of the leader's last examination of its consumer groups.

    Attributes:
        examined_at: wall ms of the leader; 0 before its first examination.
        blocked_known: False until this leader has watched for long enough to see every queue that stands still.
    """

    examined_at: int
    blocked_known: bool
    lag: tuple[LagReport, ...] = ()
    blocked: tuple[BlockedReport, ...] = ()
    failing: tuple[FailingReport, ...] = ()
    expiring: tuple[ExpiringReport, ...] = ()
    disagreeing: tuple[DisagreeingReport, ...] = ()
    duplicates: tuple[DuplicateReport, ...] = ()
    not_holding: tuple[GroupReport, ...] = ()
    holds_full: tuple[GroupReport, ...] = ()
    hot_queues: tuple[HotQueueReport, ...] = ()
    hot_keys: tuple[HotKeyReport, ...] = ()
    parked_keys: tuple[ParkedKeysReport, ...] = ()
    lanes: tuple[LanesReport, ...] = ()


class OpenReport(Model):
    """Transactions of one producer group: those without a decision, and those about which the broker no longer asks."""

    open: int = 0
    given_up: int = 0


class TransactionsReport(OpenReport):
    """Transactions of a broker group; *oldest_millis* is the start of the oldest open one in wall ms."""

    oldest_millis: int | None = None
    groups: dict[str, OpenReport] = Field(default_factory=dict)

    @property
    def cut(self) -> str:
        """Why other producer groups have transactions, too; empty if all of them are named."""
        named = self.groups.values()
        is_whole = (
            sum(each.open for each in named) >= self.open
            and sum(each.given_up for each in named) >= self.given_up
        )
        return "" if is_whole else _GROUPS_CUT


class DelayedReport(Model):
    """Messages that wait for a delivery time of their own, and messages that wait for a delay level."""

    timers: int
    levels: int


class SnapshotReport(Model):
    """The last snapshot that a replica received from this leader."""

    index: int
    bytes: int
    age_ms: int


class ReplicaReport(Model):
    """A replica as its leader sees it; *snapshot* is None if none was sent."""

    match: int | None = None
    lag: int | None = None
    active: bool = False
    state: str = ""
    snapshot: SnapshotReport | None = None


class DiskReport(Model):
    """How full the leader's disk is."""

    ratio: float | None = None
    bytes: int | None = None


_GROUPS_CUT: Final = (
    "a leader reports only the producer groups with the most half messages, and there are others"
)


def _mapping(value: Any) -> Any:
    return {} if value is None else value


TAKING_OVER: Final = "its replica is taking over another state"
UNEXAMINED: Final = "the leader has not examined its groups yet; it does so every five seconds"
_CUT: Final = f"a leader reports at most {SHOWN_MAX} blocked things, and may have more"
_YOUNG: Final = "its leader is new and has watched for less than 30 s"


class StatusReport(Model):
    """The whole status.

    Attributes:
        kept: queues that stood still under the previous leader; the present one cannot know yet whether they still do.
    """

    leader: int | None = None
    term: int | None = None
    commit: int | None = None
    applied: int | None = None
    first_index: int | None = None
    last_index: int | None = None
    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    replicas: Annotated[dict[str, ReplicaReport], BeforeValidator(_mapping)] = Field(
        default_factory=dict
    )
    disk: DiskReport = DiskReport()
    disk_full: bool = False
    uptime_ms: int | None = None
    connections: int | None = None
    topics_version: int | None = None
    groups: int | None = None
    members: int | None = None
    counters: Annotated[dict[str, int], BeforeValidator(_mapping)] = Field(default_factory=dict)
    watch: WatchReport | None = None
    transactions: TransactionsReport | None = None
    delayed: DelayedReport | None = None
    kept: tuple[BlockedReport, ...] = ()

    @property
    def examined(self) -> WatchReport | None:
        """The findings; None if nothing was examined yet, which is not the same as nothing found."""
        return None if self.watch is None or self.watch.examined_at == 0 else self.watch

    @property
    def unreported(self) -> str:
        """Why topics, consumer groups and messages are not reported; empty if they are."""
        return TAKING_OVER if self.watch is None else ""

    @property
    def unexamined(self) -> str:
        """Why nothing was examined; empty if something was."""
        return self.unreported or (UNEXAMINED if self.examined is None else "")

    @property
    def blocked(self) -> tuple[BlockedReport, ...]:
        """Queues that stand still, including those of which nothing newer is known."""
        return self.kept if self.examined is None else (*self.examined.blocked, *self.kept)

    @property
    def blocked_unknown(self) -> str:
        """Why more queues may stand still; empty if these are all."""
        if self.examined is None:
            return self.unexamined
        return "" if self.examined.blocked_known else _YOUNG

    @property
    def cut(self) -> str:
        """Why more may stand still than is named; empty if the lists are complete."""
        watch = self.examined
        lists = () if watch is None else (watch.blocked, watch.parked_keys, watch.lanes)
        return _CUT if any(len(rows) >= SHOWN_MAX for rows in lists) else ""
