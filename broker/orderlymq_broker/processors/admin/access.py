"""
Access control: decides whether a request is served to the account that signed it.

The rules are RocketMQ's (PlainPermissionManager, AclUtils). They check, in this order: global white addresses,
account, the account's own white address, signature, and the permissions that the request needs. The signature covers
the raw header fields and the body. Signatures are compared in constant time. Some rules are stricter than RocketMQ's:

- An account has no more permissions at its white address than elsewhere.
- Its default permission gives nothing in the broker's own topics.
- To read dead letters, it needs a permission for their consumer group.
- To take queue locks or to move a group's offsets, it needs the group and the topics, because it becomes a reader of
  these topics, for which an expansion waits.
- Changes of accounts and of the cluster need an administrator.

Requests of our own operator and command (`OPERATOR_CODES`) always need a signature of version 2 (``signature.py`` of
the protocol). It must be that of the operator's account or, with access control, of an administrator. An address or a
signature of RocketMQ's form proves nothing there. The same holds for changes of accounts while access control is off
(`_ACCOUNT_CODES`). A broker without an operator's account and without access control serves all of these unsigned.
Such a broker is one that a person starts on its own, never one of `orderlymq up` or the operator.
``state/admin/access.py`` holds the accounts; ``accounts.py`` serves the requests that change them.
"""

import hmac
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from orderlymq_broker.core.bodylimits import read_heartbeat
from orderlymq_broker.core.effects import Caller, Now
from orderlymq_broker.core.requestcontext import Context, RequestRefused
from orderlymq_broker.processors.admin.addresses import AddressPatternError, address_matcher
from orderlymq_broker.processors.admin.rotation import valid_secrets
from orderlymq_broker.processors.admin.wrongsignatures import WrongSignatures
from orderlymq_broker.processors.fetch.read import read_applied
from orderlymq_broker.processors.groups.strategies import AssignmentRequest
from orderlymq_broker.state.admin.accessrecords import AccountSet
from orderlymq_protocol.body.clients import LockBatchRequest
from orderlymq_protocol.body.declaration import ModelError
from orderlymq_protocol.body.fastjson import JsonError
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import (
    ConsumerSendMsgBackHeader,
    EndTransactionHeader,
    HeaderError,
    ViewMessageHeader,
)
from orderlymq_protocol.header.extensions import EXT_TOKEN
from orderlymq_protocol.message.ids import MessageIdError, decode_offset_message_id
from orderlymq_protocol.message.record import decode_record
from orderlymq_protocol.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    TRACE_TOPIC,
    UNSENDABLE_TOPICS,
    is_dlq_topic,
    is_retry_topic,
    reply_topic,
)
from orderlymq_protocol.signature import (
    KEY,
    ROCKETMQ_SIGNATURE,
    SERVER,
    ReplayGuard,
    SignatureRefused,
    is_signed,
    verified,
)

ACCESS_KEY: Final = "AccessKey"
# Clients up to RocketMQ 4.9.3 add this field to a query after they sign it; later ones sign it as well.
_ADDED_FIELD: Final = "_UNIQUE_KEY_QUERY"
_ADDED_VERSION_MAX: Final = 399
# Clients of RocketMQ find this text in the remark of a refusal, before the reason.
EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "

PUB: Final = 1
SUB: Final = 2
PERMISSIONS: Final[Mapping[str, int]] = {
    "DENY": 0,
    "PUB": PUB,
    "SUB": SUB,
    "PUB|SUB": PUB | SUB,
    "SUB|PUB": PUB | SUB,
}

OPERATOR_CODES: Final = frozenset(
    {
        RequestCode.ORDERLYMQ_CLIENT_DEAD,
        RequestCode.ORDERLYMQ_CHANGE_QUEUES,
        RequestCode.ORDERLYMQ_SET_ASSIGNMENT,
        RequestCode.ORDERLYMQ_RELEASE_KEY,
        RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP,
        RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP,
        RequestCode.ORDERLYMQ_BACKUP_BEGIN,
        RequestCode.ORDERLYMQ_BACKUP_READ,
        RequestCode.ORDERLYMQ_BACKUP_END,
    }
)
# A client that could send these while access control is off would have all permissions once it is switched on.
_ACCOUNT_CODES: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    }
)
ADMIN_CODES: Final = (
    OPERATOR_CODES
    | _ACCOUNT_CODES
    | frozenset(
        {
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
            RequestCode.DELETE_TOPIC_IN_BROKER,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            RequestCode.UPDATE_BROKER_CONFIG,
        }
    )
)

# Requests with which operators change something. They are refused if they name the token of a replaced operator.
_FENCED_CODES: Final = ADMIN_CODES | {RequestCode.UPDATE_CONSUMER_OFFSET}


@dataclass(frozen=True, slots=True)
class Need:
    """A permission that a request needs: for a topic, or for a consumer group."""

    name: str
    permission: int
    is_group: bool = False

    def __str__(self) -> str:
        return f"{'group' if self.is_group else 'topic'}-{self.name}"


# As in RocketMQ, every account may write traces and answer requests: a reply goes to the client that asked. A message
# that waits or belongs to a transaction is not a trace (`check_publish`).
_TRACES: Final = Need(TRACE_TOPIC, PUB)
_TRACE_CODES: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)
_REPLY_CODES: Final = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)


class AccessControl:
    """Checks the permission of requests.

    Life cycle: call `start` each time that this replica begins to lead.

    Attributes:
        enabled: all requests are checked, not only those of operators.
        admitted: the numbers of the connections that sent a request which passed.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        settings = context.settings.access
        self.enabled = settings.enable
        self.admitted: set[int] = set()
        self._replies = Need(reply_topic(context.settings.cluster), PUB)
        self._operator: AccountSet | None = None
        if settings.operator_key and settings.operator_secret:
            self._operator = AccountSet(settings.operator_key, settings.operator_secret, admin=True)
        self._signed_codes: frozenset[int] = frozenset()
        if self._operator is not None or self.enabled:
            signed = settings.signed_administration
            self._signed_codes = ADMIN_CODES if signed else OPERATOR_CODES
        if self._operator is not None and not self.enabled:
            self._signed_codes |= _ACCOUNT_CODES
        self._guard = ReplayGuard("")
        self._wrong = WrongSignatures(context)

    def start(self, wall_ms: int) -> None:
        """Begin to lead; from now on, requests that were signed for an earlier leader are refused."""
        context = self._context
        self._guard = ReplayGuard(f"{context.settings.group}/{context.term}/{wall_ms}")

    def admit(self, request: RemotingCommand, caller: Caller, now: Now) -> Caller:
        """Return the caller with the account of its request, or refuse the request.

        Raises:
            RequestRefused: access is denied; it has RocketMQ's code and a remark that names the reason.
        """
        # A client that could name a token without proof could lock operators out.
        needs_proof = (
            request.code in self._signed_codes
            or (bool(self._signed_codes) and is_of_operator(request))
            or (not self.enabled and self._operator is not None and _shows_accounts(request))
        )
        if not self.enabled and not needs_proof:
            return caller
        try:
            judge = self._check_proof if needs_proof else self._judge
            account = judge(request, caller, now)
        except RequestRefused:
            self._context.counters["access_denied"] += 1
            raise
        except (ModelError, JsonError) as unreadable:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(unreadable)) from unreadable
        self.admitted.add(caller.connection)

        if not self.enabled:
            return caller
        return Caller(caller.connection, caller.host, caller.port, account, caller.listener)

    def may_publish(self, caller: Caller, topic: str) -> bool:
        """Return whether a caller that was admitted earlier may write to a topic now."""
        if not self.enabled:
            return True
        if not caller.account:
            return self._is_white(caller)
        account = self._account(caller.account)

        return account is not None and (account.admin or not _lack(account, _topic(topic, PUB)))

    def check_publish(self, caller: Caller, topic: str) -> None:
        """Refuse a message to *topic* if the caller may write only traces there, unless the message is a trace.

        Raises:
            RequestRefused: its account has no permission for the topic.
        """
        if not self.may_publish(caller, topic):
            self._context.counters["access_denied"] += 1
            _deny(
                f"No permission for topic-{topic}; accessKey={caller.account} may write only traces "
                "there, without a delay and without a transaction"
            )

    def may_read(self, request: RemotingCommand, *, group: str = "", topic: str = "") -> bool:
        """Return whether the signer of an admitted request may consume for *group* or, without one, read *topic*."""
        account = self._account(request.ext.get(ACCESS_KEY, "")) if self.enabled else None
        if account is None or account.admin:
            return True

        return not _lack(account, _group(group) if group else _topic(topic, SUB))

    def closed(self, connection: int) -> None:
        """Remove a connection."""
        self.admitted.discard(connection)

    def _check_proof(self, request: RemotingCommand, caller: Caller, now: Now) -> str:
        """Check the administrator's signature of version 2; return the access key."""
        if not self._context.leading:
            # Only the leader knows which signatures were used already.
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "this replica does not lead its group yet; send the request to the group's leader",
            )
        if not is_signed(request.ext):
            text = (
                f"request code={request.code} needs a signature of version 2 by the operator's "
                "account or an administrator; use `orderlymq` with such credentials, or on the "
                "machine where `orderlymq up` runs (ORDERLYMQ_DATA_DIR names its data directory)"
            )
            raise self._signature_refusal(text)
        access_key = request.ext.get(KEY, "")
        account = self._account(access_key)
        if account is None:
            _deny(f"No acl config for {access_key}; ask an administrator for an account")
        self._check_size(request, caller, now)
        secrets = valid_secrets(account, now.wall_ms)
        try:
            stamp = verified(request, [secret.encode() for secret in secrets])
        except SignatureRefused as refused:
            self._count_wrong(request, caller, now)
            raise self._signature_refusal(str(refused)) from refused
        # Check this before the guard remembers the signature: only administrators may use the memory that all share.
        # Check it for every code: an account that may commit offsets must not decide which operator is valid.
        if not account.admin:
            _deny_for(request, account)
        try:
            self._guard.take(stamp, now.wall_ms)
        except SignatureRefused as refused:
            raise self._signature_refusal(str(refused)) from refused

        return access_key

    def _signature_refusal(self, text: str) -> RequestRefused:
        """Return the refusal with the guard's present mark; an administrator signs again with that mark."""
        return RequestRefused(
            ResponseCode.SYSTEM_ERROR, EXCEPTION + text, {SERVER: self._guard.mark}
        )

    def _check_size(self, request: RemotingCommand, caller: Caller, now: Now) -> None:
        """Refuse a request that is too large for a stranger. A caller that has shown a valid signature is no stranger."""
        if caller.connection not in self.admitted:
            self._wrong.check(request, caller, now.monotonic_ms)

    def _count_wrong(self, request: RemotingCommand, caller: Caller, now: Now) -> None:
        """Count a wrong signature; a large request with one makes its connection a stranger again."""
        if self._wrong.count(request, caller, now.monotonic_ms):
            self.admitted.discard(caller.connection)

    def _judge(self, request: RemotingCommand, caller: Caller, now: Now) -> str:
        """Check RocketMQ's signature and the account's permissions; return the access key, empty if none is needed."""
        if self._is_white(caller):
            return ""
        access_key = request.ext.get(ACCESS_KEY, "")
        if not access_key:
            _deny("No accessKey is configured; sign requests with an access key and its secret")
        account = self._account(access_key)
        if account is None:
            _deny(f"No acl config for {access_key}; ask an administrator for an account")
        is_near = account.white_address and _is_at(caller, account.white_address)
        if not is_near:
            self._check_size(request, caller, now)
        if not is_near and not self._is_signed_by(account, request, now.wall_ms):
            self._count_wrong(request, caller, now)
            _deny(f"Check signature failed for accessKey={access_key}; its secret is different")
        self._check_permissions(request, account)

        return access_key

    def _is_signed_by(self, account: AccountSet, request: RemotingCommand, wall_ms: int) -> bool:
        """Return whether one of the account's valid secrets made the signature; count it if it was the former secret."""
        given = request.ext.get(ROCKETMQ_SIGNATURE, "").encode()
        for secret in valid_secrets(account, wall_ms):
            expected = signature(request.ext, request.body, secret, request.version).encode()
            if hmac.compare_digest(expected, given):
                self._context.counters["previous_secrets_used"] += secret != account.secret_key
                return True

        return False

    def _is_white(self, caller: Caller) -> bool:
        """Return whether a caller is at an address that needs no account."""
        return any(
            _is_at(caller, pattern) for pattern in self._context.state.access.white_addresses
        )

    def _account(self, access_key: str) -> AccountSet | None:
        if self._operator is not None and access_key == self._operator.access_key:
            return self._operator
        if not self.enabled:
            return None

        return self._context.state.access.accounts.get(access_key)

    def _check_permissions(self, request: RemotingCommand, account: AccountSet) -> None:
        if account.admin:
            return
        if request.code in ADMIN_CODES or _shows_accounts(request):
            _deny_for(request, account)
        for need in (*needs_of(request), *self._needs_by_state(request)):
            if need == _TRACES and request.code in _TRACE_CODES:
                continue
            if need == self._replies and request.code in _REPLY_CODES:
                continue
            lack = _lack(account, need)
            if lack:
                _deny(lack)

    def _needs_by_state(self, request: RemotingCommand) -> list[Need]:
        """Return the permissions that a request needs for topics that it names only indirectly.

        It needs to read the topic of a message that it names by physical offset, and to write the topic of a
        transaction that it ends. If it copies offsets without naming a topic, it needs to read all of their topics.
        """
        ext, physical = request.ext, -1
        try:
            match request.code:
                case RequestCode.VIEW_MESSAGE_BY_ID:
                    physical = ViewMessageHeader.from_ext(ext).offset
                case RequestCode.CONSUMER_SEND_MSG_BACK:
                    physical = ConsumerSendMsgBackHeader.from_ext(ext).offset
                case RequestCode.CONSUME_MESSAGE_DIRECTLY | RequestCode.RESUME_CHECK_HALF_MESSAGE:
                    physical = decode_offset_message_id(ext.get("msgId", ""))[2]
                case RequestCode.END_TRANSACTION:
                    offset = EndTransactionHeader.from_ext(ext).tran_state_table_offset
                    half = self._context.state.transactions.get(offset)
                    return [] if half is None else [_topic(half.opened.topic, PUB)]
                case RequestCode.CLONE_GROUP_OFFSET if not ext.get("topic"):
                    source = self._context.state.offsets.of_group(ext.get("srcGroup", ""))
                    return [_topic(topic, SUB) for topic in source]
        except (HeaderError, MessageIdError):
            return []  # the handler reports what is wrong
        stored = read_applied(self._context, physical)
        return [] if stored is None else [_topic(decode_record(stored).topic, SUB)]


def is_of_operator(request: RemotingCommand) -> bool:
    """Return whether a request changes something and names the token of the operator that sends it."""
    return request.code in _FENCED_CODES and EXT_TOKEN in request.ext


def signature(
    ext: Mapping[str, str], body: bytes, secret_key: str, version: int = _ADDED_VERSION_MAX + 1
) -> str:
    """Return the signature of a client's header fields and body: HMAC-SHA1 in Base64."""
    unsigned = (
        {ROCKETMQ_SIGNATURE, _ADDED_FIELD}
        if version <= _ADDED_VERSION_MAX
        else {ROCKETMQ_SIGNATURE}
    )
    # Java sorts names by UTF-16 units; for names, which are ASCII, the order is the same.
    text = "".join(ext[name] for name in sorted(ext) if name not in unsigned)
    digest = hmac.digest(secret_key.encode(), text.encode(errors="surrogatepass") + body, "sha1")

    return b64encode(digest).decode()


# -- what requests need ----------------------------------------------------------------------------


def needs_of(request: RemotingCommand) -> list[Need]:
    """Return the permissions that a request needs beyond a valid account.

    Raises:
        ModelError, JsonError: the body cannot be read.
    """
    collect = _NEEDS.get(request.code)

    return [] if collect is None else [need for need in collect(request) if need.name]


def _lack(account: AccountSet, need: Need) -> str:
    """Return why an account that is no administrator lacks a permission; empty if it has it."""
    kind, key = "permission", account.access_key
    has = (account.group_perms if need.is_group else account.topic_perms).get(need.name)
    if has is None and not need.is_group and need.name in UNSENDABLE_TOPICS:
        # The messages in these topics wait for other topics, for which the account may have no permission.
        return f"No permission for {need}; accessKey={key} needs a permission that names it"
    if has is None and not need.is_group and need.permission == SUB and is_dlq_topic(need.name):
        return _lack(account, _group(need.name.removeprefix(DLQ_PREFIX)))
    if has is None:
        kind = "default permission"
        has = account.default_group_perm if need.is_group else account.default_topic_perm
    if PERMISSIONS[has] & need.permission:
        return ""

    return f"No {kind} for {need}; accessKey={key} has {has}"


def _topic(name: str, permission: int) -> Need:
    # A retry topic belongs to its consumer group: an account that may consume for the group may read and fill it.
    # The prefix alone is not the retry topic of any group.
    if is_retry_topic(name) and (group := name.removeprefix(RETRY_PREFIX)):
        return Need(group, SUB, is_group=True)

    return Need(name, permission)


def _group(name: str) -> Need:
    return Need(name, SUB, is_group=True)


def _published(field: str) -> Callable[[RemotingCommand], list[Need]]:
    return lambda request: [_topic(request.ext.get(field, ""), PUB)]


def _fields(*, topic: str = "", group: str = "") -> Callable[[RemotingCommand], list[Need]]:
    def collect(request: RemotingCommand) -> list[Need]:
        ext = request.ext
        needs = [_topic(ext.get(topic, ""), SUB)] if topic else []
        return [*needs, _group(ext.get(group, ""))] if group else needs

    return collect


def _heartbeat(request: RemotingCommand) -> list[Need]:
    needs: list[Need] = []
    for consumer in read_heartbeat(request.body).consumer_data_set:
        needs.append(_group(consumer.group_name))
        needs += [
            _topic(subscription.topic, SUB) for subscription in consumer.subscription_data_set
        ]

    return needs


def _locks(request: RemotingCommand) -> list[Need]:
    asked = LockBatchRequest.from_json(request.body)
    topics = dict.fromkeys(queue.topic for queue in asked.queues)

    return [_group(asked.consumer_group), *(_topic(topic, SUB) for topic in topics)]


def _unlocks(request: RemotingCommand) -> list[Need]:
    # A client may release locks even after it lost the permission for a topic.
    return [_group(LockBatchRequest.from_json(request.body).consumer_group)]


def _assignment(request: RemotingCommand) -> list[Need]:
    assignment = AssignmentRequest.from_json(request.body)

    return [_group(assignment.consumer_group), _topic(assignment.topic, SUB)]


_NEEDS: Final[Mapping[int, Callable[[RemotingCommand], list[Need]]]] = {
    RequestCode.SEND_MESSAGE: _published("topic"),
    RequestCode.SEND_MESSAGE_V2: _published("b"),
    RequestCode.SEND_BATCH_MESSAGE: _published("b"),
    RequestCode.ORDERLYMQ_APPEND_COPIES: _published("topic"),
    RequestCode.SEND_REPLY_MESSAGE: _published("topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _published("b"),
    RequestCode.RECALL_MESSAGE: _published("topic"),
    RequestCode.PULL_MESSAGE: _fields(topic="topic", group="consumerGroup"),
    RequestCode.LITE_PULL_MESSAGE: _fields(topic="topic", group="consumerGroup"),
    RequestCode.UPDATE_CONSUMER_OFFSET: _fields(topic="topic", group="consumerGroup"),
    RequestCode.QUERY_MESSAGE: _fields(topic="topic"),
    RequestCode.QUERY_CONSUME_QUEUE: _fields(topic="topic"),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _fields(group="consumerGroup"),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _fields(group="consumerGroup"),
    RequestCode.CONSUMER_SEND_MSG_BACK: _fields(group="group"),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _fields(group="group"),
    RequestCode.ORDERLYMQ_GROUP_MEMBERS: _fields(group="consumerGroup"),
    RequestCode.ORDERLYMQ_PARKED_KEYS: _fields(group="consumerGroup"),
    RequestCode.ORDERLYMQ_LANES: _fields(group="consumerGroup"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _fields(group="consumerGroup"),
    RequestCode.UNREGISTER_CLIENT: _fields(group="consumerGroup"),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.ORDERLYMQ_HOLD_KEY: _fields(topic="topic", group="consumerGroup"),
    RequestCode.ORDERLYMQ_FETCH_LANES: _fields(topic="topic", group="consumerGroup"),
    RequestCode.ORDERLYMQ_COMPLETE_LANES: _fields(topic="topic", group="consumerGroup"),
    RequestCode.QUERY_ASSIGNMENT: _assignment,
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _unlocks,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _fields(topic="topic", group="group"),
    RequestCode.CLONE_GROUP_OFFSET: _fields(topic="topic", group="destGroup"),
}


def _shows_accounts(request: RemotingCommand) -> bool:
    return request.code == RequestCode.GET_BROKER_CLUSTER_ACL_INFO and "orderlymq" in request.ext


def _is_at(caller: Caller, pattern: str) -> bool:
    """Return whether a caller is at a white address.

    A caller behind a further listener never is: a node port or a balancer gives its clients an address of the inner
    network.
    """
    if caller.listener:
        return False
    try:
        return address_matcher(pattern)(caller.host)
    except AddressPatternError:
        # Patterns are checked when they are set; a pattern that cannot be parsed admits no caller.
        return False


def _deny_for(request: RemotingCommand, account: AccountSet) -> NoReturn:
    """Refuse a request that only an administrator may send."""
    code, key = request.code, account.access_key
    _deny(f"Need admin permission for request code={code}, but accessKey={key} is not")


def _deny(reason: str) -> NoReturn:
    raise RequestRefused(ResponseCode.SYSTEM_ERROR, EXCEPTION + reason)
