"""
Transactional sends: a message that becomes visible if, and only if, a local transaction was committed.

Rules: the message is stored first, invisible. Then the local transaction runs, then its outcome is reported. An
outcome may stay unreported because it is unknown, the program died or the broker did not answer. The broker then asks
any live producer of the group, which calls `check`. So `check` must find out what `execute` did in other processes:
it reads the outcome where the local transaction left it. A committed message takes its place in its queue at the
commit, not at the send.
"""

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias, TypeVar

from orderlymq.connection.wire import read_record
from orderlymq.durations import Duration, milliseconds, seconds
from orderlymq.errors import BrokerError, SettingError
from orderlymq.message import BodyLike, Message, ReceivedMessage, SendResult, SendStatus
from orderlymq.ownedtasks import OwnedTasks
from orderlymq.producer.producer import Producer
from orderlymq.producer.sendoutcome import as_message, check_choice, refusals_of
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import CheckTransactionStateHeader, EndTransactionHeader
from orderlymq_protocol.message import properties
from orderlymq_protocol.message.compression import CompressionError
from orderlymq_protocol.message.ids import decode_offset_message_id
from orderlymq_protocol.message.record import RecordError, decode_record
from orderlymq_protocol.message.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_NOT,
    TRANSACTION_ROLLBACK,
)
from orderlymq_runtime.remoting.client import RemotingError
from orderlymq_runtime.remoting.connection import Connection

_log = logging.getLogger(__name__)

# RocketMQ's client lets as many checks wait (checkRequestHoldMax); the broker asks about others again.
CHECKS_WAITING_MAX: Final = 2_000
CHECKS_RUNNING_MAX: Final = 16
# How long to wait for cancelled checks: they may clean up, or may catch their cancellation and go on.
_CANCEL_S: Final = 5.0
_RETRY_FIRST_S: Final = 0.02
_RETRY_MAX_S: Final = 0.2

T = TypeVar("T")


class TransactionState(Enum):
    """Outcome of a local transaction; the values are those of the protocol."""

    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK
    UNKNOWN = TRANSACTION_NOT


Execute: TypeAlias = Callable[[Message], "TransactionState | Awaitable[TransactionState]"]
Check: TypeAlias = Callable[[ReceivedMessage], "TransactionState | Awaitable[TransactionState]"]


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """How a transactional send ended.

    Attributes:
        send: where the half message is; its queue offset counts half messages.
        state: the result of the local transaction.
        reported: the broker knows the state; otherwise it will ask.
        error: the error that `execute` raised; the state is then unknown.
    """

    send: SendResult
    state: TransactionState
    reported: bool
    error: Exception | None = None


class TransactionProducer(Producer):
    """A producer whose messages can be part of a transaction.

    Args:
        group: all producers of a group answer for each other's transactions.
        check: returns the outcome of the local transaction behind a message; a plain function runs in
            a thread and may block.

    The other arguments, and the plain sends, are those of `Producer`.
    """

    def __init__(self, group: str, *args: Any, check: Check, **kwargs: Any) -> None:
        super().__init__(group, *args, **kwargs)
        if not callable(check):
            raise SettingError("check must be a function that returns a TransactionState")
        self._check = check
        self._checks = OwnedTasks()
        self._running_checks = asyncio.Semaphore(CHECKS_RUNNING_MAX)
        self._stop_serving: Callable[[], None] | None = None

    async def start(self) -> None:
        """Open for sends and for brokers' checks; raises as `Producer.start`."""
        await super().start()
        self._stop_serving = self._instance.serve(
            RequestCode.CHECK_TRANSACTION_STATE, self._on_check
        )

    async def _shut_down(self) -> None:
        """End as a producer does; open transactions are left to the other producers of the group."""
        if self._stop_serving is not None:
            self._stop_serving()
            self._stop_serving = None
        await self._checks.cancel(_CANCEL_S)
        await super()._shut_down()

    async def send_in_transaction(  # noqa: PLR0913 - what a user may say about a message
        self,
        topic: str | Message,
        body: BodyLike = b"",
        *,
        execute: Execute,
        key: str | int | None = None,
        tags: str = "",
        keys: str | tuple[str, ...] = "",
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | int | None = None,
        timeout: Duration | None = None,
        check_immunity: Duration | None = None,
    ) -> TransactionResult:
        """Store a message invisible, run the local transaction, then commit or roll back the message.

        Args:
            topic: the topic, or a whole `Message`, which then holds the rest itself.
            body: bytes, or text that becomes UTF-8.
            key: sharding key.
            tags: one tag.
            keys: index keys for queries.
            properties: the user's own.
            queue: exactly this queue, as in `send`.
            timeout: covers all tries of the half message.
            execute: the local transaction; a plain function runs in a thread and may block. An error that it
                raises counts as unknown and is returned, not raised: the broker has the message already,
                and a check decides.
            check_immunity: the broker does not ask before this time, rounded up to seconds, is over; for local
                transactions that take longer than the broker's usual wait.

        Raises:
            SendRefused, SendUnknown, TopicNotFound, SettingError: As `Producer.send`; *execute* was
                not called, and a check rolls back an invisible message.
        """
        message = as_message(topic, body, tags, keys, properties, 0, key)
        if message.delay_level:
            raise SettingError(
                "a transactional message takes no delay_level; give delay or deliver_at"
            )
        self._check_running()
        check_choice(queue, key=key)
        sent = await self._send_half(message, queue, timeout, check_immunity)
        if sent.status is not SendStatus.OK:
            # Stored on the leader alone: RocketMQ's client rolls back such a half message, and so does this one.
            state, error = TransactionState.ROLLBACK, None
        else:
            state, error = await self._execute(execute, message)
        with self._under_way():
            reported = await self._tell(sent, state)
        return TransactionResult(sent, state, reported, error)

    # -- the parts of a send

    async def _send_half(
        self,
        message: Message,
        queue: MessageQueue | int | None,
        timeout: Duration | None,
        immunity: Duration | None,
    ) -> SendResult:
        message.marks = {properties.TRAN_MSG: "true", properties.PGROUP: self.group}
        if immunity is not None:
            whole_s = math.ceil(milliseconds(immunity) / 1000)
            message.marks[properties.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(whole_s)
        retries = self.settings.retry_times_when_send_failed
        try:
            self._prepare(message)
            with self._under_way(), refusals_of([message]):
                return await self._send(message, queue, None, None, timeout, retries)
        finally:
            # The user may send the object again, also as a plain message.
            message.marks = {}

    async def _execute(
        self, execute: Execute, message: Message
    ) -> tuple[TransactionState, Exception | None]:
        try:
            return _as_state(await _called(execute, message)), None
        except Exception as error:
            _log.exception("the local transaction of %s failed", message.unique_key)
            return TransactionState.UNKNOWN, error

    async def _tell(self, sent: SendResult, state: TransactionState) -> bool:
        """Report the outcome to the broker, also across a change of leader; return whether the broker knows it."""
        header = EndTransactionHeader(
            producer_group=self.group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=decode_offset_message_id(sent.offset_message_id)[2],
            commit_or_rollback=state.value,
            msg_id=sent.message_id,
            topic=sent.queue.topic,
        )
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + seconds(self.settings.send_message_timeout)
        delay_s = _RETRY_FIRST_S
        while True:
            if await self._end_once(sent.queue, header, deadline_s - loop.time()):
                return True
            if loop.time() + delay_s >= deadline_s:
                _log.warning(
                    "the outcome of %s did not reach the broker; the broker will ask",
                    sent.message_id,
                )
                return False
            await asyncio.sleep(delay_s)
            delay_s = min(_RETRY_MAX_S, 2 * delay_s)

    async def _end_once(
        self, queue: MessageQueue, header: EndTransactionHeader, within_s: float
    ) -> bool:
        end_s = asyncio.get_running_loop().time() + within_s
        address = await self._instance.address(queue.broker_name, queue.topic, within_s=within_s)
        if address is None:
            return False
        command = request(RequestCode.END_TRANSACTION, header.to_ext())
        try:
            left_s = max(0.001, end_s - asyncio.get_running_loop().time())
            answer = await self._instance.invoke(address, command, left_s)
        except RemotingError as error:
            _log.info("the broker did not answer the end of a transaction: %s", error)
            return False
        if answer.code != ResponseCode.SUCCESS:
            _log.info("the end of a transaction was refused: %s %s", answer.code, answer.remark)
        return answer.code == ResponseCode.SUCCESS

    # -- checks

    def _on_check(self, command: RemotingCommand, conn: Connection) -> bool:
        """Take a broker's check if it is about this group; return whether it is."""
        try:
            stored = decode_record(command.body)
            found = properties.decode_properties(stored.properties)
            if found.get(properties.PGROUP) != self.group:
                return False
            header = CheckTransactionStateHeader.from_ext(command.ext)
            message = read_record(stored, MessageQueue(stored.topic, "", stored.queue_id))
            message.topic = self._instance.bare(message.topic)
        except (RecordError, CompressionError, ValueError) as error:
            _log.error("the question about a transaction cannot be read: %s", error)
            return False
        if len(self._checks) >= CHECKS_WAITING_MAX:
            _log.warning("%d checks wait; the broker will ask again", CHECKS_WAITING_MAX)
            return True
        # The answer goes to the address that was called, not to `peer`, its IP: gateways and certificates know names.
        self._checks.start(
            self._answer_check(message, header, conn.called), f"check of {message.message_id}"
        )
        return True

    async def _answer_check(
        self, message: ReceivedMessage, asked: CheckTransactionStateHeader, address: str
    ) -> None:
        async with self._running_checks:
            try:
                state = _as_state(await _called(self._check, message))
            except Exception:
                _log.exception("the check of %s failed; the broker will ask again", message)
                return
        header = EndTransactionHeader(
            producer_group=self.group,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=state.value,
            msg_id=message.message_id,
            from_transaction_check=True,
            transaction_id=asked.transaction_id,
            topic=self._instance.whole(message.topic),
        )
        command = request(RequestCode.END_TRANSACTION, header.to_ext())
        try:
            answer = await self._instance.invoke(address, command)
        except (RemotingError, BrokerError) as error:
            _log.info("the answer to a check was lost; the broker will ask again: %s", error)
            return
        if answer.code != ResponseCode.SUCCESS:
            _log.warning("the answer to a check was refused: %s %s", answer.code, answer.remark)


async def _called(
    function: Callable[[T], TransactionState | Awaitable[TransactionState]], argument: T
) -> object:
    """Call a user's function; a plain function runs in a thread, where it may block.

    Raises:
        Exception: Any error of the function except `SystemExit` and `KeyboardInterrupt`. A `CancelledError` that the
            function raises itself becomes a RuntimeError.
    """
    try:
        if inspect.iscoroutinefunction(function):
            return await function(argument)
        found, error = await asyncio.to_thread(_in_thread, function, argument)
        if error is not None:
            raise error  # a StopIteration leaves a coroutine as a RuntimeError
        return await found if inspect.isawaitable(found) else found
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("it was cancelled by something that it waited for") from error


def _in_thread(function: Callable[[T], object], argument: T) -> tuple[object, BaseException | None]:
    """Call a function and return its result or its error.

    The error is returned because a future cannot carry all of them: a caller that awaits a
    StopIteration waits for ever.
    """
    try:
        return function(argument), None
    except BaseException as error:
        return None, error


def _as_state(found: object) -> TransactionState:
    if isinstance(found, TransactionState):
        return found
    if found is None:
        return TransactionState.UNKNOWN
    raise SettingError(f"{found!r} is not a TransactionState; return COMMIT, ROLLBACK or UNKNOWN")
