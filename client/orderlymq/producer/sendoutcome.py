"""
What is known about a send while it is tried, and checks before it. Pure.

Rule: a send is "refused" only if no try can have stored it. As soon as one try may have arrived and was not answered,
a later refusal does not undo that, and the outcome is "unknown". The tries of earlier sends of the same `Message`
object count as well.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from orderlymq.connection.troubles import LATER
from orderlymq.errors import (
    SendError,
    SendRefused,
    SendUnknown,
    SettingError,
    StateError,
    TopicNotFound,
)
from orderlymq.message import BodyLike, Message, SendResult, body_bytes
from orderlymq.observers import installed
from orderlymq.producer.requests import CHECKSUMS_SIZE, batch_entry
from orderlymq.settings import check_name
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.batch import BATCH_COUNT_MAX, encode_batch
from orderlymq_protocol.message.properties import (
    SHARDING_KEY,
    PropertyError,
    encode_properties,
)
from orderlymq_protocol.message.record import PROPERTIES_BYTES_MAX
from orderlymq_protocol.names import (
    UNSENDABLE_TOPICS,
    check_topic_name,
    is_retry_topic,
)
from orderlymq_runtime.remoting.client import RemotingError

# The codes after which RocketMQ's producer tries another broker (DefaultMQProducerImpl, retryResponseCodes).
_ELSEWHERE: Final = frozenset(
    {
        *LATER,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
_BUSY_MARKS: Final = ("[PC_SYNCHRONIZED]", "[PCBUSY_CLEAN_QUEUE]", "[TIMEOUT_CLEAN_QUEUE]")
DELAY_LEVEL_MAX: Final = 18
# The bytes that a send adds to a message: a unique key of at most 56 characters, and by observers the properties
# `traceparent` and `tracestate`, of at most 55 and 512 characters.
_UNIQUE_KEY_BYTES: Final = 10 + 56
_TRACE_BYTES: Final = 13 + 55 + 12 + 512


class QueuesChanged(Exception):  # noqa: N818 - what is to be done: choose again
    """The queue was chosen from a list that changes or has changed; this try stored nothing.

    Attributes:
        refused: the error for the caller if waiting does not help.
        maybe_stored: an earlier try may have stored the message; later errors are then not refusals.
    """

    def __init__(self, refused: SendError | TopicNotFound, *, maybe_stored: bool) -> None:
        super().__init__(str(refused))
        self.refused = refused
        self.maybe_stored = maybe_stored


class Attempts:
    """The tries of one send; *deadline_s* is a reading of the monotonic clock.

    Attributes:
        tries: the number of failed tries.
    """

    def __init__(self, deadline_s: float, topic: str) -> None:
        self._deadline_s = deadline_s
        self._topic = topic
        self._maybe_stored = False
        self._is_early = False
        self.tries = 0
        self._last = "no time was left for a try"
        self._address = ""
        self._refusal: RemotingCommand | None = None

    @property
    def is_early(self) -> bool:
        """Whether the last try surely stored nothing, and the same broker may accept the next one."""
        return self._is_early

    def remaining_s(self, now_s: float) -> float:
        """Return the seconds that are left for all tries together."""
        return self._deadline_s - now_s

    def note_failure(self, address: str, error: RemotingError) -> None:
        """Note a try without an answer."""
        self.tries += 1
        self._maybe_stored |= error.maybe_sent
        self._is_early = not error.maybe_sent
        self._address, self._last, self._refusal = address, str(error), None

    def note_no_address(self, broker_name: str) -> None:
        """Note that the broker group has no leader."""
        self.tries += 1
        self._is_early = True
        self._address, self._refusal = "", None
        self._last = f"the broker group {broker_name} has no leader's address in the route"

    def note_refusal(self, address: str, answer: RemotingCommand) -> None:
        """Note an answer that refuses the send."""
        self.tries += 1
        self._is_early = answer.code in LATER or any(
            mark in (answer.remark or "") for mark in _BUSY_MARKS
        )
        self._address, self._refusal = address, answer
        self._last = f"code {answer.code}: {answer.remark or 'no reason given'}"

    def raise_if_final(self, *, plain: bool = False) -> None:
        """Raise if another try cannot help; a plain send may still succeed at another broker.

        Raises:
            SendRefused, SendUnknown, TopicNotFound: As `error`.
            QueuesChanged: The broker wants the queue to be chosen from another list.
        """
        answer = self._refusal
        if answer is not None and answer.code == ResponseCode.ORDERLYMQ_QUEUES_CHANGED:
            # Earlier tries stay unknown: an expansion can be aborted, and a delayed try is then accepted.
            maybe_stored, self._maybe_stored = self._maybe_stored, False
            raise QueuesChanged(self.error(), maybe_stored=maybe_stored)
        if answer is None or self._is_early or (plain and answer.code in _ELSEWHERE):
            return
        raise self.error()

    def error(self) -> SendError | TopicNotFound:
        """Return the error for the caller after the last try failed."""
        text = f"{self._last} (after {self.tries} tries)" if self.tries > 1 else self._last
        code = None if self._refusal is None else self._refusal.code
        if self._maybe_stored:
            return SendUnknown(text, code=code, address=self._address)
        if code == ResponseCode.TOPIC_NOT_EXIST:
            return TopicNotFound(
                f"{self._last}; create it with `orderlymq topic create {self._topic}`; stored: no",
                topic=self._topic,
            )
        return SendRefused(text, code=code, address=self._address)


def still_unknown(error: Exception) -> SendUnknown:
    """Return the error of a send that failed with *error* after a try that may have stored the message."""
    if isinstance(error, SendUnknown):
        return error
    text = str(error).removesuffix("; stored: no")
    unknown = SendUnknown(
        f"an earlier try may have stored the message; the last error: {text}",
        code=getattr(error, "code", None),
    )
    unknown.address = getattr(error, "address", "")  # the text names it
    return unknown


@contextmanager
def noted(messages: Sequence[Message]) -> Iterator[None]:
    """Record in *messages*, which are sent inside, whether they may be stored without an acknowledgement."""
    maybe_stored = [message.maybe_stored for message in messages]
    try:
        yield
        maybe_stored = [False] * len(messages)
    except QueuesChanged as changed:
        maybe_stored = [each or changed.maybe_stored for each in maybe_stored]
        raise
    except (SendUnknown, StateError, asyncio.CancelledError):
        maybe_stored = [True] * len(messages)
        raise
    finally:
        for message, each in zip(messages, maybe_stored, strict=True):
            message.maybe_stored = each


def results_of(messages: Sequence[Message], result: SendResult) -> list[SendResult]:
    """Return the result of each of several messages that were sent together."""
    ids = result.offset_message_id.split(",")
    if len(ids) != len(messages):
        ids = [result.offset_message_id] * len(messages)
    return [
        replace(
            result,
            message_id=message.unique_key,
            offset_message_id=ids[at],
            queue=result.place(at)[0],
            queue_offset=result.place(at)[1],
            places=(),
        )
        for at, message in enumerate(messages)
    ]


async def heard(messages: Sequence[Message], sent: "asyncio.Future[SendResult]") -> SendResult:
    """Wait for a send. If the caller is cancelled and misses the acknowledgement, mark its messages as maybe stored."""
    try:
        return await sent
    except asyncio.CancelledError:
        if not sent.cancelled() and sent.exception() is None:
            unheard(messages)
        raise


def unheard(messages: Iterable[Message]) -> None:
    """Mark *messages* as maybe stored: they are stored, but the caller did not get the acknowledgement."""
    for message in messages:
        message.maybe_stored = True


@contextmanager
def refusals_of(messages: Sequence[Message]) -> Iterator[None]:
    """Convert a refusal that an earlier send of the same objects makes untrue.

    Raises:
        SendUnknown: Instead of such a refusal.
    """
    try:
        yield
    except (SendRefused, TopicNotFound) as error:
        if any(message.maybe_stored for message in messages):
            raise still_unknown(error) from error
        raise


def as_message(
    topic: str | Message,
    body: BodyLike,
    tags: str,
    keys: str | tuple[str, ...],
    properties: Mapping[str, str] | None,
    delay_level: int,
    key: str | int | None,
) -> Message:
    """Return the message that the arguments of a send describe.

    Raises:
        SettingError: A `Message` came together with arguments that are its own fields, or with another key.
    """
    if isinstance(topic, Message):
        beside = {
            "body": body,
            "tags": tags,
            "keys": keys,
            "properties": properties,
            "delay_level": delay_level,
        }
        lost = ", ".join(name for name, value in beside.items() if value)
        if lost:
            raise SettingError(
                f"{lost} cannot be given together with a Message; set them on the Message itself"
            )
        if key is not None:
            if topic.stored_key not in (None, str(key)):
                raise SettingError(
                    f"the Message has the key {topic.key!r}, and the argument key is {key!r}; give one of them"
                )
            topic.key = key
        return topic
    return Message(
        topic=topic,
        body=body_bytes(body),
        tags=tags,
        keys=keys,
        key=key,
        properties=properties or {},
        delay_level=delay_level,
    )


def check_choice(
    queue: object, selector: object = None, argument: object = None, key: object = None
) -> None:
    """Refuse combinations of arguments in which one would be ignored.

    Raises:
        SettingError: A selector or a key together with a queue, an argument without a selector, or an invalid queue.
    """
    if isinstance(queue, bool) or not isinstance(queue, int | MessageQueue | None):
        raise SettingError(f"queue is {queue!r}; give a MessageQueue, or its number in the topic")
    if selector is not None and queue is not None:
        raise SettingError("give queue or selector, not both")
    if key is not None and queue is not None:
        raise SettingError(
            "give key or queue, not both: messages of one key in several queues have no order; to choose another queue for a key, "
            "give selector="
        )
    if selector is None and argument is not None:
        raise SettingError(
            "argument is for a selector; give selector=, or key= for the hash of a key"
        )


def _check_types(message: Message) -> None:
    """Refuse values that would be stored as the text of a Python object, or break the connection for others."""
    message.body = body_bytes(message.body)
    message.tags, message.keys = message.tags or "", message.keys or ""  # None counts as empty
    for name, value in (*message.properties.items(), ("tags", message.tags)):
        if not isinstance(name, str) or not isinstance(value, str):
            raise SettingError(
                f"the property {name!r} is {value!r}; both must be texts, pass str()"
            )
    keys: object = message.keys
    if not isinstance(keys, Collection) or not all(isinstance(each, str) for each in keys):
        raise SettingError(f"keys is {keys!r}; it must be a text or several texts")
    for name in ("delay_level", "flag"):
        number: object = getattr(message, name)
        # A member of an IntEnum is an integer too: programs have names for levels.
        if isinstance(number, bool) or not isinstance(number, int):
            raise SettingError(f"{name} is {number!r}; it must be an integer")


def check_message(
    message: Message, size_max: int, deflates: Callable[[bytes], bool] | None = None
) -> None:
    """Refuse messages that a broker would refuse, before anything is sent.

    *deflates* returns whether a body that is sent alone is deflated.

    Raises:
        SettingError: The text names the rule and the limit.
    """
    _check_types(message)
    check_name(check_topic_name, message.topic)
    if message.topic in UNSENDABLE_TOPICS:
        raise SettingError(f"the topic {message.topic} belongs to the broker; send to another one")
    if not message.body:
        raise SettingError("the message body is empty; a message needs at least one byte")
    if len(message.body) > size_max:
        raise SettingError(
            f"the message body is over max value, {len(message.body)} bytes, the limit is {size_max} "
            "(max_message_size_bytes)"
        )
    key: object = message.key
    if key is not None and not isinstance(key, str | int):
        raise SettingError(
            f"the key is text or an integer, not {type(key).__name__}; pass str(key)"
        )
    if key == "":
        raise SettingError(
            "the key is empty, and an empty key is not stored; leave it out, or give one"
        )
    if not 0 <= message.delay_level <= DELAY_LEVEL_MAX:
        raise SettingError(f"delay_level is {message.delay_level}; it must be in [0, 18]")
    if not -(2**31) <= message.flag < 2**31:
        raise SettingError(f"flag is {message.flag}; it must fit 32 bits")
    try:
        size = len(batch_entry(message).properties)
    except PropertyError as error:
        raise SettingError(str(error)) from error
    if deflates is not None and deflates(message.body):
        size += CHECKSUMS_SIZE
    if size > PROPERTIES_BYTES_MAX:
        raise SettingError(f"the properties take {size} bytes, the limit is {PROPERTIES_BYTES_MAX}")


def check_batch(messages: Sequence[Message], size_max: int) -> None:
    """Refuse a batch that cannot be stored as one, regardless of its size in bytes.

    Raises:
        SettingError: The text names the rule and the limit.
    """
    if not isinstance(messages, Sequence):
        raise SettingError(f"the batch is {messages!r}; give a list of Message")
    if not messages:
        raise SettingError("the batch is empty")
    for message in messages:
        if not isinstance(message, Message):
            raise SettingError(f"the batch has {message!r}; give a list of Message")
        check_message(message, size_max)
        if message.topic != messages[0].topic:
            raise SettingError(
                f"the messages of a batch must have one topic, not {messages[0].topic} and "
                f"{message.topic}; send one batch per topic"
            )
        if message.wait_store_ok != messages[0].wait_store_ok:
            raise SettingError("the messages of a batch must agree in wait_store_ok")
        if message.delay_level:
            raise SettingError(
                "a delay level is not supported for batching, since the messages would leave the "
                "batch one by one; send them with send() or without delay_level"
            )
        if is_retry_topic(message.topic):
            raise SettingError("messages to a retry topic cannot be batched; send them one by one")
    if len(messages) > BATCH_COUNT_MAX:
        raise SettingError(
            f"the batch holds {len(messages)} messages, the limit is {BATCH_COUNT_MAX}; cut it with "
            "split_batch()"
        )


def check_batch_size(size: int, size_max: int) -> None:
    """Refuse a batch whose body is too large, including all that the SDK and observers added to its messages.

    Raises:
        SettingError: The text names the limit.
    """
    if size > size_max:
        raise SettingError(
            f"the batch takes {size} bytes, the limit is {size_max}; cut it with split_batch(), and give "
            "that the key, too"
        )


def leading_message(messages: Sequence[Message]) -> Message:
    """Return the message of a checked batch whose key chooses the queue of the whole batch.

    Raises:
        SettingError: Two messages have different keys.
    """
    keyed = [message for message in messages if message.key is not None]
    for message in keyed:
        if message.stored_key != keyed[0].stored_key:
            raise SettingError(
                f"the messages of a batch have the keys {keyed[0].key!r} and {message.key!r}, which may "
                "belong to different queues; send one batch per key, or give queue or selector"
            )
    return keyed[0] if keyed else messages[0]


def split_batch(
    messages: Iterable[Message],
    size_max: int = 4 * 1024 * 1024,
    *,
    key: str | int | None = None,
    count_max: int = BATCH_COUNT_MAX,
) -> Iterator[list[Message]]:
    """Cut *messages* into lists that each fit one batch, in order.

    Args:
        messages: messages of one topic.
        size_max: the largest batch in bytes.
        key: the key that `send_batch` will get.
        count_max: the most messages of a batch.
    """
    added = 0 if key is None else len(encode_properties({SHARDING_KEY: str(key)}))
    unsent = _UNIQUE_KEY_BYTES + (_TRACE_BYTES if installed else 0)
    part: list[Message] = []
    size = 0
    for message in messages:
        entry_size = len(encode_batch([batch_entry(message)])) + added
        entry_size += 0 if message.unique_key else unsent
        if part and (size + entry_size > size_max or len(part) >= count_max):
            yield part
            part, size = [], 0
        part.append(message)
        size += entry_size
    if part:
        yield part
