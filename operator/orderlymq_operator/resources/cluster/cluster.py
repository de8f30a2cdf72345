"""
The kind Cluster: raft groups of brokers, their name servers, their storage and their settings.

`plan.refusals` decides which changes of a running cluster are allowed; this module says what one manifest may contain.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from orderlymq_operator.resources.autogrow import LIMIT_RULE, AutoGrow
from orderlymq_operator.resources.backups.bootstrap import Bootstrap
from orderlymq_operator.resources.cluster.brokerconfig import LOCK_KEY, BrokerConfig
from orderlymq_operator.resources.cluster.canary import Canary
from orderlymq_operator.resources.cluster.console import Console
from orderlymq_operator.resources.cluster.listeners import (
    LIST_RULES,
    NODE_PORT_RULE,
    Listeners,
    check_names,
    listener_problems,
)
from orderlymq_operator.resources.cluster.network import Network
from orderlymq_operator.resources.cluster.security import Security, contradictions
from orderlymq_operator.resources.cluster.status import GROUPS_MAX, REPLICAS_MAX, ClusterStatus
from orderlymq_operator.resources.meta import (
    IMMUTABLE,
    DnsName,
    FilePath,
    KubernetesObject,
    Model,
    Name,
    rule,
    rules,
)
from orderlymq_operator.resources.pod.template import PodTemplate
from orderlymq_operator.resources.quantities import Duration, Quantity
from orderlymq_operator.resources.quotas import Quotas
from orderlymq_operator.resources.workload import (
    BROKER_RESOURCES,
    NAME_SERVER_RESOURCES,
    Image,
    ImagePullPolicy,
    ImagePullSecrets,
    Placement,
    Resources,
    ScaleDown,
    Update,
)
from orderlymq_protocol.brokerkeys import BROKER_KEYS, ELECTION_MS_MAX, LOCK_LEASE_MS_MIN

Port = Annotated[int, Field(ge=1024, le=65535)]

ANY_NAMESPACE: Final = "*"
NAMESPACES_MAX: Final = 64  # namespaces that may use one cluster; "*" allows any number
AllowedNamespace = Annotated[
    str,
    StringConstraints(pattern=r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$", min_length=1, max_length=63),
]
NAME_SERVERS_MAX: Final = 5
ELECTION_MAX: Final = Duration(f"{ELECTION_MS_MAX // 1000}s")
PORT_STEP: Final = (
    10  # between broker groups: room for a group's port, its port - 2 and five replicas
)
# RocketMQ clients up to 4.4 send to the broker's port - 2 (MixAll.brokerVIPChannel).
VIP_DISTANCE: Final = 2


class NameServers(Model):
    """The name servers (route registry). They are independent of each other, so two survive the loss of one."""

    replicas: Annotated[int, Field(ge=1, le=NAME_SERVERS_MAX)] = Field(
        default=2,
        description="Number of name servers. It can only grow, because clients keep their addresses.",
        json_schema_extra=rules(
            rule("self >= oldSelf", "name servers cannot be removed: clients keep their addresses")
        ),
    )
    resources: Resources = Field(
        default=NAME_SERVER_RESOURCES,
        description="Resources of a name server's pod; only in Kubernetes.",
    )


class Storage(Model):
    """Disk of each replica."""

    size: Quantity = Field(
        default=Quantity("20Gi"),
        description="Size of one replica's disk; old messages are deleted before it is full. Never shrinks.",
        json_schema_extra=rules(
            rule(
                "quantity(self).compareTo(quantity(oldSelf)) >= 0",
                "storage never shrinks; keep the old size or choose a larger one",
            )
        ),
    )
    delete_claim: Literal["Retain", "Delete"] = Field(
        default="Retain",
        description="Whether the data of replicas is kept or deleted when the Cluster is deleted.",
    )
    class_name: DnsName | None = Field(
        default=None,
        description="StorageClass of the volumes. Defaults to the cluster's default StorageClass. Only in Kubernetes.",
        json_schema_extra=IMMUTABLE,
    )
    auto_grow: AutoGrow | None = Field(
        default=None,
        description="Grow volumes before they are full, if their StorageClass allows it; only in Kubernetes.",
    )

    @model_validator(mode="after")
    def _limit_is_not_below_the_size(self) -> Self:
        growth = self.auto_grow
        if growth is not None and growth.limit.size_bytes < self.size.size_bytes:
            raise ValueError("storage.autoGrow.limit must not be below storage.size")
        return self


class Retention(Model):
    """How long messages stay readable."""

    time: Duration = Field(
        default=Duration("72h"), description="Messages older than this are deleted."
    )
    size: Quantity | None = Field(
        default=None,
        description="Size of the messages that a group keeps. Defaults to three fifths of storage.autoGrow.limit or, without "
        "it, of storage.size.",
    )


class Lock(Model):
    """Queue locks of ordered consumers."""

    lease_seconds: Annotated[int, Field(ge=LOCK_LEASE_MS_MIN // 1000, le=300)] = Field(
        default=60,
        description="How long a RocketMQ client that does not renew its locks keeps its queues: at least 32 s plus the longest run "
        "of its listener. The Python SDK asks for its own lease, 15 s.",
    )
    takeover: Literal["LeaseExpiry", "ConfirmedPodDeath"] = Field(
        default="ConfirmedPodDeath",
        description="ConfirmedPodDeath frees the queues of a consumer as soon as its pod is proven to be gone; LeaseExpiry "
        "waits until the lease ends: leaseSeconds for RocketMQ clients, 15 s for the Python SDK. Only in Kubernetes.",
    )


_BODY_MAX: Final = f"{BROKER_KEYS['maxMessageSize'].high >> 20}Mi"
_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


class Config(BrokerConfig):
    """Settings of the brokers. Settings that RocketMQ has, too, have RocketMQ's names."""

    auto_create_topic_enable: bool = Field(
        default=True,
        description="Create a Normal topic when a client sends to an unknown topic; only after all declared topics exist.",
    )
    auto_create_subscription_group: bool = Field(
        default=True, description="Create a consumer group when an unknown one connects."
    )
    message_delay_level: Annotated[
        str,
        StringConstraints(pattern=r"^[0-9]{1,6}[smhd]( [0-9]{1,6}[smhd]){0,31}$", max_length=255),
    ] = Field(default=_DELAY_LEVELS, description="The delays of the delay levels, from level 1 on.")
    max_message_size: Quantity = Field(
        default=Quantity("4Mi"),
        description=f"Largest size of a message body; at most {_BODY_MAX}.",
        json_schema_extra=rules(
            rule(
                f"quantity(self).compareTo(quantity('{_BODY_MAX}')) <= 0",
                f"maxMessageSize is 1 to {_BODY_MAX}: brokers do not start with a larger value",
            )
        ),
    )
    disk_max_used_space_ratio: Annotated[int, Field(ge=10, le=99)] = Field(
        default=90,
        description="Sends are refused when more than this percentage of the disk is used.",
    )
    dedup_window_count: Annotated[int, Field(ge=0, le=10_000_000)] = Field(
        default=100_000,
        description="Number of recent sends that are remembered to recognise repeats.",
    )
    dedup_window_time: Duration = Field(
        default=Duration("10m"),
        description="How long a send is remembered to recognise repeats.",
    )
    raft_heartbeat: Duration = Field(
        default=Duration("50ms"), description="Interval between the heartbeats of a raft leader."
    )
    raft_election_timeout: Duration = Field(
        default=Duration("200ms"),
        description="Time without a heartbeat after which a follower starts an election; at least twice raftHeartbeat, at "
        f"most {ELECTION_MAX}.",
    )
    client_expiry: Duration = Field(
        default=Duration("120s"),
        description="A client that sends no heartbeat for this long counts as gone.",
    )
    transaction_time_out: Duration = Field(
        default=Duration("6s"),
        description="Age of a half message at which its producer is first asked for the outcome of the transaction.",
    )
    transaction_check_interval: Duration = Field(
        default=Duration("60s"), description="Interval between two checks of a half message."
    )
    transaction_check_max: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=15,
        description="Unanswered checks after which a half message is moved to TRANS_CHECK_MAX_TIME_TOPIC.",
    )
    tail_cache_size: Quantity = Field(
        default=Quantity("64Mi"), description="Memory for the newest messages, per replica."
    )
    block_cache_size: Quantity = Field(
        default=Quantity("64Mi"),
        description="Memory for the block cache of the store, per replica.",
    )
    trace_topic_enable: bool = Field(
        default=False, description="Create RMQ_SYS_TRACE_TOPIC, to which clients send traces."
    )
    enable_property_filter: bool = Field(
        default=True,
        description="Accept subscriptions with SQL92 filters; RocketMQ's default is false.",
    )
    acl_enable: bool = Field(
        default=False,
        description="Serve only requests that are signed by a User with the right to do what they ask.",
    )
    signed_administration: bool = Field(
        default=False,
        description="Refuse administration requests without OrderlyMQ's own signature, including those of RocketMQ's tools.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Lowest level of the log lines that are written."
    )
    log_format: Literal["text", "json"] = Field(default="text", description="Format of log lines.")

    @model_validator(mode="after")
    def _brokers_take_the_size(self) -> Self:
        if self.max_message_size.size_bytes > BROKER_KEYS["maxMessageSize"].high:
            raise ValueError(
                f"maxMessageSize {self.max_message_size} is not between 1 and {_BODY_MAX}"
            )
        return self


class Tls(Model):
    """TLS for clients, on the usual ports of brokers and name servers."""

    mode: Literal["Disabled", "Permissive", "Enforcing"] = Field(
        default="Disabled",
        description="Permissive also serves clients without TLS; Enforcing closes their connections. A running cluster must "
        "go through Permissive between Disabled and Enforcing.",
        json_schema_extra=rules(
            rule(
                "self == oldSelf || self == 'Permissive' || oldSelf == 'Permissive'",
                "mode cannot go from Disabled to Enforcing, or back, while the cluster runs: apply Permissive first, "
                "and wait until every pod has it",
            )
        ),
    )
    certificate_file: FilePath | None = Field(
        default=None,
        description="File with the certificate chain as PEM; a relative path is relative to the manifest.",
    )
    key_file: FilePath | None = Field(
        default=None, description="File with the private key as PEM, without a passphrase."
    )
    ca_file: FilePath | None = Field(
        default=None,
        description="File with the trusted authorities, for client certificates and for connections between "
        "OrderlyMQ's processes.",
    )
    client_auth: Literal["None", "Optional", "Required"] = Field(
        default="None",
        description="Whether clients may or must present a certificate of a trusted authority.",
    )
    secret_name: Name | None = Field(
        default=None,
        description="Secret with tls.crt, tls.key and ca.crt, instead of the files; only in Kubernetes.",
    )

    @model_validator(mode="after")
    def _has_its_files(self) -> Self:
        if self.secret_name is not None:
            if self.certificate_file or self.key_file or self.ca_file:
                raise ValueError("set secretName or the files, not both")
            return self
        if self.mode != "Disabled" and not (self.certificate_file and self.key_file):
            raise ValueError("TLS needs certificateFile and keyFile, or in Kubernetes secretName")
        if self.client_auth != "None" and not self.ca_file:
            raise ValueError(f"clientAuth {self.client_auth} needs caFile")
        return self


class Local(Model):
    """Addresses when the cluster runs as processes on one machine (`orderlymq up`).

    Name server i listens on nameServerPort + i. Group g answers clients on brokerPort + 10 g and on
    that port - 2. Replica n of group g speaks raft on raftPort + 10 g + n and HTTP on
    httpPort + 10 g + n. Name server i speaks HTTP on httpPort - 10 + i.
    """

    host: Annotated[str, StringConstraints(min_length=1, max_length=253)] = Field(
        default="127.0.0.1",
        description="Address on which processes listen and to which clients connect.",
    )
    name_server_port: Port = Field(default=9876, description="Port of the first name server.")
    broker_port: Port = Field(default=10911, description="Port of the first group.")
    raft_port: Port = Field(default=12910, description="Base of the ports between replicas.")
    http_port: Port = Field(default=13910, description="Base of the HTTP ports.")

    def name_server(self, index: int) -> int:
        """Return the port on which clients reach name server *index*."""
        return self.name_server_port + index

    def name_server_http(self, index: int) -> int:
        """Return the HTTP port of name server *index*."""
        return self.http_port - PORT_STEP + index

    def broker(self, group: int) -> int:
        """Return the stable client port of *group*; port - 2 answers too."""
        return self.broker_port + PORT_STEP * group

    def raft(self, group: int, node: int) -> int:
        """Return the port on which the other replicas reach *node* (from 1) of *group*."""
        return self.raft_port + PORT_STEP * group + node

    def http(self, group: int, node: int) -> int:
        """Return the HTTP port of *node* (from 1) of *group*."""
        return self.http_port + PORT_STEP * group + node


class ClusterSpec(Model):
    """Desired state of a cluster."""

    groups: Annotated[int, Field(ge=1, le=GROUPS_MAX)] = Field(
        default=1,
        description="Number of raft groups; the index of a group identifies it. Shrinks only with scaleDown.policy Drain.",
    )
    replicas_per_group: Literal[1, 3, 5] = Field(
        default=3,
        description="Replicas of each group: 3 survive the loss of one, 5 the loss of two.",
    )
    name_servers: NameServers = Field(
        default=NameServers(), description="The name servers (route registry)."
    )
    storage: Storage = Field(
        default=Storage(), description="Disk of each replica.", json_schema_extra=LIMIT_RULE
    )
    retention: Retention = Field(default=Retention(), description="How long messages are kept.")
    flush_disk_type: Literal["SYNC_FLUSH", "ASYNC_FLUSH"] = Field(
        default="SYNC_FLUSH",
        description="SYNC_FLUSH acknowledges a send when a majority has it on disk; ASYNC_FLUSH when a majority has handed it "
        "to the operating system.",
    )
    lock: Lock = Field(default=Lock(), description="Queue locks of ordered consumers.")
    tls: Tls = Field(default=Tls(), description="TLS for clients.")
    security: Security = Field(default=Security(), description="Security of the Cluster.")
    address_quotas: Quotas = Field(
        default=Quotas(), description="Limits for each client address at each broker group."
    )
    config: Config = Field(default=Config(), description="Settings of the brokers.")
    local: Local = Field(
        default=Local(),
        description="Addresses when the cluster runs as processes on one machine.",
        json_schema_extra=IMMUTABLE,
    )
    network: Network = Field(
        default=Network(), description="Who may reach the pods; only in Kubernetes."
    )
    listeners: Listeners = Field(
        default=[],
        description="Listeners for clients in other networks, in addition to that for pods and Services; only in Kubernetes.",
        json_schema_extra=LIST_RULES,
    )
    allowed_namespaces: Annotated[list[AllowedNamespace], Field(max_length=NAMESPACES_MAX)] = Field(
        default=[],
        description="Other namespaces whose Topics, ConsumerGroups, Users and Pipelines may name this Cluster; "
        '"*" allows all. A listed namespace has the same rights as the Cluster\'s own; only in Kubernetes.',
    )
    console: Console = Field(default=Console(), description="The console; only in Kubernetes.")
    bootstrap: Bootstrap | None = Field(
        default=None,
        description="Source of the Cluster's initial data; without it the Cluster begins empty. It can only be set when the "
        "Cluster is created. Only in Kubernetes.",
        json_schema_extra=IMMUTABLE,
    )
    canary: Canary = Field(
        default=Canary(),
        description="A canary that checks order, delivery and latency continuously; only in Kubernetes.",
    )
    image: Image | None = Field(
        default=None,
        description="Image of brokers and name servers. Defaults to the operator's own image. Only in Kubernetes.",
    )
    image_pull_policy: ImagePullPolicy = None
    image_pull_secrets: ImagePullSecrets = Field(default=[])
    resources: Resources = Field(
        default=BROKER_RESOURCES,
        description="Resources of a replica's pod; only in Kubernetes.",
    )
    placement: Placement = Placement()
    pod_template: PodTemplate | None = Field(
        default=None,
        description="Additions to the pods of brokers and name servers; a change replaces the pods one by one, like a change "
        "of settings; only in Kubernetes.",
    )
    update: Update = Field(
        default=Update(), description="How changes reach running pods; only in Kubernetes."
    )
    scale_down: ScaleDown = Field(default=ScaleDown(), description="Whether groups may be removed.")

    @model_validator(mode="after")
    def _settings_fit_each_other(self) -> Self:
        heartbeat, election = self.config.raft_heartbeat, self.config.raft_election_timeout
        if election.milliseconds < 2 * heartbeat.milliseconds:
            raise ValueError(
                f"config.raftElectionTimeout {election} must be at least twice config.raftHeartbeat "
                f"{heartbeat}, or one late heartbeat starts an election"
            )
        if election.milliseconds > ELECTION_MAX.milliseconds:
            raise ValueError(
                f"config.raftElectionTimeout {election} must be at most {ELECTION_MAX}, or it would take hours to replace a "
                "lost leader"
            )
        _check_one_meaning(self)
        _check_ports(self.local, self.groups)
        for text in contradictions(
            self.security,
            tls_mode=self.tls.mode,
            is_tls_named=self.tls.secret_name is not None,
            acl=self.config.acl_enable,
            signed=self.config.signed_administration,
            namespaces=self.allowed_namespaces,
            plain_listeners=[each.name for each in self.listeners if each.tls is None],
        ):
            raise ValueError(text)
        for text in listener_problems(self.listeners, self.pod_template, self.groups):
            raise ValueError(text)
        return self


# RocketMQ keys that mean the same as a field of ours, with the field's default: that value means that the field was
# not set.
_ONE_MEANING: Final = (
    ("fileReservedTime", "retention.time", Retention().time),
    ("flushDiskType", "flushDiskType", "SYNC_FLUSH"),
    (LOCK_KEY, "lock.leaseSeconds", Lock().lease_seconds),
)


def _twice(key: str, field: str) -> str:
    return f"config.{key} and {field} set the same thing; remove one of them"


def _check_one_meaning(spec: ClusterSpec) -> None:
    """Raise ValueError if a key of RocketMQ and a field of ours contradict each other."""
    config = spec.config
    given = (config.file_reserved_time, config.flush_disk_type, config.lock_max_live_time)
    ours = (spec.retention.time, spec.flush_disk_type, spec.lock.lease_seconds)
    for (key, field, default), one, other in zip(_ONE_MEANING, given, ours, strict=True):
        if one is not None and other != default:
            raise ValueError(_twice(key, field))


# The checks of `_settings_fit_each_other` that no part makes, for the API server. CEL writes a point in a name this
# way.
SPEC_RULES: Final = [
    *(
        rule(
            f"!has(self.config.{key.replace('.', '__dot__')}) || self.{field} == {default!r}",
            _twice(key, field),
            field=".config",
        )
        for key, field, default in _ONE_MEANING
    ),
    rule(
        "!has(self.podTemplate) || self.podTemplate.sidecars.all(one, one.ports.all(port, "
        "!self.listeners.exists(each, each.port == port.containerPort)))",
        "a sidecar and a listener of spec.listeners have the same port; choose another port for one of them",
        field=".podTemplate",
    ),
    NODE_PORT_RULE,
]


def _check_ports(local: Local, groups: int) -> None:
    """Raise ValueError if two ports of the layout are the same, or a port does not exist."""
    users: dict[int, str] = {}

    def claim(port: int, user: str) -> None:
        if users.setdefault(port, user) != user:
            raise ValueError(
                f"local: port {port} would be used by {users[port]} and by {user}; change one of the base ports"
            )
        if not 0 < port <= 65535:
            raise ValueError(
                f"local: port {port} of {user} does not exist; choose a lower base port"
            )

    for index in range(NAME_SERVERS_MAX):
        claim(local.name_server(index), f"name server {index}")
        claim(local.name_server_http(index), f"HTTP of name server {index}")
    for group in range(groups):
        claim(local.broker(group), f"group {group}")
        claim(local.broker(group) - VIP_DISTANCE, f"the second port of group {group}")
        for node in range(1, REPLICAS_MAX + 1):
            claim(local.raft(group, node), f"raft of replica {group}-{node}")
            claim(local.http(group, node), f"HTTP of replica {group}-{node}")


class Cluster(KubernetesObject):
    """A set of broker groups that serve the same topics."""

    kind: Literal["Cluster"] = "Cluster"
    spec: ClusterSpec = ClusterSpec()
    status: ClusterStatus | None = None

    @model_validator(mode="after")
    def _services_have_names(self) -> Self:
        check_names(self.metadata.name, self.spec.listeners)
        return self

    def group_name(self, index: int) -> str:
        """Return the broker name of group *index*, as clients see it in routes."""
        return f"{self.metadata.name}-{index}"

    @property
    def group_names(self) -> tuple[str, ...]:
        """The broker names of all broker groups, in the order of their index."""
        return tuple(self.group_name(index) for index in range(self.spec.groups))
