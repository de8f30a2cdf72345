"""Recalls of timer messages by the handle of their send (370), as in RocketMQ from 5.3.1 on."""

import gc
from typing import Any

import pytest

from orderlymq_broker.core.messagedraft import MessageDraft
from orderlymq_broker.settings import TimerSettings
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.recallhandle import RecallHandle
from tests.broker.processors.driver import START_MS, Shell, settings
from tests.broker.processors.halves import COMMIT, begin, end
from tests.broker.processors.requests import create, properties, send, send_ext
from tests.broker.processors.schedule.test_timers import DAY_MS, delivered_bodies, rows, with_orders
from tests.broker.processors.send.test_batches import batch_body


@pytest.fixture
def timed(shell: Shell) -> Shell:
    """A leader with the topic orders."""
    return with_orders(shell)


def ext(handle: str, topic: str = "orders") -> dict[str, str]:
    return {"producerGroup": "producers", "topic": topic, "recallHandle": handle}


def recall(shell: Shell, handle: str, topic: str = "orders") -> RemotingCommand:
    return shell.call(RequestCode.RECALL_MESSAGE, ext(handle, topic))


def wait(
    shell: Shell, key: str = "K1", delay_ms: int = 5_000, body: bytes = b"later", **letters: Any
) -> str:
    """Send a timer message and return its handle."""
    asked = properties(UNIQ_KEY=key, TIMER_DELAY_MS=str(delay_ms))
    return send(shell, body=body, props=asked, **letters).ext["recallHandle"]


def handle_of(key: str = "K1", **changes: object) -> str:
    fields = {"topic": "orders", "broker_name": "broker-a", "due_ms": START_MS + 5_000} | changes
    return RecallHandle(unique_key=key, **fields).encode()  # type: ignore[arg-type]  # each test says it right


def test_a_timer_message_is_recalled_by_the_handle_of_its_send(timed: Shell) -> None:
    """Law: the handle of a send recalls its message, which is never delivered; the answer names the unique key."""
    handle = wait(timed)
    wait(timed, "K2", body=b"stays")
    assert RecallHandle.decode(handle) == RecallHandle("orders", "broker-a", START_MS + 5_000, "K1")

    reply = recall(timed, handle)

    assert (reply.code, reply.ext) == (0, {"msgId": "K1", "MSG_REGION": "DefaultRegion"})
    timed.pass_time(6_000)
    assert delivered_bodies(timed) == [b"stays"]
    assert rows(timed) == 0
    timed.replay()


@pytest.mark.parametrize("key", ["order 7", " 7", "7 "])
def test_a_message_whose_key_has_blanks_is_recalled(timed: Shell, key: str) -> None:
    """Law: a message whose unique key has blanks, which separate the parts of a handle, is recalled as well."""
    handle = wait(timed, key)

    reply = recall(timed, handle)

    assert (reply.code, reply.ext["msgId"]) == (0, key)
    timed.pass_time(6_000)
    assert delivered_bodies(timed) == []


def test_a_recall_that_is_repeated_gets_the_same_answer() -> None:
    """Law: a repeated recall gets the same answer, also from the next leader."""
    timed = with_orders(Shell().lead())
    handle = wait(timed)
    assert recall(timed, handle).code == 0

    again = recall(timed, handle)
    successor = timed.restart().lead()
    later = recall(successor, handle)

    assert (again.code, again.ext["msgId"]) == (0, "K1")
    assert (later.code, later.ext["msgId"]) == (0, "K1")


def test_only_the_message_of_that_topic_is_recalled(timed: Shell) -> None:
    """Law: a recall concerns only its topic, because two topics may have the same unique key."""
    create(timed, TopicSet("other", 4, 4))
    wait(timed)

    assert recall(timed, handle_of(topic="other"), "other").code == 0

    timed.pass_time(6_000)
    assert delivered_bodies(timed) == [b"later"]


@pytest.mark.parametrize(
    ("topic", "handle", "code", "words"),
    [
        ("nowhere", handle_of(topic="nowhere"), 17, "not exist"),
        ("orders", "no handle", 604, "recall handle is invalid"),
        ("orders", handle_of(topic="other"), 604, "topic not match"),
        ("orders", handle_of(broker_name="broker-b"), 604, "broker service not available"),
        ("orders", handle_of(due_ms=START_MS), 604, "timestamp invalid"),
        ("orders", handle_of(due_ms=START_MS + 3 * DAY_MS + 1), 604, "timestamp invalid"),
    ],
)
def test_a_recall_that_cannot_be_is_refused_as_rocketmq_does(
    timed: Shell, topic: str, handle: str, code: int, words: str
) -> None:
    """Law: an impossible recall is refused with RocketMQ's codes and words, and nothing is proposed."""
    wait(timed)
    records = len(timed.proposed)

    reply = recall(timed, handle, topic)

    assert (reply.code, words in (reply.remark or "")) == (code, True)
    assert len(timed.proposed) == records


def test_a_message_that_was_delivered_is_not_recalled(timed: Shell) -> None:
    """Law: a delivered message is not recalled; the answer is 604."""
    handle = wait(timed)
    timed.pass_time(5_200)

    assert recall(timed, handle).code == 604
    assert delivered_bodies(timed) == [b"later"]


@pytest.mark.parametrize(("messages", "size"), [(33, 5), (17, 1 << 20)])
def test_a_recall_that_would_read_too_much_is_refused(
    timed: Shell, messages: int, size: int
) -> None:
    """Law: a recall is refused if too many messages have its key, because SUCCESS must cover all of them."""
    handles = [wait(timed, body=bytes(size)) for _ in range(messages)]
    records = len(timed.proposed)

    reply = recall(timed, handles[0])

    assert reply.code == 1
    assert "more than 32 messages or 16 MiB have the unique key" in (reply.remark or "")
    assert len(timed.proposed) == records


@pytest.mark.parametrize(("messages", "size"), [(32, 5), (16, 1_000_000)])
def test_all_copies_of_a_message_are_recalled(timed: Shell, messages: int, size: int) -> None:
    """Law: all copies of a message, which a client sent several times, are recalled."""
    handles = [wait(timed, body=bytes(size)) for _ in range(messages)]

    assert recall(timed, handles[0]).code == 0

    timed.pass_time(6_000)
    assert delivered_bodies(timed) == []


def test_recalls_can_be_switched_off() -> None:
    """Law: with recallMessageEnable false, a recall is refused with 16 in RocketMQ's words."""
    shell = with_orders(Shell(settings(timers=TimerSettings(recall_enable=False))).lead())

    reply = recall(shell, wait(shell))

    assert (reply.code, "operation is forbidden" in (reply.remark or "")) == (16, True)


def test_other_messages_have_no_handle(timed: Shell) -> None:
    """Law: other messages get no handle: plain ones, delay levels, batches, half messages and cancellations."""
    plain = send(timed, props=properties(UNIQ_KEY="P"))
    level = send(timed, props=properties(UNIQ_KEY="L", DELAY="3"))
    batch = timed.call(
        320,
        send_ext("orders", m="true"),
        batch_body((b"1", b"UNIQ_KEY\x01B\x02TIMER_DELAY_MS\x012000")),
    )
    cancel = send(
        timed, props=properties(UNIQ_KEY="C", TIMER_DELAY_MS="900", TIMER_DEL_UNIQKEY="none")
    )
    half = begin(timed, TIMER_DELAY_MS="5000")

    assert end(timed, half, COMMIT).code == 0
    assert [reply.code for reply in (plain, level, batch, cancel)] == [0, 0, 0, 0]
    assert all("recallHandle" not in reply.ext for reply in (plain, level, batch, cancel))


def test_a_repeat_of_a_send_has_its_handle_too() -> None:
    """Law: in an ordered topic a repeated send gets a handle too."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 4, 4, order=True), GroupSet("billing"))
    first = wait(shell)

    again = wait(shell)

    assert recall(shell, again).code == 0
    assert RecallHandle.decode(first).unique_key == RecallHandle.decode(again).unique_key
    shell.pass_time(6_000)
    assert delivered_bodies(shell) == []


@pytest.mark.parametrize("how", ["same turn", "applied", "restarted"])
def test_a_handle_of_a_repeat_has_the_time_of_the_first_send(how: str) -> None:
    """Law: that handle has the time of the first send, so that a delivered message is never recalled with success."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 4, 4, order=True), GroupSet("billing"))
    asked = send_ext("orders", properties(UNIQ_KEY="K1", TIMER_DELAY_SEC="10"))
    opaques = [shell.submit(310, asked, b"later")]
    if how != "same turn":
        shell.settle()
    if how == "restarted":
        shell = shell.restart().lead()
    if how == "same turn":
        shell.wall_ms += 3_000
    else:
        shell.pass_time(3_000)
    opaques.append(shell.submit(310, asked, b"later"))
    shell.settle()

    again = shell.reply_to(opaques[1])
    assert again is not None
    handle = again.ext["recallHandle"]
    shell.pass_time(8_000)
    assert delivered_bodies(shell) == [b"later"]
    assert recall(shell, handle).code == 604


def test_repeats_that_wait_keep_no_body(shell: Shell) -> None:
    """Law: repeats that wait keep no body; each gets the handle of the first send."""
    create(shell, TopicSet("orders", 4, 4, order=True))
    asked = send_ext("orders", properties(UNIQ_KEY="K1", TIMER_DELAY_MS="60000"))

    opaques = [shell.submit(310, asked, b"x" * 1_000) for _ in range(20)]
    drafts = sum(
        type(each) is MessageDraft and len(each.body) == 1_000 for each in gc.get_objects()
    )
    shell.settle()

    assert drafts == 1
    replies = [shell.reply_to(opaque) for opaque in opaques]
    assert {reply and reply.ext["recallHandle"] for reply in replies} == {
        handle_of(due_ms=START_MS + 60_000)
    }


def taken_back(how: str, *, by_message: bool) -> Shell:
    """Send a timer message to an ordered topic and take it back, by a cancelling message or by its handle."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 4, 4, order=True), GroupSet("billing"))
    handle = wait(shell)
    if by_message:
        cancel = properties(UNIQ_KEY="C", TIMER_DELAY_MS="5000", TIMER_DEL_UNIQKEY="K1")
        shell.submit(310, send_ext("orders", cancel), b"cancel")
    else:
        shell.submit(RequestCode.RECALL_MESSAGE, ext(handle))
    if how != "same turn":
        shell.settle()
    if how == "restarted":
        shell = shell.restart().lead()

    return shell


@pytest.mark.parametrize("by_message", [False, True])
@pytest.mark.parametrize("how", ["same turn", "applied", "restarted"])
def test_a_message_that_was_taken_back_can_be_sent_again(how: str, *, by_message: bool) -> None:
    """Law: a message that was taken back can be sent again in an ordered topic, and is delivered once."""
    shell = taken_back(how, by_message=by_message)

    wait(shell, g=START_MS)
    wait(shell, g=START_MS)

    shell.pass_time(6_000)
    assert delivered_bodies(shell) == [b"later"]
    wait(shell)
    shell.pass_time(6_000)
    assert delivered_bodies(shell) == [b"later"]
    shell.replay()


@pytest.mark.parametrize("by_message", [False, True])
@pytest.mark.parametrize("how", ["same turn", "applied", "restarted"])
def test_a_try_that_was_under_way_at_the_cancellation_is_refused(
    how: str, *, by_message: bool
) -> None:
    """Law: a late try of a cancelled send is refused, alone or in a batch."""
    shell = taken_back(how, by_message=by_message)
    asked = properties(UNIQ_KEY="K1", TIMER_DELAY_MS="5000")

    late = send(shell, body=b"later", props=asked, g=START_MS - 1)
    batch = shell.call(
        320, send_ext("orders", g=START_MS - 1, m="true"), batch_body((b"later", asked.encode()))
    )

    for refused in (late, batch):
        assert refused.code == 13
        assert f"was cancelled at {START_MS}, and this attempt was created earlier" in (
            refused.remark or ""
        )
    shell.pass_time(6_000)
    assert delivered_bodies(shell) == []
    shell.replay()


def test_success_is_reported_when_it_is_certain(timed: Shell) -> None:
    """Law: a recall is answered when its record is applied; one lost with its leader is refused."""
    handle = wait(timed)

    opaque = timed.submit(RequestCode.RECALL_MESSAGE, ext(handle))
    assert timed.reply_to(opaque) is None
    second = timed.submit(RequestCode.RECALL_MESSAGE, ext(handle))
    busy = timed.reply_to(second)
    assert busy is not None
    assert (busy.code, "at this moment" in (busy.remark or "")) == (1, True)
    timed.lose_proposals()

    reply = timed.reply_to(opaque)
    assert reply is not None
    assert reply.code == 14
    timed.follow()
    timed.lead()
    timed.pass_time(6_000)
    assert delivered_bodies(timed) == [b"later"]


def test_a_recall_of_a_deposed_leader_succeeds_at_nothing(timed: Shell) -> None:
    """Law: a deposed leader does not report success, even if it sees nothing waiting,
    because another leader may have taken the message since.
    """
    opaque = timed.submit(RequestCode.RECALL_MESSAGE, ext(handle_of("UNKNOWN")))
    assert timed.reply_to(opaque) is None

    timed.lose_proposals()

    reply = timed.reply_to(opaque)
    assert reply is not None
    assert reply.code == 14
