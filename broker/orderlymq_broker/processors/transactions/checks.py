"""
Checks that ask producers for the outcome of their half messages (39), until they answer or the tries are used up.

The rules: a check is counted in the log before it is sent, so that a later leader continues the count of this one.
Any live producer of the group may be asked, each in turn, if its account may write to the topic; the check contains
the message, and any producer may name any group. While no producer is alive, nothing is counted, until the
half message is as old as messages may get. Then, or after the last check without an answer, a copy goes to
TRANS_CHECK_MAX_TIME_TOPIC, and the half message is set aside. ``halves.py`` tells how a half message begins and ends.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final

from orderlymq_broker.core.capacity import waiting_end
from orderlymq_broker.core.effects import Caller, Effect, Now, Propose, Refusal, Send
from orderlymq_broker.core.messagedraft import MessageDraft, Properties, properties_of
from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.processors.fetch.read import read_message
from orderlymq_broker.processors.schedule.delaylevels import SIZE_MAX, count_within
from orderlymq_broker.state.records import Outcome, Record
from orderlymq_broker.state.transactions.halfrecords import HalfGivenUp, HalvesChecked, HalvesMoved
from orderlymq_broker.state.transactions.halves import ENDED_MAX, Half
from orderlymq_broker.store.consumequeue import read_messages
from orderlymq_broker.store.layout import message_key
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import FLAG_ONEWAY, RemotingCommand
from orderlymq_protocol.header.catalogue import CheckTransactionStateHeader
from orderlymq_protocol.integers import INT32_MAX, INT32_MIN, read_integer
from orderlymq_protocol.message.properties import (
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
)
from orderlymq_protocol.message.record import (
    RecordTemplate,
    StoredMessage,
    decode_record,
    encode_with_positions,
    pack_host,
)
from orderlymq_protocol.message.tags import tags_code
from orderlymq_protocol.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC

# Checks per scan, over all groups: each reads a message from the store and sends it, about 20 ms together. Their
# bytes are limited like one proposal of the delay levels, or are those of one message.
COUNT_MAX: Final = 512
# Half messages that a new leader schedules at a time, and entries, ended ones included, that one scan reads: about 15 ms.
NOTED_MAX: Final = 4_096

# How often, within the maximum age, a half message is looked at whose age is in doubt or for which no producer is alive.
_DOUBTS_PER_AGE: Final = 256


class CheckService:
    """Schedules checks of the open half messages while this replica leads.

    Life cycle: ``start`` reads the table when leading begins; if there are many half messages, the next ticks read
    the rest. ``watch`` adds those that come later.
    """

    def __init__(self, context: Context, may_publish: Callable[[Caller, str], bool]) -> None:
        self._context = context
        self._may_publish = may_publish
        # Per producer group and topic, which determine the producers to ask, a heap of (due wall time, offset).
        # Entries of ended half messages are removed when they are reached, or when there are too many.
        self._due: dict[tuple[str, str], list[tuple[int, int]]] = {}
        # The keys of heaps with half messages for which no producer was alive; these are put off, as their producers
        # may stay away.
        self._unasked: set[tuple[str, str]] = set()
        self._now = Now(0, 0)
        self._next_scan_ms = 0
        # Offsets of half messages to schedule in the next ticks.
        self._unnoted: deque[int] = deque()
        # Entries that this scan may still read.
        self._room = 0

    def start(self, now: Now) -> None:
        """Begin to lead."""
        self._due.clear()
        self._unasked.clear()
        self._now = now
        self._next_scan_ms = now.monotonic_ms
        self._unnoted = deque(self._context.state.transactions.open)
        self._note_some()

    def _note_some(self, maximum: int = NOTED_MAX) -> int:
        """Schedule some of the half messages that wait for it; return how many."""
        halves = self._context.state.transactions.open
        count = min(maximum, len(self._unnoted))
        for _ in range(count):
            half = halves.get(self._unnoted.popleft())
            if half is not None:
                self.watch(half)

        return count

    def watch(self, half: Half) -> None:
        """Schedule the next check of a half message."""
        group, transactions = half.opened.group, self._context.state.transactions
        heap = self._due.setdefault((group, half.opened.topic), [])
        if len(heap) > 2 * transactions.open_by_group[group] + ENDED_MAX:
            self._unnoted.extend({offset for _, offset in heap})
            heap.clear()
        heappush(heap, (self._due_ms(half), half.offset))

    def tick(self, now: Now) -> list[Effect]:
        """Propose the due checks, and give up transactions that are too old or were checked often enough."""
        if now.was_ahead(self._now.wall_ms):
            self.start(now)
        else:
            self._note_some()
        self._now = now
        if now.monotonic_ms < self._next_scan_ms or not waiting_end(self._context):
            return []
        timers = self._context.settings.timers
        self._next_scan_ms = now.monotonic_ms + timers.transaction_scan_ms
        due = [
            source
            for source, heap in self._due.items()
            if heap[0][0] <= now.wall_ms or source in self._unasked
        ]
        if not due:
            return []
        claimed = self._context.sessions.claimed_producers({group for group, _ in due})
        asked: list[tuple[int, int]] = []
        # By offset, because a half message with two entries may be due for both.
        given_up: dict[int, Half] = {}
        self._room = NOTED_MAX
        for source in due:
            room = COUNT_MAX - len(asked) - len(given_up)
            if not room or not self._room:
                break
            self._room -= 1
            group, topic = source
            connections = self._producers(claimed.get(group, []), topic) or self._producers(
                self._context.sessions.senders(group), topic
            )
            if connections and source in self._unasked:
                # A producer that can answer is back: all its half messages are due at their original times.
                self._unasked.discard(source)
                self._unnoted.extend({offset for _, offset in self._due.pop(source)})
                self._room -= self._note_some(self._room)
                if source not in self._due:
                    continue
            asked += self._take(source, connections, given_up, room, now)
            # Move the source to the end, so that it comes last in the next scan: no group can keep others out.
            heap = self._due.pop(source)
            if heap:
                self._due[source] = heap
            else:
                self._unasked.discard(source)
            self._context.counters["transaction_checks_without_producer"] += source in self._unasked
        if not self._room or self._unnoted:
            self._next_scan_ms = now.monotonic_ms

        return [*self._ask(asked), *self._give_up(list(given_up.values()), now)]

    # -- what is due -------------------------------------------------------------------------------

    def _due_ms(self, half: Half) -> int:
        """Return the wall time of the next check of a half message, or of giving it up when it has the maximum age.

        The maximum age limits any immunity that a producer asks for, because an open half message keeps messages of
        all topics stored.
        """
        return min(self._check_ms(half), self._old_ms(half)) - self._ahead_ms(half)

    def _check_ms(self, half: Half) -> int:
        """Return the time of the next check, by the clock with which the wait of the half message began."""
        timers, opened = self._context.settings.timers, half.opened
        if half.checks:
            return half.checked_ms + timers.transaction_check_interval_ms
        wait_ms = timers.transaction_timeout_ms if opened.immunity_ms < 0 else opened.immunity_ms

        return opened.opened_ms + wait_ms

    def _ahead_ms(self, half: Half) -> int:
        """Return how far the clock was ahead when the wait of a half message began."""
        since_ms = half.checked_ms if half.checks else half.opened.opened_ms

        return since_ms - self._now.wall_ms if self._now.was_ahead(since_ms) else 0

    def _producers(self, callers: Sequence[Caller], topic: str) -> list[int]:
        """Return the connections of the producers that may see and end a transaction of a topic."""
        return list(
            dict.fromkeys(
                caller.connection for caller in callers if self._may_publish(caller, topic)
            )
        )

    def _old_ms(self, half: Half) -> int:
        """Return the wall time when a half message has the maximum age; after a restore it counts from the restore."""
        context = self._context
        since_ms = max(half.opened.opened_ms, context.state.restored_ms)

        return since_ms + context.settings.storage.retention_ms

    def _is_old(self, half: Half, now: Now) -> bool:
        """Return whether a half message certainly has the maximum age, even if clocks were wrong."""
        age_ms = self._context.settings.storage.retention_ms
        is_outlived = half.opened.physical < self._context.ages.outlived(now, age_ms)

        return is_outlived or self._context.ages.certain(now, age_ms).wall_ms >= self._old_ms(half)

    def _take(
        self,
        source: tuple[str, str],
        connections: list[int],
        given_up: dict[int, Half],
        room: int,
        now: Now,
    ) -> list[tuple[int, int]]:
        """Take the due transactions of one group and topic off their heap; return (offset, connection to ask).

        At most *room* half messages are taken; the others are due in the next scan. On a full disk no producer is
        asked, because no commit could be stored; half messages at the floor of the log are given up when their time
        has come.
        """
        context = self._context
        heap, halves = self._due[source], context.state.transactions.open
        maximum = context.settings.timers.transaction_check_max
        asked: list[tuple[int, int]] = []
        end = len(given_up) + room
        room_end = waiting_end(context)
        while heap and heap[0][0] <= now.wall_ms and len(asked) + len(given_up) < end:
            if not self._room:
                break
            self._room -= 1
            due, offset = heap[0]
            if heap[0] in heap[1:3]:
                heappop(heap)  # it has two entries, because a client had it checked again
                continue
            half = halves.get(offset)
            if half is None:
                heappop(heap)
                continue
            really = self._due_ms(half)
            is_old = half.checks >= maximum or self._is_old(half, now)
            stays = context.disk_full and not (is_old and half.opened.physical < room_end)
            end -= stays
            ahead = self._ahead_ms(half) > 0
            # Its clock says that it is too old, but may be ahead: check it like any other.
            doubted = not (is_old or ahead) and really <= now.wall_ms < self._check_ms(half)
            # Half messages behind it may need no answer, so it must not block them.
            is_blocked = not (is_old or connections)
            waits = offset in context.view.ending or stays or doubted or is_blocked
            if (really > due and not ahead) or waits:
                heappop(heap)
                pause_ms = context.settings.timers.transaction_scan_ms
                later = now.wall_ms + pause_ms
                if doubted or is_blocked:
                    pause_ms = max(
                        pause_ms, context.settings.storage.retention_ms // _DOUBTS_PER_AGE
                    )
                    # Use the same time for all entries of a half message.
                    later = (now.wall_ms // pause_ms + 1) * pause_ms
                heappush(heap, (max(really, later), offset))
                if is_blocked:
                    self._unasked.add(source)
                continue
            if is_old:
                given_up[offset] = half
            else:
                # Each check of a half message goes to the next connection, and so do checks of successive half messages.
                turn = offset + half.checks
                asked.append((offset, connections[turn % len(connections)]))
            heappop(heap)

        return asked

    # -- asking ------------------------------------------------------------------------------------

    def _ask(self, asked: list[tuple[int, int]]) -> list[Effect]:
        if not asked:
            return []
        context = self._context
        count = count_within(context, TRANS_HALF_TOPIC, [offset for offset, _ in asked])
        connections = dict(asked[:count])
        for offset, _ in asked[count:]:
            # Not counted; they are due in the next scan.
            self.watch(context.state.transactions.open[offset])

        def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
            outcome = outcomes[0]
            offsets = outcome.offsets if type(outcome) is HalvesMoved else ()
            return self._questions(offsets, connections)

        return [Propose([HalvesChecked(tuple(connections))], applied=applied)]

    def _questions(self, offsets: Sequence[int], connections: dict[int, int]) -> list[Effect]:
        context = self._context
        open_halves = context.state.transactions.open
        halves = [half for offset in offsets if (half := open_halves.get(offset)) is not None]
        keys = [message_key(half.opened.physical) for half in halves]
        effects: list[Effect] = []
        for half, stored in zip(halves, read_messages(context.reader, keys), strict=True):
            self.watch(half)
            if stored is None:
                # Retention by size removed the message while the record was on its way.
                continue
            context.counters["transaction_checks"] += 1
            effects.append(Send(connections[half.offset], self._question(half, stored)))

        return effects

    def _question(self, half: Half, stored: bytes) -> RemotingCommand:
        """Return the check of a half message, with the message in the form that the producer knows."""
        context, opened = self._context, half.opened
        message = decode_record(stored)
        properties = with_checks(message, half.checks)
        said = properties.by_name
        header = CheckTransactionStateHeader(
            tran_state_table_offset=half.offset,
            commit_log_offset=opened.physical,
            msg_id=said.get(UNIQ_KEY, ""),
            transaction_id=said.get(UNIQ_KEY),
            offset_msg_id=context.message_id(opened.physical),
            topic=opened.topic,
        )
        template = RecordTemplate(
            topic=said.get(REAL_TOPIC, opened.topic).encode(),
            queue_id=read_integer(said.get(REAL_QID, "0"), INT32_MIN, INT32_MAX),
            body=message.body,
            properties=properties.text.encode(),
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=pack_host(*message.born_host),
            store_timestamp=message.store_timestamp,
            store_host=pack_host(*message.store_host),
            reconsume_times=message.reconsume_times,
            checksum=message.body_crc,
        )

        return RemotingCommand(
            RequestCode.CHECK_TRANSACTION_STATE,
            context.next_opaque(),
            FLAG_ONEWAY,
            header.to_ext(),
            encode_with_positions(template, half.offset, opened.physical),
        )

    # -- giving up ---------------------------------------------------------------------------------

    def _give_up(self, halves: list[Half], now: Now) -> list[Effect]:
        """Copy half messages to the topic where people find them and stop checking; as many as fit into one proposal.

        The others are due again immediately: each scan reads and proposes no more than the delay levels do.
        """
        records: list[Record | MessageDraft] = []
        taken: list[Half] = []
        size = 0
        for half in halves:
            stored = read_message(self._context.reader, half.opened.physical)
            size += 0 if stored is None else len(stored)
            if taken and size > SIZE_MAX:
                self._next_scan_ms = now.monotonic_ms
                break
            taken.append(half)
            if stored is not None:
                records.append(self._copy(half, decode_record(stored)))
            records.append(HalfGivenUp(half.offset))
        for half in halves[len(taken) :]:
            self.watch(half)
        if not taken:
            return []

        def applied(_: Sequence[Outcome], __: Now) -> list[Effect]:
            self._context.counters["transactions_given_up"] += len(taken)
            return []

        view = self._context.view

        def lost(_: Refusal | None) -> list[Effect]:
            # The next term schedules all open half messages itself.
            for half in taken if self._context.view is view else ():
                self.watch(half)
            return []

        return [Propose(records, applied, lost)]

    def _copy(self, half: Half, message: StoredMessage) -> MessageDraft:
        """Return the copy of a half message that was given up; it names the offset by which it can be resumed."""
        properties = with_checks(message, half.checks)
        properties.drop(TRAN_PREPARED_QUEUE_OFFSET)
        properties.add(TRAN_PREPARED_QUEUE_OFFSET, str(half.offset))
        topics = self._context.state.topics.by_name
        draft = MessageDraft.of_stored(message, topics[TRANS_HALF_TOPIC], 0, properties)

        # The topic in which people look for transactions that did not end.
        return draft.wait_in(
            topics[TRANS_CHECK_MAX_TIME_TOPIC], 0, tags_code(properties.by_name.get(TAGS))
        )


def with_checks(message: StoredMessage, checks: int) -> Properties:
    """Return the properties of a half message with the number of its checks."""
    properties = properties_of(message.properties)
    if checks:
        properties.drop(TRANSACTION_CHECK_TIMES)
        properties.add(TRANSACTION_CHECK_TIMES, str(checks))

    return properties
