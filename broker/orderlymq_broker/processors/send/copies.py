"""
Copies of another cluster's queue: code 20515, whose body has stored records as a pull from the source returned them.

The rules: a copy has the same offset as its message at the source. So the queue is a prefix of the source's queue,
even after several appends of the same copies: if the queue ends elsewhere when the entry is built, nothing of the
request is stored (``core/entrybuilder.py``). A queue that never had a message begins at the copies that the mirror
marks as its first, because retention may have removed earlier ones; late copies of a topic that was created again
have no such mark. A message changes only in where and when it is stored. It does not wait, because it has waited at
the source, and it is no repeat of another message; but a repeat by its sender is recognised by it. The topic may be
closed for sends, so that no other client writes to it. The mirror that sends the copies is
``orderlymq_spark/jobs/mirror``.
"""

from collections.abc import Sequence
from typing import Final

from orderlymq_broker.core.capacity import check_room, check_writable
from orderlymq_broker.core.effects import Caller, Effect, Now, Propose
from orderlymq_broker.core.messagedraft import MessageDraft, Properties
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer, unanswered
from orderlymq_broker.processors.send.checks import illegal
from orderlymq_broker.processors.send.responses import answer_unstored
from orderlymq_broker.processors.topics.expansionrequests import check_send
from orderlymq_broker.state.records import Append, Outcome, Refused
from orderlymq_broker.state.send.duplicates import send_identity
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import AppendCopiesHeader
from orderlymq_protocol.message.record import StoredMessage, body_crc, iter_records
from orderlymq_protocol.names import is_dlq_topic

# The most messages that one pull returns; the event loop reads them in about 10 ms.
COPIES_MAX: Final = 512
# An offset beyond it would leave no room for messages in a queue.
OFFSET_MAX: Final = 1 << 62


class CopyProcessor:
    """Turns copies into appends."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def append(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 20515: append copies."""
        header = AppendCopiesHeader.from_ext(request.ext)
        topic = self._topic(header)
        drafts: list[MessageDraft] = []
        first = 0
        for message in iter_records(request.body):
            if not drafts:
                first = message.queue_offset
            self._check(header, message, first + len(drafts))
            drafts.append(self._draft(topic, message))
            if len(drafts) > COPIES_MAX:
                raise illegal(self._context, f"at most {COPIES_MAX} copies at a time")
        if not drafts:
            raise illegal(self._context, "the body has no copy")
        kept = unanswered(request)

        def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
            last = outcomes[-1]
            if type(last) is Append:
                return answer(kept, caller, ext={"queueOffset": str(last.queue_offset + 1)})
            assert type(last) is Refused
            return answer(kept, caller, ResponseCode.TOPIC_NOT_EXIST, remark=last.reason)

        return [
            Propose(
                drafts,
                applied,
                lost=lambda refusal: answer_unstored(kept, caller, refusal),
                first_at=(topic.queue(header.queue_id), first),
                begins=header.begins,
            )
        ]

    def _topic(self, header: AppendCopiesHeader) -> Topic:
        """Return the topic of copies.

        Raises:
            RequestRefused: the broker may only be read, there is no room, or the topic does not exist, takes no copies, or has
                no such queue.
        """
        context = self._context
        check_writable(context)
        topic = context.state.topics.get(header.topic)
        if topic is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please! A mirror does not create "
                "topics",
            )
        if not topic.sendable or topic.is_retry or is_dlq_topic(topic.name):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"topic[{topic.name}] cannot take copies: its messages belong to this cluster's "
                "internal work",
            )
        if not 0 <= header.queue_id < topic.queue_count:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"topic[{topic.name}] has no queue {header.queue_id}; give it as many queues as "
                "the source has",
            )
        check_room(context)
        check_send(context, topic, {})

        return topic

    def _check(self, header: AppendCopiesHeader, message: StoredMessage, offset: int) -> None:
        """Refuse a record that is no message of this queue, or not the next one."""
        place = (message.topic, message.queue_id, message.queue_offset)
        if place != (header.topic, header.queue_id, offset) or not 0 <= offset <= OFFSET_MAX:
            raise illegal(
                self._context,
                f"got offset {message.queue_offset} of queue {message.queue_id} of "
                f"{message.topic}, but expected offset {offset} of queue {header.queue_id} of "
                f"{header.topic}",
            )
        if len(message.body) > self._context.settings.storage.body_size_max:
            raise illegal(
                self._context, f"the copy at offset {offset} is too large for this broker"
            )
        if body_crc(message.body) != message.body_crc:
            raise illegal(self._context, f"the body of the copy at offset {offset} is damaged")

    def _draft(self, topic: Topic, message: StoredMessage) -> MessageDraft:
        try:
            properties = Properties(message.properties.decode())
        except UnicodeDecodeError as error:
            raise illegal(
                self._context,
                f"the properties of the copy at offset {message.queue_offset} are not UTF-8",
            ) from error
        draft = MessageDraft.of_stored(message, topic, message.queue_id, properties)
        # The store host must be this broker's, because the id of a message leads to the broker that has it.
        draft.store_host = None
        if topic.deduplicated:
            draft.identity = send_identity(
                topic.id,
                draft.unique_key,
                draft.reconsume_times,
                draft.body_crc,
                properties.by_name,
                draft.queue_id,
            )

        return draft
