"""
Checks that refuse a send: topic, queue, size. A refusal means that nothing is stored and nothing will be.

The rules: the checks have RocketMQ's order and remarks (SendMessageProcessor). ``core/capacity.py`` refuses sends on
a full disk, ``topics/expansionrequests.py`` those to a topic whose queues change.
"""

from typing import Final

from orderlymq_broker.core.capacity import FORBIDDEN, check_room, check_writable
from orderlymq_broker.core.messagedraft import MessageDraft
from orderlymq_broker.core.requestcontext import Context, CreateFirst, RequestRefused, check_name
from orderlymq_broker.state.records import TopicSet
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.body.config import PERM_INHERIT, PERM_WRITE
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.header.send import SendMessageHeader
from orderlymq_protocol.names import (
    AUTO_CREATE_TOPIC,
    check_topic_name,
    is_retry_topic,
)
from orderlymq_protocol.plurals import counted

_ILLEGAL: Final = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length "
    "limit {limit}B, msg properties length limit 32KB."
)
_TOPIC_FORBIDS: Final = f"{FORBIDDEN}topic[{{topic}}] has no write permission"
_CANCELLED: Final = (
    "the message is not stored: its key was cancelled at {cancelled}, and this attempt was "
    "created earlier, at {born} (milliseconds since 1970); to send it anyway, send it "
    "again, and set the clock of this client if it is behind"
)
_NO_TRANSACTIONS: Final = (
    "the broker[{broker}] sending transaction message is forbidden: rejectTransactionMessage is true; "
    "send it without a transaction, or ask an administrator to set it to false"
)


def check_target(context: Context, topic: Topic, queue_id: int) -> None:
    """Refuse a send that cannot be stored in this queue or in any; never call this for a stored message.

    Raises:
        RequestRefused: there is no room (14, 2), or the queue takes no messages (16) or does not exist (1).
    """
    settings = context.settings
    if context.disk_full or context.entries.uncommitted > settings.raft.uncommitted_size_max:
        check_room(context)
    if (
        not settings.permission & PERM_WRITE
        or not topic.sendable
        or not topic.writable
        or queue_id >= topic.queue_count
    ):
        check_writable(context)
        raise _target_refusal(context, topic, queue_id)


def _target_refusal(context: Context, topic: Topic, queue_id: int) -> RequestRefused:
    code, remark = ResponseCode.NO_PERMISSION, ""
    if not topic.sendable:
        remark = f"Sending message to topic[{topic.name}] is forbidden."
    elif not topic.writable:
        remark = _TOPIC_FORBIDS.format(broker=context.settings.group, topic=topic.name)
    else:
        code = ResponseCode.SYSTEM_ERROR
        remark = (
            f"request queueId[{queue_id}] is illegal, topic[{topic.name}] has "
            f"{counted(topic.queue_count, 'queue')}"
        )

    return RequestRefused(code, remark)


def missing_topic(context: Context, header: SendMessageHeader) -> CreateFirst:
    """Return the exception that creates an unknown topic.

    Raises:
        RequestRefused: the name or the default topic does not allow it.
    """
    name, settings = header.topic, context.settings
    check_name(check_topic_name, name)
    if is_retry_topic(name):
        return CreateFirst(TopicSet(name, 1, 1, only_if_absent=True))
    default = context.state.topics.get(header.default_topic)
    if (
        default is None
        or not default.config.perm & PERM_INHERIT
        or (default.name == AUTO_CREATE_TOPIC and not settings.auto_create_topic)
    ):
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[{name}] not exist, apply first please! Create it, or send with a default "
            "topic that may be inherited while the broker creates topics automatically",
        )
    limit = default.config.write_queues
    if default.name == AUTO_CREATE_TOPIC:
        limit = min(limit, settings.default_topic_queues)
    queues = max(1, min(header.default_topic_queue_nums, limit))
    perm = default.config.perm & ~PERM_INHERIT

    return CreateFirst(TopicSet(name, queues, queues, perm=perm, only_if_absent=True))


def wait_for_creation(context: Context, topic: str) -> None:
    """Let a send wait behind those that wait for the creation of its topic.

    Raises:
        CreateFirst: the creation is in progress.
    """
    wanted = CreateFirst(TopicSet(topic, 1, 1, only_if_absent=True))
    if wanted.names in context.view.creating:
        raise wanted


def check_transactions(context: Context) -> None:
    """Refuse half messages if the broker takes none.

    Raises:
        RequestRefused: it takes none (16).
    """
    settings = context.settings
    if settings.reject_transactions:
        remark = _NO_TRANSACTIONS.format(broker=settings.group)
        raise RequestRefused(ResponseCode.NO_PERMISSION, remark)


def check_cancelled(context: Context, draft: MessageDraft) -> None:
    """Refuse a late try of a cancelled timer message; it would otherwise be delivered despite the cancellation.

    Raises:
        RequestRefused: it was born before the cancellation (13).
    """
    cancelled_ms = context.view.cancelled_ms(draft.identity, context.state.dedup)
    if draft.born_timestamp < cancelled_ms:
        remark = _CANCELLED.format(born=draft.born_timestamp, cancelled=cancelled_ms)
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, remark)


def illegal(context: Context, detail: str = "") -> RequestRefused:
    """Return the refusal of a message that is too large or invalid (13)."""
    remark = _ILLEGAL.format(limit=context.settings.storage.body_size_max)

    return RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"{remark} {detail}" if detail else remark)
