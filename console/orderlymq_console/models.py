"""
Models of pages and of `/api`, the same for both.

Rules: member names are camelCase in JSON, as in `--output json` of the commands. A figure that could not be asked has
no value and says why; it is never zero. Times are wall milliseconds since the epoch, ages are seconds.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """Base of all models, and of the reports that are read; what a report has beside its members is ignored."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class Source(Model):
    """Who was asked for what a page shows.

    Attributes:
        name: of the broker group; "name servers" for these.
        age_seconds: how old its answer is.
        unknown: why there is none; empty when there is one.
    """

    name: str
    age_seconds: float
    unknown: str = ""


class Figure(Model):
    """A number, none, or why it is not known.

    Attributes:
        value: None when it is not known, or when there is none.
        unknown: why it is not known; empty when it is known, and when it is known that there is none.
        at_least: a part could not be asked, or is not counted further; the number is at least this.
    """

    value: float | None = None
    unknown: str = ""
    at_least: bool = False


def bounded(value: float, missing: str) -> Figure:
    """Return a sum, a lower bound where a part is *missing*; a lower bound of zero says nothing and is unknown."""
    if missing and not value:
        return Figure(unknown=missing)
    return Figure(value=value, at_least=bool(missing))


def figure(value: float | None, unknown: str) -> Figure:
    """Return a number; where there is none, it is *unknown* why."""
    return Figure(unknown=unknown) if value is None else Figure(value=value)


class Pod(Model):
    """The pod behind an address on Kubernetes, as a list of *age_seconds* ago shows it.

    Attributes:
        name: empty where it is not known; *unknown* says why.
    """

    name: str = ""
    unknown: str = ""
    age_seconds: float = 0.0


class Page(Model):
    """Base of every page."""

    sources: tuple[Source, ...] = ()

    @property
    def age_seconds(self) -> float:
        """Age of the oldest answer."""
        return max((each.age_seconds for each in self.sources), default=0.0)

    @property
    def missing(self) -> tuple[Source, ...]:
        """Those who gave no answer."""
        return tuple(each for each in self.sources if each.unknown)


class Trouble(Model):
    """Something that needs a look: what it is, what to do, and where to look."""

    severity: Literal["critical", "warning"]
    text: str
    todo: str = ""
    link: str = ""


class Listing(Page):
    """One page of a list; *total* counts what was found."""

    query: str = ""
    number: int = 1
    pages: int = 1
    total: Figure = Figure(value=0)


# -- overview and raft


class Snapshot(Model):
    """The last state that a replica took over whole from its leader, up to entry *index*."""

    index: int
    size_bytes: int
    age_seconds: float


class Replica(Model):
    """A replica as its leader sees it; *lag* is in raft entries.

    Attributes:
        snapshot: None where the leader sent none since its process started.
    """

    node: str
    role: str
    match: int | None = None
    lag: int | None = None
    active: bool = False
    state: str = ""
    snapshot: Snapshot | None = None


class BrokerGroup(Model):
    """A broker group; every figure is None when its leader does not report it.

    Attributes:
        unknown: why nothing is known of it; empty when its leader answers.
        messages_in, messages_out, bytes_in, bytes_out: per second.
    """

    name: str
    unknown: str = ""
    leader: int | None = None
    term: int | None = None
    commit: int | None = None
    applied: int | None = None
    first_index: int | None = None
    last_index: int | None = None
    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    replicas: tuple[Replica, ...] = ()
    disk_ratio: float | None = None
    disk_bytes: int | None = None
    disk_full: bool = False
    uptime_seconds: float | None = None
    connections: int | None = None
    messages_in: Figure = Figure(unknown="not asked")
    messages_out: Figure = Figure(unknown="not asked")
    bytes_in: Figure = Figure(unknown="not asked")
    bytes_out: Figure = Figure(unknown="not asked")


class LagRow(Model):
    """How far a group is behind in a topic of one broker group."""

    group: str
    topic: str
    broker_group: str
    messages: int
    seconds: float


class ChangeRow(Model):
    """Something that changed in a broker group, or, with a queue, a change of its lock."""

    at_ms: int
    broker_group: str
    text: str
    link: str = ""
    topic: str = ""
    queue: int | None = None


class Overview(Page):
    """The first page; *changes* are those of the last hour that were seen since *changes_since_ms*."""

    state: Literal["healthy", "troubled", "unknown"]
    sentence: str
    troubles: tuple[Trouble, ...]
    broker_groups: tuple[BrokerGroup, ...]
    messages_in: Figure
    messages_out: Figure
    bytes_in: Figure
    bytes_out: Figure
    lag: Figure
    oldest_seconds: Figure
    blocked: Figure
    members: Figure
    lags: tuple[LagRow, ...]
    changes: tuple[ChangeRow, ...]
    changes_left_out: int = 0
    changes_since_ms: int


class RaftPage(Page):
    """All raft groups."""

    troubles: tuple[Trouble, ...]
    broker_groups: tuple[BrokerGroup, ...]


# -- topics


class TopicRow(Model):
    """A topic in the list; *writable* is false where a broker group refuses sends to it."""

    topic: str
    ordered: bool
    queues: int
    broker_groups: tuple[str, ...]
    readable: bool
    writable: bool


class TopicList(Listing):
    """A page of topics."""

    with_system: bool = False
    rows: tuple[TopicRow, ...]


class TopicQueue(Model):
    """A queue: *head* is the first offset that is kept, *end* the one of the next message."""

    broker_group: str
    queue: int
    head: Figure
    end: Figure
    messages: Figure
    last_stored_ms: int | None = None


class HotSpot(Model):
    """A queue or a key with far more than its share of a topic's messages."""

    kind: Literal["queue", "key"]
    name: str
    share: float
    todo: str


class TopicPage(Page):
    """One topic; *messages_in* is per second, over the last minute, and *ordered* None while no name server reports it."""

    topic: str
    ordered: bool | None
    messages: Figure
    messages_in: Figure
    queues: tuple[TopicQueue, ...]
    groups: tuple[str, ...]
    groups_unknown: str = ""
    lags: tuple[LagRow, ...]
    hot: tuple[HotSpot, ...]
    expansion: tuple[str, ...] = ()
    expansion_unknown: str = ""


# -- groups


class GroupRow(Model):
    """A consumer group in the list."""

    group: str
    ordering: str
    lag: Figure
    lag_seconds: Figure
    blocked: Figure


class GroupListPage(Listing):
    """A page of consumer groups."""

    with_system: bool = False
    rows: tuple[GroupRow, ...]


class MemberRow(Model):
    """A member of a group; *pod* is None where the console is not on Kubernetes."""

    client_id: str
    address: str
    pod: Pod | None = None
    language: str
    version: str
    broker_groups: tuple[str, ...]
    queues: Figure


class MemberQueue(Model):
    """Report of a member about a queue that it consumes; None where it does not report it."""

    topic: str
    broker_group: str
    queue: int
    cached: int | None = None
    committed: int | None = None
    locked: bool | None = None
    called_ms: int | None = None
    tries: int | None = None
    last_error: str = ""


class MemberTopic(Model):
    """How a member's listener did with a topic in the last minute; None where the member does not report it.

    Attributes:
        call_ms: how long a call took on average.
        failed_hour: messages that failed in the last hour.
    """

    topic: str
    call_ms: float | None = None
    consumed_per_second: float | None = None
    failed_per_second: float | None = None
    failed_hour: float | None = None


class MemberPage(Page):
    """Report of one member about itself.

    Attributes:
        unknown: why it says nothing; empty when it answers.
        is_suspended: its program has suspended it; None where it is not reported.
        threads: that its listener may use at the same time; None where it is not reported.
        busy: of them at work, as its stacks show.
        stacks: of its threads, as its own language writes them.
    """

    group: str
    client_id: str
    unknown: str = ""
    is_suspended: bool | None = None
    properties: dict[str, str] = {}
    queues: tuple[MemberQueue, ...] = ()
    topics: tuple[MemberTopic, ...] = ()
    threads: int | None = None
    busy: Figure = Figure(unknown="not asked")
    stacks: str = ""

    @property
    def is_saturated(self) -> bool:
        """Whether each thread of its listener is at work, so that messages wait for one."""
        return bool(self.threads) and (self.busy.value or 0) >= (self.threads or 0)


class GroupQueue(Model):
    """A queue of a group: lock, epoch, offsets.

    Attributes:
        holder: None where nobody holds it, or where that is unknown; *holder_unknown* says why.
    """

    topic: str
    broker_group: str
    queue: int
    holder: str | None
    holder_unknown: str = ""
    address: str | None
    pod: Pod | None = None
    epoch: int | None
    held_since_ms: int | None
    lease_seconds: float | None
    committed: Figure
    end: Figure
    lag: Figure


class LaneCounts(Model):
    """The lanes of one queue in figures; *limited* says why it hands out no new ones."""

    topic: str
    broker_group: str
    queue: int
    in_hand: int
    ready: int
    parked: int
    held: int
    dying: int
    owed: int
    limited: str = ""


class Standstill(Model):
    """A queue, a lane or a key that stands still.

    Attributes:
        kind: queue, lane or key (parked behind a dead letter).
        state: blocked, parked, held, dying.
        since_ms: since when.
        key, message_id: of the message that it stands at.
        behind: messages that wait behind it.
        by_key: of a queue: its group takes keys, so nobody holds the queue; None where that is not known.
        lanes: of such a queue, its lanes in figures, as far as they were asked.
        holder, holder_address: who has it, None when nobody does; of lanes in hand, who has the one that is in hand for longest.
        in_hand_since_ms: since when that one is.
        called_ms: when the listener that has the message now was called.
        due_ms: when a parked lane is handed out again.
        last_error: what the consumer said last.
        todo: what to do.
    """

    kind: Literal["queue", "lane", "key"]
    state: str
    group: str
    topic: str
    broker_group: str
    queue: int
    offset: int | None
    since_ms: int
    key: str | None
    message_id: str | None
    behind: Figure
    by_key: bool | None = None
    lanes: LaneCounts | None = None
    holder: str | None
    holder_address: str | None = None
    holder_pod: Pod | None = None
    in_hand_since_ms: int | None = None
    tries: int | None = None
    called_ms: int | None = None
    due_ms: int | None = None
    last_error: str = ""
    todo: str = ""
    releasable: bool = False


class GroupPage(Page):
    """One consumer group."""

    group: str
    ordering: str
    by_key: bool
    on_dead_letter: str
    retry_max_times: int | None
    lag: Figure
    lag_seconds: Figure
    members: tuple[MemberRow, ...]
    members_unknown: str = ""
    subscriptions: dict[str, str]
    queues: tuple[GroupQueue, ...]
    queues_left_out: int = 0
    lanes: tuple[LaneCounts, ...]
    standing: tuple[Standstill, ...]
    troubles: tuple[Trouble, ...]
    history: tuple[ChangeRow, ...]
    history_since_ms: int
    advice: str = ""


class BlockedPage(Page):
    """Everything that stands still, the longest first."""

    rows: tuple[Standstill, ...]
    troubles: tuple[Trouble, ...]
    left_out: str = ""


# -- audit


class AuditLine(Model):
    """Who did what to what; *outcome* is "begins", then what became of it."""

    at_ms: int
    account: str
    address: str
    action: str
    thing: dict[str, str]
    outcome: str


class AuditPage(Page):
    """The last changes, the newest first."""

    lines: tuple[AuditLine, ...]
