"""The concurrent consumer core: acknowledgements, returned messages, the committed offset, the time-out."""

import pytest

from orderlymq.consumer.core.concurrent import ConcurrentConsumer, ConcurrentRules
from orderlymq.consumer.core.events import (
    Assigned,
    Closing,
    ConcurrentResult,
    Deliver,
    DeliveryDropped,
    Event,
    FindStart,
    Instruction,
    ListenerDone,
    ListenerStarted,
    OffsetIllegal,
    OffsetsReset,
    Paused,
    Persist,
    Pull,
    Pulled,
    Release,
    Released,
    Report,
    Resumed,
    SendBack,
    SendBackResult,
    SetOffset,
    StartFailed,
    StartFound,
    StopPull,
    Tick,
)
from orderlymq.consumer.core.flowcontrol import FlowLimits
from tests.client.messages import QUEUE, messages


class Script:
    """One queue, virtual time, deliveries by number."""

    def __init__(self, rules: ConcurrentRules | None = None, *, offset: int = 0) -> None:
        self.core = ConcurrentConsumer("G", rules or ConcurrentRules())
        self.now = 0
        self.said: list[Instruction] = []
        self.play(Assigned(frozenset({QUEUE})))
        self.play(StartFound(QUEUE, self.generation, offset))

    @property
    def generation(self) -> int:
        return self.core.queues[QUEUE].fetcher.generation

    def play(self, event: Event) -> list[Instruction]:
        said = self.core.handle(event, self.now)
        self.said += said
        return said

    def pulled(self, *offsets: int) -> list[Deliver]:
        following = max(offsets) + 1
        said = self.play(Pulled(QUEUE, self.generation, messages(*offsets), following))
        return [each for each in said if isinstance(each, Deliver)]

    def done(
        self,
        deliver: Deliver,
        result: ConcurrentResult | None = ConcurrentResult.SUCCESS,
        *,
        ack_index: int = 2**31 - 1,
        delay_level: int = 0,
        raised: str | None = None,
    ) -> list[Instruction]:
        return self.play(
            ListenerDone(
                QUEUE,
                deliver.generation,
                deliver.delivery,
                result,
                raised,
                ack_index=ack_index,
                delay_level=delay_level,
            )
        )

    def start(self, deliver: Deliver) -> None:
        self.play(ListenerStarted(QUEUE, deliver.generation, deliver.delivery))

    def tick(self, ms: int) -> list[Instruction]:
        self.now += ms
        return self.play(Tick())

    @property
    def committed(self) -> list[int]:
        return [each.offset for each in self.said if isinstance(each, SetOffset)]

    @property
    def sent_back(self) -> list[tuple[int, int]]:
        return [
            (each.message.queue_offset, each.delay_level)
            for each in self.said
            if isinstance(each, SendBack)
        ]

    def reports(self, part: str) -> list[str]:
        return [each.text for each in self.said if isinstance(each, Report) and part in each.text]


def test_many_messages_of_one_queue_are_handed_out_together() -> None:
    """Law: several batches of one queue are delivered at the same time (CON-02, CON-12)."""
    script = Script(ConcurrentRules(batch_max=2))

    handed = script.pulled(0, 1, 2, 3, 4)

    assert [[m.queue_offset for m in each.messages] for each in handed] == [[0, 1], [2, 3], [4]]


def test_the_offset_is_the_lowest_unfinished_over_all_batches() -> None:
    """Law: the committed offset is the lowest unfinished one over all batches (OFS-03, CON-12): finish 3, 5, 7 -> 0;
    finish 0 -> 1; all -> 10.
    """
    script = Script()
    handed = script.pulled(*range(10))

    for index in (3, 5, 7):
        script.done(handed[index])
    assert script.committed == []
    script.done(handed[0])
    for index in (1, 2, 4, 6, 8, 9):
        script.done(handed[index])

    assert script.committed == [1, 2, 4, 6, 8, 9, 10]


def test_the_ack_index_divides_a_batch() -> None:
    """Law: ack_index divides a batch (CON-07, OFS-12): 5 acknowledged, 5 returned; when the broker took the copies,
    the offset is the end.
    """
    script = Script(ConcurrentRules(batch_max=10))
    (deliver,) = script.pulled(*range(10))

    script.done(deliver, ack_index=4)
    assert script.committed == [5]
    for offset, _ in script.sent_back:
        script.play(SendBackResult(QUEUE, script.generation, offset, ok=True))

    assert script.sent_back == [(offset, 0) for offset in range(5, 10)]
    assert script.committed[-1] == 10


@pytest.mark.parametrize("ack_index", [-1, -2, -1_000])
def test_an_ack_index_before_the_first_message_acknowledges_none(ack_index: int) -> None:
    """Law: an ack_index below -1 acknowledges nothing; it once counted from the end and committed messages that were not
    done.
    """
    script = Script(ConcurrentRules(batch_max=3))
    (deliver,) = script.pulled(0, 1, 2)

    script.done(deliver, ack_index=ack_index)

    assert script.committed == []
    assert script.sent_back == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize(
    ("result", "raised", "text"),
    [
        (ConcurrentResult.RECONSUME_LATER, None, ""),
        (None, "ValueError: no", "consumeMessage exception: ValueError: no"),
    ],
)
def test_a_failed_batch_is_sent_back_whole(
    result: ConcurrentResult | None, raised: str | None, text: str
) -> None:
    """Law: RECONSUME_LATER and an exception both return the whole batch (CON-05, CON-08, CON-09, LOG-17, LOG-21)."""
    script = Script(ConcurrentRules(batch_max=3))
    (deliver,) = script.pulled(0, 1, 2)

    script.done(deliver, result, raised=raised)

    assert script.sent_back == [(0, 0), (1, 0), (2, 0)]
    assert bool(script.reports(text)) or not text


def test_the_context_chooses_the_delay_of_the_retry() -> None:
    """Law: delay_level sets the delay of a returned message (CFG-X6): -1 is the dead-letter queue, n is level n."""
    script = Script()
    (deliver,) = script.pulled(0)

    script.done(deliver, ConcurrentResult.RECONSUME_LATER, delay_level=-1)

    assert script.sent_back == [(0, -1)]


def test_a_message_the_broker_did_not_take_back_is_tried_here_again_after_five_seconds() -> None:
    """Law: a message that the broker did not take back is delivered again here after five seconds,
    and the offset does not pass it (CON-10).
    """
    script = Script()
    (deliver,) = script.pulled(0)
    script.done(deliver, ConcurrentResult.RECONSUME_LATER)

    script.play(SendBackResult(QUEUE, script.generation, 0, ok=False))
    quiet = script.tick(4_999)
    again = [each for each in script.tick(1) if isinstance(each, Deliver)]

    assert quiet == []
    assert [(m.queue_offset, m.reconsume_times) for m in again[0].messages] == [(0, 1)]
    assert script.committed == []


def test_broadcasting_drops_failures_with_a_line_in_the_log() -> None:
    """Law: in broadcasting mode a failed message is dropped with a log line (BRD-03, LOG-22)."""
    script = Script(ConcurrentRules(broadcasting=True))
    handed = script.pulled(0, 1)

    script.done(handed[0], ConcurrentResult.RECONSUME_LATER)
    script.done(handed[1])

    assert script.sent_back == []
    assert script.committed == [1, 2]
    assert script.reports("BROADCASTING, the message consume failed, drop it")


def test_a_result_after_the_queue_was_lost_is_not_processed() -> None:
    """Law: the result of a lost queue is ignored: no commit, nothing returned (CON-06, LOG-23)."""
    script = Script()
    (deliver,) = script.pulled(0)
    script.play(Assigned(frozenset()))

    script.done(deliver, ConcurrentResult.RECONSUME_LATER)

    assert (script.committed, script.sent_back) == ([], [])
    assert script.reports("processQueue is dropped without process consume result")


def test_a_delivery_of_a_lost_queue_is_not_started() -> None:
    """Law: a delivery of a lost queue does not begin (CON-03)."""
    script = Script()
    (deliver,) = script.pulled(0)
    assert script.core.maybe_start(deliver, 0)

    script.play(Assigned(frozenset()))

    assert not script.core.maybe_start(deliver, 0)
    assert not script.core.holds(QUEUE, deliver.generation, 0)
    script.play(DeliveryDropped(QUEUE, deliver.generation, deliver.delivery))
    assert script.reports("not be able to consume, because it's dropped")


def test_a_message_that_sits_15_minutes_in_a_listener_is_sent_back_at_level_3() -> None:
    """Law: a message in a listener for 15 minutes is returned at level 3, once (CON-15)."""
    script = Script()
    (deliver,) = script.pulled(0)
    script.now = 1_000
    script.start(deliver)

    before = script.tick(15 * 60_000 - 1)
    assert script.core.next_wake_ms() == 1_000 + 15 * 60_000
    script.tick(1)
    script.tick(60 * 60_000)

    assert before == []
    assert script.sent_back == [(0, 3)]
    script.play(SendBackResult(QUEUE, script.generation, 0, ok=True))
    script.done(deliver, ConcurrentResult.RECONSUME_LATER)
    assert script.committed[-1] == 1
    assert script.sent_back == [(0, 3)], "the retry topic would have it twice"


def test_no_more_than_sixteen_are_sent_back_at_once() -> None:
    """Law: at most sixteen such messages are returned at the same time; the others follow (CON-15)."""
    script = Script()
    handed = script.pulled(*range(20))
    for deliver in handed:
        script.start(deliver)

    script.tick(15 * 60_000)
    assert len(script.sent_back) == 16
    script.tick(1)

    assert len(script.sent_back) == 20


def test_one_stuck_message_lets_two_thousand_others_pass_and_then_pulling_stops() -> None:
    """Law: behind one stuck message, pulling goes on up to the span of 2000 and one more pull (FLW-01)."""
    script = Script(ConcurrentRules(limits=FlowLimits(queue_count=10_000)))
    handed = script.pulled(*range(32))
    for each in handed[1:]:
        script.done(each)
    last = 31
    while any(isinstance(each, Pull) and each.offset == last + 1 for each in script.said):
        fresh = script.pulled(*range(last + 1, last + 33))
        last += 32
        for each in fresh:
            script.done(each)

    assert 2_000 < last <= 2_000 + 32
    assert script.committed == []
    assert script.reports("span too long")
    said = script.done(handed[0])
    assert [each.offset for each in said if isinstance(each, Pull)] == [last + 1]


def test_an_illegal_offset_and_a_reset_go_on_at_the_given_place() -> None:
    """Law: after an illegal offset or a reset (220), the new offset is persisted immediately,
    and earlier results do not count (OFS-09).
    """
    script = Script(offset=100)
    (deliver,) = script.pulled(100)

    illegal = script.play(OffsetIllegal(QUEUE, script.generation, 7))
    script.done(deliver)
    reset = script.play(OffsetsReset({QUEUE: 3}))

    assert [each for each in illegal if not isinstance(each, Report)] == [
        StopPull(QUEUE),
        SetOffset(QUEUE, 7, None, increase_only=False),
        Persist(QUEUE, None),
        Pull(QUEUE, script.generation - 1, 7, 7, None),
    ]
    assert SetOffset(QUEUE, 3, None, increase_only=False) in reset
    assert script.committed == [7, 3]


def test_an_offset_that_cannot_be_asked_is_asked_again() -> None:
    """Law: if the offset cannot be read, it is read again; the queue does not start at a guess (RBL-05)."""
    core = ConcurrentConsumer("G", ConcurrentRules())
    first = core.handle(Assigned(frozenset({QUEUE})), 0)
    core.handle(StartFailed(QUEUE, 1, "no leader"), 0)

    assert first == [FindStart(QUEUE, 1)]
    assert core.next_wake_ms() == 500
    assert core.handle(Tick(), 500) == [FindStart(QUEUE, 1)]


def test_pause_stops_pulls_and_deliveries() -> None:
    """Law: a suspended consumer pulls and delivers nothing until it is resumed."""
    script = Script()
    script.play(Paused())
    assert script.pulled(0) == []

    said = script.play(Resumed())

    assert [type(each) for each in said] == [Deliver, Pull]


def test_closing_waits_for_listeners_that_run_and_drops_those_that_wait() -> None:
    """Law: closing waits for running listeners, commits their messages and drops those that wait (PSH-21)."""
    script = Script()
    running, waiting = script.pulled(0, 1)
    script.start(running)

    closing = script.play(Closing())
    assert not script.core.maybe_start(waiting, 0)
    script.play(DeliveryDropped(QUEUE, waiting.generation, waiting.delivery))
    said = script.done(running)
    assert not script.core.is_idle
    script.play(Released(QUEUE))

    assert closing == [StopPull(QUEUE)]
    assert said == [
        SetOffset(QUEUE, 1, None, increase_only=True),
        Release(QUEUE, None, commit=True, unlock=False),
    ]
    assert script.core.is_idle


def test_what_nobody_began_for_too_long_goes_one_way() -> None:
    """Law: a message that waited too long and is being returned is not delivered here too."""
    script = Script()
    (deliver,) = script.pulled(0)
    script.start(deliver)
    script.tick(15 * 60_000)

    said = script.play(DeliveryDropped(QUEUE, deliver.generation, deliver.delivery))
    script.play(SendBackResult(QUEUE, script.generation, 0, ok=True))

    assert script.sent_back == [(0, 3)]
    assert not [each for each in said if isinstance(each, Deliver)]
    assert script.committed == [1]


def test_a_queue_that_comes_back_starts_after_its_release() -> None:
    """Law: a queue that comes back reads its offset only after its former commit is done (RBL-07)."""
    script = Script()
    script.play(Assigned(frozenset()))

    assert script.play(Assigned(frozenset({QUEUE}))) == []
    assert script.play(Released(QUEUE)) == [FindStart(QUEUE, 2)]
