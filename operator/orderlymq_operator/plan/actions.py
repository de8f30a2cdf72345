"""
The actions that a plan may ask of a backend (one closed union), and the observed state that a backend returns.

Rule: an action names the result, never the way to it. The same actions serve processes on one machine and pods. A
backend that crashes half way is asked again, so every action may be repeated.
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
    """A topic in one raft group: number of read and write queues, permission bits, order flag.

    Rule: every step and every table of topics holds this object as a whole, so that no other place has to list its
    fields.

    Attributes:
        attributes: topic attributes of RocketMQ 5, which tools set; manifests do not name them.
    """

    queues: int
    permission: int
    order: bool
    attributes: tuple[tuple[str, str], ...] = ()


def topic_config(topic: Topic, queues: int) -> TopicConfig:
    """Return the settings of *topic* for a raft group that holds *queues* of its queues."""
    return TopicConfig(queues, PERMISSION_BITS[topic.spec.permission], topic.ordered)


@dataclass(frozen=True, slots=True, order=True)
class ConsumerGroupConfig:
    """A consumer group in one raft group, in the terms of RocketMQ's SubscriptionGroupConfig.

    Attributes:
        concurrent: the manifest declares it concurrent, so brokers give it no queue locks.
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
    """An account in one raft group: permissions by name, and a fingerprint instead of the secret.

    Attributes:
        overlap_s: how long the former secret stays valid after a change, as desired.
        former_until_ms: when the former secret stops being valid, as observed; 0 if there is no former secret.
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
        generation: generation of the object that an earlier status reported it for; 0 for the present generation.
    """

    status: Truth
    reason: str
    message: str
    generation: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """The object that a condition is about."""

    kind: str
    name: str
    type: str = "Ready"


@dataclass(frozen=True, slots=True)
class OfRaftGroup:
    """Base of the actions on one raft group."""

    group: str


@dataclass(frozen=True, slots=True)
class OfReplica(OfRaftGroup):
    """Base of the actions on one replica."""

    node: int


@dataclass(frozen=True, slots=True)
class OfTopic:
    """Base of the actions on one topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class OfTopicInGroup(OfTopic):
    """Base of the actions on the part of a topic in one raft group."""

    group: str


@dataclass(frozen=True, slots=True)
class StartNameServer:
    """Start name server *index*."""

    index: int


@dataclass(frozen=True, slots=True)
class RestartNameServer:
    """Stop name server *index* gracefully and start it with the current settings."""

    index: int


@dataclass(frozen=True, slots=True)
class StartReplica(OfReplica):
    """Start a replica; if *join*, it starts without a vote."""

    join: bool


@dataclass(frozen=True, slots=True)
class RestartReplica(OfReplica):
    """Stop a replica gracefully and start it with the current settings."""


@dataclass(frozen=True, slots=True)
class StopReplica(OfReplica):
    """Stop a replica that is no longer a member; its data is set aside, not deleted."""


@dataclass(frozen=True, slots=True)
class AddLearner(OfReplica):
    """Add a running replica as a learner: it receives the log and has no vote."""


@dataclass(frozen=True, slots=True)
class PromoteReplica(OfReplica):
    """Promote a learner that has caught up to a voter."""


@dataclass(frozen=True, slots=True)
class RemoveReplica(OfReplica):
    """Remove a replica from the membership; its process runs until it is stopped."""


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
    """Refuse writes to a topic on one raft group and record where its queues end."""

    attempt: int
    total: int
    queues: int
    limit_ms: int


@dataclass(frozen=True, slots=True)
class AbortExpansion(OfTopicInGroup):
    """Abort an expansion on one raft group: the old queue list stays valid and writes are accepted again."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class SwitchTopic(OfTopicInGroup):
    """Make the new queue list valid on one raft group; *readers* are the consumer groups of all raft groups."""

    attempt: int
    total: int
    config: TopicConfig
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublishTopic(OfTopicInGroup):
    """Tell one raft group that every name server returns the new queue list."""

    total: int
    propagation_ms: int


@dataclass(frozen=True, slots=True)
class SetConsumerGroup:
    """Create or change a consumer group in one raft group.

    Attributes:
        seed: topics on which a new consumer group begins at *start_from*; "Earliest" sets no position.
        also: other raft groups that get these positions too, before the consumer group exists in this one.
    """

    consumer_group: str
    group: str
    config: ConsumerGroupConfig
    start_from: Literal["Client", "Latest", "Earliest"] = "Client"
    seed: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteConsumerGroup:
    """Delete a consumer group with its offsets from one raft group."""

    consumer_group: str
    group: str


@dataclass(frozen=True, slots=True)
class SetUser:
    """Create or change an account in one raft group; the backend finds the secret of *user*."""

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
    """Record the condition of an object."""

    subject: Subject
    condition: ConditionReport


@dataclass(frozen=True, slots=True)
class Refuse:
    """A refused change; a plan that contains one contains nothing but refusals.

    Attributes:
        field: path of the field in the manifest.
        reason: why the change is refused.
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
# The actions that a queue expansion may ask for.
ExpansionAction: TypeAlias = ExpansionStep | PutOrderConfig
# Requests to brokers and name servers, which every backend carries out in the same way: ``brokers/requests.py``.
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
    | SetConsumerGroup
    | DeleteConsumerGroup
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


ActionChain: TypeAlias = tuple[str, str]


def chain_of(action: Action) -> ActionChain:
    """Return the chain of *action*: if an action fails, the later actions in its chain are held back.

    A plan puts actions that depend on each other into one chain. The queue list of a topic is published before its
    first queue exists and withdrawn after its last queue is gone; a replica starts before it becomes a learner. Chains
    do not depend on each other, so a raft group that does not answer holds back only its own actions.
    """
    match action:
        case StartNameServer(index) | RestartNameServer(index):
            return "NameServer", str(index)
        case SetConsumerGroup(name) | DeleteConsumerGroup(name):
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
    """A consumer group that has not consumed to the end; *queue* is -1 for retries and transactions."""

    consumer_group: str
    queue: int
    messages: int
    reason: str


@dataclass(frozen=True, slots=True)
class ObservedExpansion:
    """The expansion of one topic on one raft group that has the topic, as its leader reports it.

    Attributes:
        total: queues of the valid list over all raft groups; 0 if the topic never grew.
        next_total: queues of the next list, while fenced.
        queues: queues that this raft group has in the next list, while fenced.
        write_queues: queues of this raft group that producers write to by the valid list.
        attempt: number of the last expansion.
        age_ms: time since the phase began.
        reason: why the last expansion was aborted; empty if it was not.
        barriers: (queue, offset), while fenced.
        readers: consumer groups that read the topic on this raft group.
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
    """One replica as observed.

    Attributes:
        running: a keeper keeps its process alive (the process may be restarting at this moment).
        answers: it reports its state.
        healthy: it answers, and is a follower or the leader.
        join: it was started as a later member.
        caught_up: the leader reports that it has nearly the whole log and heard from it very recently.
        keeps_up: it follows and has nearly the whole log. Unlike `caught_up`, it stays True when the leader of a busy
            machine has not heard from the replica for a moment; it permits no change.
        failing: several observations found it unhealthy, and its keeper reports that it does not serve.
        ended: several observations got no answer, and its keeper reports that no process runs.
        leaving: it is being replaced at this moment.
        revision: settings revision that it runs with; None if it does not run.
        domains: its failure domains, the largest first, with one kind of domain at each position; empty if they are
            not known or the replica became ready only recently.
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
    """One raft group as observed; a raft group that was never started is not observed.

    Attributes:
        replicas: every replica that was ever started and not set aside, by node id.
        topics: topics by name; None if no replica answers for the raft group, or if it refuses to report them.
        consumer_groups: consumer groups by name; None as for `topics`.
        users: accounts by access key; None as for `topics`.
        expansion: progress of the topics that grow, by topic; without topics that were not asked about.
        refused: text of the refusal, if it refuses to report a table; empty if it does not answer.
    """

    leader: int | None = None
    replicas: Mapping[int, ObservedReplica] = field(default_factory=dict)
    topics: Mapping[str, TopicConfig] | None = None
    consumer_groups: Mapping[str, ConsumerGroupConfig] | None = None
    users: Mapping[str, UserConfig] | None = None
    expansion: Mapping[str, ObservedExpansion] = field(default_factory=dict)
    refused: str = ""


@dataclass(frozen=True, slots=True)
class ObservedNameServer:
    """One name server as observed.

    Attributes:
        order_config: its ORDER_TOPIC_CONFIG, or None while it does not answer.
        routes: queues to write per raft group, in its routes of the topics that grow.
        brokers: names of the raft groups that are registered with it; None if they were not read.
        failing: several observations got no answer, and its keeper reports that it does not serve.
        leaving: it is being replaced at this moment.
        revision: settings revision that it runs with; None if that is the current one, or if it was not read.
        serves_plain: whether it accepts connections without TLS.
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
    """The state of a cluster as a backend observes it.

    Attributes:
        accepted: the desired state that was accepted before; immutable fields are compared with it.
        name_servers: the name servers that are kept running, by index.
        groups: raft groups by broker name.
        conditions: the conditions that were reported last.
        secrets: fingerprint of each User's secret by its name; None if the secret cannot be read.
        secret_troubles: why a secret cannot be used, by the name of its User, where the backend knows it.
        tls_modes: values of `spec.tls.mode` that processes run with; empty if nothing runs, or if they were not read.
    """

    accepted: Desired | None = None
    name_servers: Mapping[int, ObservedNameServer] = field(default_factory=dict)
    groups: Mapping[str, ObservedGroup] = field(default_factory=dict)
    conditions: Mapping[Subject, ConditionReport] = field(default_factory=dict)
    secrets: Mapping[str, str | None] = field(default_factory=dict)
    secret_troubles: Mapping[str, str] = field(default_factory=dict)
    tls_modes: frozenset[str] = frozenset()
