"""
The actions that a plan may ask of a backend (one closed union), and the observed state that a backend returns.

Rule: an action names what is to be done, never how. The same actions serve processes on one machine and pods.
Every action may be repeated, because a backend that crashed half way is asked again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, assert_never

from orderlymq_operator.resources.kinds import Desired, Topic
from orderlymq_operator.resources.quotas import UNLIMITED, Limits
from orderlymq_operator.resources.topic import PERMISSION_BITS
from orderlymq_protocol.body.lanes import RETRY_PAUSE_MAX_MS, RETRY_PAUSE_MS
from orderlymq_protocol.message.properties import SHARDING_KEY

Member: TypeAlias = Literal["outside", "learner", "voter"]
ExpansionPhase: TypeAlias = Literal["open", "fenced", "switched", "settling"]
Truth: TypeAlias = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True, order=True)
class TopicConfig:
    """A topic in one group: number of read and write queues, permission bits, order flag.

    Rule: every step and every table of topics holds it whole, so that no place has to list its fields.

    Attributes:
        attributes: those of RocketMQ 5, which tools give a topic; no manifest names them.
    """

    queues: int
    permission: int
    order: bool
    attributes: tuple[tuple[str, str], ...] = ()


def topic_config(topic: Topic, queues: int) -> TopicConfig:
    """Return the settings of *topic* where *queues* of its queues stand."""
    return TopicConfig(queues, PERMISSION_BITS[topic.spec.permission], topic.ordered)


@dataclass(frozen=True, slots=True, order=True)
class GroupConfig:
    """A consumer group in one raft group, in the terms of RocketMQ's SubscriptionGroupConfig.

    Attributes:
        concurrent: declared concurrent, so that it is given no queue locks.
    """

    orderly: bool
    enabled: bool
    retry_times: int
    retry_queues: int
    consume_timeout_minutes: int
    on_dead_letter: str = "Continue"
    concurrency: str = "Queue"
    lane_key_property: str = SHARDING_KEY
    concurrent: bool = False
    retry_pause_ms: int = RETRY_PAUSE_MS
    retry_pause_max_ms: int = RETRY_PAUSE_MAX_MS


@dataclass(frozen=True, slots=True, order=True)
class UserConfig:
    """An account in one raft group; permissions by name, and a fingerprint instead of the secret.

    Attributes:
        overlap_s: how long a secret that changes stays valid, as wanted.
        former_until_ms: until when the former secret is valid, as found; 0 when there is none.
    """

    admin: bool
    default_topic_permission: str
    default_group_permission: str
    topics: tuple[tuple[str, str], ...]
    groups: tuple[tuple[str, str], ...]
    white_remote_address: str
    fingerprint: str
    limits: Limits = UNLIMITED
    overlap_s: int = field(default=0, compare=False)
    former_until_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ConditionReport:
    """A condition without its time stamp.

    Attributes:
        generation: of which generation of its object it was said, where a status said it before; 0 for the present one.
    """

    status: Truth
    reason: str
    message: str
    generation: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """Which object a condition is about."""

    kind: str
    name: str
    type: str = "Ready"


@dataclass(frozen=True, slots=True)
class OfRaftGroup:
    """The raft group that an action is on."""

    group: str


@dataclass(frozen=True, slots=True)
class OfReplica(OfRaftGroup):
    """The replica that an action is on."""

    node: int


@dataclass(frozen=True, slots=True)
class OfTopic:
    """The topic that an action is on."""

    topic: str


@dataclass(frozen=True, slots=True)
class OfTopicInGroup(OfTopic):
    """The raft group in which an action is on a part of a topic."""

    group: str


@dataclass(frozen=True, slots=True)
class StartNameServer:
    """Start name server *index*."""

    index: int


@dataclass(frozen=True, slots=True)
class RestartNameServer:
    """Stop name server *index* in good order and start it with the settings of today."""

    index: int


@dataclass(frozen=True, slots=True)
class StartReplica(OfReplica):
    """Start a replica; one that joins later starts without a vote."""

    join: bool


@dataclass(frozen=True, slots=True)
class RestartReplica(OfReplica):
    """Stop a replica in good order and start it with the settings of today."""


@dataclass(frozen=True, slots=True)
class StopReplica(OfReplica):
    """Stop a replica that is no member any more; its data is set aside, not deleted."""


@dataclass(frozen=True, slots=True)
class AddLearner(OfReplica):
    """Let a running replica receive the log, without a vote."""


@dataclass(frozen=True, slots=True)
class PromoteReplica(OfReplica):
    """Give a learner that has caught up its vote."""


@dataclass(frozen=True, slots=True)
class RemoveReplica(OfReplica):
    """Take a replica out of the membership; the process goes on until it is stopped."""


@dataclass(frozen=True, slots=True)
class TransferLeadership(OfRaftGroup):
    """Transfer the leadership of a raft group to replica *target*; a transfer that only *balances* leaders can wait."""

    target: int
    balances: bool = False


@dataclass(frozen=True, slots=True)
class PutOrderConfig(OfTopic):
    """Publish the queue list of an ordered topic (`broker:queues;...`) on every name server."""

    value: str


@dataclass(frozen=True, slots=True)
class DeleteOrderConfig(OfTopic):
    """Withdraw the queue list of a deleted topic from every name server."""


@dataclass(frozen=True, slots=True)
class CreateTopic(OfTopicInGroup):
    """Create a topic in one raft group."""

    config: TopicConfig


@dataclass(frozen=True, slots=True)
class UpdateTopic(OfTopicInGroup):
    """Change a topic in one raft group."""

    config: TopicConfig


@dataclass(frozen=True, slots=True)
class DeleteTopic(OfTopicInGroup):
    """Delete a topic with its messages from one raft group."""


@dataclass(frozen=True, slots=True)
class FenceTopic(OfTopicInGroup):
    """Refuse writes to a topic on one raft group and note where its queues end."""

    attempt: int
    total: int
    queues: int
    limit_ms: int


@dataclass(frozen=True, slots=True)
class AbortExpansion(OfTopicInGroup):
    """Abort an expansion on one raft group: the old list stays, writes are let in."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class SwitchTopic(OfTopicInGroup):
    """Make the new list valid on one raft group; *readers* are consumer groups of all raft groups."""

    attempt: int
    total: int
    config: TopicConfig
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublishTopic(OfTopicInGroup):
    """Notify one raft group that every name server returns the new list."""

    total: int
    propagation_ms: int


@dataclass(frozen=True, slots=True)
class SetGroup:
    """Create or change a consumer group in one raft group.

    Attributes:
        seed: topics on which a group that is created now begins at *start_from*; "Earliest" changes no position.
        also: other raft groups that get the positions, too, before the group exists in this one.
    """

    consumer_group: str
    group: str
    config: GroupConfig
    start_from: Literal["Client", "Latest", "Earliest"] = "Client"
    seed: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Delete a consumer group with its offsets from one raft group."""

    consumer_group: str
    group: str


@dataclass(frozen=True, slots=True)
class SetUser:
    """Create or change an account in one raft group; the backend knows where *user*'s secret is."""

    user: str
    access_key: str
    group: str
    config: UserConfig


@dataclass(frozen=True, slots=True)
class DeleteUser:
    """Delete an account from one raft group."""

    access_key: str
    group: str


@dataclass(frozen=True, slots=True)
class ReportCondition:
    """Write down what is known about an object."""

    subject: Subject
    condition: ConditionReport


@dataclass(frozen=True, slots=True)
class Refuse:
    """A change that is not allowed; a plan with one of these holds nothing else.

    Attributes:
        field: path of the field in the manifest.
        reason: why not.
        advice: what to do instead.
    """

    kind: str
    name: str
    field: str
    reason: str
    advice: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}, {self.field}: {self.reason}; {self.advice}"


# One step of a queue expansion on one raft group.
ExpansionStep: TypeAlias = FenceTopic | AbortExpansion | SwitchTopic | PublishTopic
# What a queue expansion may ask for.
ExpansionAction: TypeAlias = ExpansionStep | PutOrderConfig
# Requests to brokers and name servers, which every backend carries out alike: ``brokers/requests.py``.
RemoteAction: TypeAlias = (
    AddLearner
    | PromoteReplica
    | RemoveReplica
    | TransferLeadership
    | PutOrderConfig
    | DeleteOrderConfig
    | CreateTopic
    | UpdateTopic
    | DeleteTopic
    | ExpansionStep
    | SetGroup
    | DeleteGroup
    | SetUser
    | DeleteUser
)
Action: TypeAlias = (
    StartNameServer
    | RestartNameServer
    | StartReplica
    | RestartReplica
    | StopReplica
    | RemoteAction
    | ReportCondition
    | Refuse
)


Lane: TypeAlias = tuple[str, str]


def lane_of(action: Action) -> Lane:
    """Return what *action* is about: one that fails holds back those of the same lane that come after it.

    A plan puts what depends on something behind it in the same lane: the queue list of a topic is published before its
    first queue exists and withdrawn after the last one is gone; a replica starts before it learns. Lanes do not depend
    on each other, so that a raft group which does not answer holds back nothing but itself.
    """
    match action:
        case StartNameServer(index) | RestartNameServer(index):
            return "NameServer", str(index)
        case SetGroup(name) | DeleteGroup(name):
            return "ConsumerGroup", name
        case SetUser(access_key=key) | DeleteUser(key):
            return "User", key
        case ReportCondition(subject):
            return "Report", f"{subject.kind} {subject.name} {subject.type}"
        case Refuse():
            return action.kind, action.name
        case OfRaftGroup():
            return "RaftGroup", action.group
        case OfTopic():
            return "Topic", action.topic
        case _:
            assert_never(action)


@dataclass(frozen=True, slots=True)
class ObservedBlocker:
    """Who has not consumed to the end; *queue* is -1 for retries and transactions."""

    consumer_group: str
    queue: int
    messages: int
    reason: str


@dataclass(frozen=True, slots=True)
class ObservedExpansion:
    """The expansion of one topic on one raft group that has the topic, as its leader reports it.

    Attributes:
        total: queues of the valid list over all raft groups; 0 while the topic never grew.
        next_total: of the list that comes, while fenced.
        write_queues: queues of this raft group that are written by the valid list.
        attempt: number of the last expansion.
        age_ms: time since the phase began.
        reason: why the last expansion was aborted; empty when it was not.
        barriers: (queue, offset), while fenced.
        readers: consumer groups that read the topic here.
    """

    phase: ExpansionPhase = "open"
    total: int = 0
    next_total: int = 0
    queues: int = 0
    write_queues: int = 0
    attempt: int = 0
    age_ms: int = 0
    reason: str = ""
    barriers: tuple[tuple[int, int], ...] = ()
    blockers: tuple[ObservedBlocker, ...] = ()
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ObservedReplica:
    """One replica as it is found.

    Attributes:
        running: somebody keeps it alive (it may be restarting at this moment).
        answers: it says how it is.
        healthy: it answers, and follows or leads.
        join: it was started as a later member.
        caught_up: the leader says that it has nearly the whole log, and has heard of it just now.
        keeps_up: it has nearly the whole log and follows; on a busy machine a leader may not have heard of it
            for a moment, which is no news, and no leave to do something either.
        failing: several observations found it not healthy, and its keeper says that it does not serve.
        ended: several observations got no answer, and its keeper says that no process runs.
        leaving: it is being replaced at this moment.
        revision: settings revision it runs with; None when it does not run.
        domains: failure domains that it runs in, the largest first, of one kind at each place; empty where they are
            not known or it has not been ready for long.
    """

    member: Member = "outside"
    running: bool = False
    answers: bool = False
    healthy: bool = False
    join: bool = False
    caught_up: bool = False
    keeps_up: bool = False
    failing: bool = False
    ended: bool = False
    leaving: bool = False
    revision: str | None = None
    domains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """One raft group as it is found; a group that was never started is not observed at all.

    Attributes:
        replicas: every replica that was ever started and not set aside, by node id.
        topics: topics by name; None while nobody answers for the group, or where it refuses to say.
        consumer_groups: likewise.
        users: accounts by access key, likewise.
        expansion: how far topics that grow are, by topic; without those that are not asked for.
        refused: its words, where it refuses to say one of them; empty where it does not answer.
    """

    leader: int | None = None
    replicas: Mapping[int, ObservedReplica] = field(default_factory=dict)
    topics: Mapping[str, TopicConfig] | None = None
    consumer_groups: Mapping[str, GroupConfig] | None = None
    users: Mapping[str, UserConfig] | None = None
    expansion: Mapping[str, ObservedExpansion] = field(default_factory=dict)
    refused: str = ""


@dataclass(frozen=True, slots=True)
class ObservedNameServer:
    """One name server.

    Attributes:
        order_config: its ORDER_TOPIC_CONFIG, or None while it does not answer.
        routes: queues written per group in its routes of the topics that grow.
        brokers: names of the groups that are registered with it; None where nobody has asked.
        failing: several observations got no answer, and its keeper says that it does not serve.
        leaving: it is being replaced at this moment.
        revision: settings revision it runs with; None where it is that of today, or nobody has looked.
        serves_plain: whether it takes connections without TLS.
    """

    order_config: Mapping[str, str] | None = None
    routes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    brokers: frozenset[str] | None = None
    failing: bool = False
    leaving: bool = False
    revision: str | None = None
    serves_plain: bool = True


@dataclass(frozen=True, slots=True)
class Observed:
    """The world as a backend sees it.

    Attributes:
        accepted: what was wanted before, with which immutable fields are compared.
        name_servers: those that are kept running, by index.
        groups: raft groups by broker name.
        conditions: what was reported last.
        secrets: fingerprint of each User's secret by its name; None where it cannot be read.
        tls_modes: those of `spec.tls.mode` that processes run with; none where nothing runs, or nobody has looked.
    """

    accepted: Desired | None = None
    name_servers: Mapping[int, ObservedNameServer] = field(default_factory=dict)
    groups: Mapping[str, ObservedGroup] = field(default_factory=dict)
    conditions: Mapping[Subject, ConditionReport] = field(default_factory=dict)
    secrets: Mapping[str, str | None] = field(default_factory=dict)
    tls_modes: frozenset[str] = frozenset()
