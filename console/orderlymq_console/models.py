"""
Models of pages and of `/api`, the same for both.

Rules: member names are camelCase in JSON, as in `--output json` of the commands. A figure that could not be read has
no value and says why; it is never zero. Times are wall milliseconds since the epoch, ages are seconds.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """Base of all models and of the reports that the console reads; unknown members of a report are ignored."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class Source(Model):
    """A source of the data on a page, such as a broker group.

    Attributes:
        name: name of the broker group; "name servers" for the name servers.
        age_seconds: age of its answer.
        unknown: why there is no answer; empty if there is one.
    """

    name: str
    age_seconds: float
    unknown: str = ""


class Figure(Model):
    """A number, or the reason why it is not known.

    Attributes:
        value: None if it is not known, or if there is none.
        unknown: why it is not known; empty if it is known, or if it is known that there is none.
        at_least: a part could not be read or was not counted, so the number is a lower bound.
    """

    value: float | None = None
    unknown: str = ""
    at_least: bool = False


def bounded(value: float, missing: str) -> Figure:
    """Return a sum; it is a lower bound if a part is *missing*. A lower bound of zero says nothing, so it becomes unknown."""
    if missing and not value:
        return Figure(unknown=missing)
    return Figure(value=value, at_least=bool(missing))


def figure(value: float | None, unknown: str) -> Figure:
    """Return a number as a figure; if there is no number, *unknown* says why."""
    return Figure(unknown=unknown) if value is None else Figure(value=value)


class Pod(Model):
    """The pod at an address on Kubernetes, from a list that is *age_seconds* old.

    Attributes:
        name: empty if it is not known; *unknown* says why.
    """

    name: str = ""
    unknown: str = ""
    age_seconds: float = 0.0


class Page(Model):
    """Base of every page."""

    sources: tuple[Source, ...] = ()

    @property
    def age_seconds(self) -> float:
        """The age of the oldest answer."""
        return max((each.age_seconds for each in self.sources), default=0.0)

    @property
    def missing(self) -> tuple[Source, ...]:
        """The sources that gave no answer."""
        return tuple(each for each in self.sources if each.unknown)


class Trouble(Model):
    """Something that needs attention: what it is, what to do, and where to look."""

    severity: Literal["critical", "warning"]
    text: str
    todo: str = ""
    link: str = ""


class Listing(Page):
    """One page of a list; *total* is the number of items that were found."""

    query: str = ""
    number: int = 1
    pages: int = 1
    total: Figure = Figure(value=0)


# -- overview and raft


class Snapshot(Model):
    """The last snapshot that a replica received from its leader; it covers the raft log up to entry *index*."""

    index: int
    size_bytes: int
    age_seconds: float


class Replica(Model):
    """A replica as its leader sees it; *lag* is in raft entries.

    Attributes:
        snapshot: None if the leader has sent none since its process started.
    """

    node: str
    role: str
    match: int | None = None
    lag: int | None = None
    active: bool = False
    state: str = ""
    snapshot: Snapshot | None = None


class BrokerGroup(Model):
    """A broker group; a figure is None if its leader does not report it.

    Attributes:
        unknown: why nothing is known of it; empty if its leader answers.
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
    """How far a consumer group is behind in a topic of one broker group."""

    group: str
    topic: str
    broker_group: str
    messages: int
    seconds: float


class ChangeRow(Model):
    """A change in a broker group; with a queue, a change of that queue's lock."""

    at_ms: int
    broker_group: str
    text: str
    link: str = ""
    topic: str = ""
    queue: int | None = None


class Overview(Page):
    """The first page; *changes* are those of the last hour that the console has seen since *changes_since_ms*."""

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
    """A topic in the list; *writable* is false if a broker group refuses sends to it."""

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
    """A queue: *head* is the first offset that is kept, *end* is the offset of the next message."""

    broker_group: str
    queue: int
    head: Figure
    end: Figure
    messages: Figure
    last_stored_ms: int | None = None


class HotSpot(Model):
    """A queue or a key that gets far more than its share of a topic's messages."""

    kind: Literal["queue", "key"]
    name: str
    share: float
    todo: str


class TopicPage(Page):
    """One topic; *messages_in* is per second over the last minute. *ordered* is None while no name server reports it."""

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
    """A member of a consumer group; *pod* is None if the console does not run on Kubernetes."""

    client_id: str
    address: str
    pod: Pod | None = None
    language: str
    version: str
    broker_groups: tuple[str, ...]
    queues: Figure


class MemberQueue(Model):
    """A member's report about a queue that it consumes; a field is None if the member does not report it."""

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
    """The work of a member's listener on a topic in the last minute; a figure is None if the member does not report it.

    Attributes:
        call_ms: average time of a call.
        failed_hour: messages that failed in the last hour.
    """

    topic: str
    call_ms: float | None = None
    consumed_per_second: float | None = None
    failed_per_second: float | None = None
    failed_hour: float | None = None


class MemberPage(Page):
    """The report of one member about itself.

    Attributes:
        unknown: why it reports nothing; empty if it answers.
        is_suspended: its program has suspended it; None if the member does not report it.
        threads: threads that its listener may use at the same time; None if the member does not report it.
        busy: how many of these threads are at work, as its stacks show.
        stacks: stacks of its threads, in the format of its own language.
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
        """Whether all threads of its listener are at work, so that messages wait for one."""
        return bool(self.threads) and (self.busy.value or 0) >= (self.threads or 0)


class GroupQueue(Model):
    """A queue of a consumer group: lock, epoch, offsets.

    Attributes:
        holder: None if nobody holds it, or if the holder is unknown; then *holder_unknown* says why.
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
    """The number of lanes of one queue by state; *limited* says why the queue hands out no new lanes."""

    topic: str
    broker_group: str
    queue: int
    in_hand: int
    ready: int
    parked: int
    held: int
    dead_lettering: int
    owed: int
    limited: str = ""


class Standstill(Model):
    """A queue, a lane or a key that stands still.

    Attributes:
        kind: queue, lane or key (parked behind a dead letter).
        state: blocked, parked, held, deadLettering.
        since_ms: when the standstill began.
        key, message_id: of the message at which it stands.
        behind: number of messages that wait behind that message.
        by_key: for a queue: whether its consumer group takes keys, so that nobody holds the queue; None if that is not known.
        lanes: for such a queue: the number of its lanes by state, if they were read.
        holder, holder_address: the member that has it; None if no member has it. For lanes in hand: the member that has had one for longest.
        in_hand_since_ms: when that member took that lane.
        called_ms: when the listener that now has the message was called.
        due_ms: when a parked lane is handed out again.
        last_error: the last error that the consumer reported.
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
    """Everything that stands still: queues before lanes and keys, parked lanes last; in each part the longest standstill first."""

    rows: tuple[Standstill, ...]
    troubles: tuple[Trouble, ...]
    left_out: str = ""


# -- audit


class AuditLine(Model):
    """One line of the audit log: who did what to what; *outcome* is "begins" before the action, and its result after it."""

    at_ms: int
    account: str
    address: str
    action: str
    thing: dict[str, str]
    outcome: str


class AuditPage(Page):
    """The last changes, the newest first."""

    lines: tuple[AuditLine, ...]
