"""Messages that consumers return (36), and the delay levels in which they wait."""

import zlib

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orderlymq_broker.state.records import (
    Append,
    Commit,
    DelayProgress,
    GroupDeleted,
    GroupSet,
    OffsetsReset,
    Record,
    TopicDeleted,
    TopicSet,
)
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.message.properties import decode_properties
from orderlymq_protocol.message.record import PROPERTIES_BYTES_MAX, body_crc, decode_record
from tests.broker.processors.driver import BOB, DAY_MS, Shell, settings
from tests.broker.processors.requests import (
    STORED_WITH,
    bodies,
    create,
    messages,
    properties,
    pull,
    send,
    send_ext,
)


def ready(shell: Shell, *, retry_max_times: int = 16, retry_queues: int = 1) -> Shell:
    group = GroupSet("billing", retry_max_times=retry_max_times, retry_queues=retry_queues)
    create(shell, TopicSet("orders", 2, 2), group)
    return shell


def hand_back(
    shell: Shell, physical: int, *, level: int = 0, version: int = 409, **more: str
) -> int:
    ext = {"offset": str(physical), "group": "billing", "delayLevel": str(level), **more}
    return shell.call(36, ext, version=version).code


def found(shell: Shell, topic: str, offset: int = 0) -> list[bytes]:
    reply = pull(shell, topic=topic, offset=offset)
    return bodies(reply) if reply.body else []


def test_a_message_handed_back_comes_again_after_ten_seconds(shell: Shell) -> None:
    """Law: a returned message comes again after ten seconds as a copy with its body, birth and key, one try more, and its origin."""
    ready(shell)
    send(shell, body=b"x", props=properties(UNIQ_KEY="U", TAGS="T"), h=3)
    shell.pass_time(1_000)

    assert hand_back(shell, 0) == 0

    shell.pass_time(9_900)
    assert found(shell, "%RETRY%billing") == []
    shell.pass_time(200)
    (copy,) = messages(pull(shell, topic="%RETRY%billing"))
    assert (copy.body, copy.flag, copy.reconsume_times) == (b"x", 3, 1)
    assert copy.born_timestamp == 1699999999000
    assert decode_properties(copy.properties) == {
        "UNIQ_KEY": "U",
        "TAGS": "T",
        **STORED_WITH,
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "C000026400002A9F0000000000000000",
        "WAIT": "false",
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%billing",
        "REAL_QID": "0",
    }


def test_each_failure_waits_a_level_longer_and_the_last_is_a_dead_letter(shell: Shell) -> None:
    """Law: each failure waits one level longer (10 s, 30 s, 1 min); after the last try the message is a dead letter immediately."""
    ready(shell, retry_max_times=3)
    send(shell, body=b"x", props=properties(UNIQ_KEY="U"))
    hand_back(shell, 0)
    for number, delay_ms in enumerate((10_000, 30_000, 60_000)):
        shell.pass_time(delay_ms - 100, step=1_000)
        assert len(found(shell, "%RETRY%billing")) == number
        shell.pass_time(200)
        copies = messages(pull(shell, topic="%RETRY%billing"))
        assert copies[-1].reconsume_times == number + 1
        assert hand_back(shell, copies[-1].physical_offset) == 0

    (dead,) = messages(pull(shell, topic="%DLQ%billing"))
    values = decode_properties(dead.properties)
    assert (dead.body, values["RETRY_TOPIC"], values["UNIQ_KEY"]) == (b"x", "orders", "U")
    assert "DELAY" not in values
    shell.pass_time(10_000, step=1_000)
    assert len(found(shell, "%RETRY%billing")) == 3


def test_a_dead_letter_names_the_topic_that_it_comes_from_not_one_that_its_sender_wrote(
    shell: Shell,
) -> None:
    """Law: a dead letter's RETRY_TOPIC is the topic that it really comes from, not one that its sender wrote; redrives use it."""
    ready(shell, retry_max_times=1)
    send(shell, body=b"x", props=properties(UNIQ_KEY="U", RETRY_TOPIC="payments"))

    hand_back(shell, 0)
    shell.pass_time(10_100, step=1_000)
    (copy,) = messages(pull(shell, topic="%RETRY%billing"))
    hand_back(shell, copy.physical_offset)
    (dead,) = messages(pull(shell, topic="%DLQ%billing"))

    topics = [decode_properties(each.properties)["RETRY_TOPIC"] for each in (copy, dead)]
    assert topics == ["orders", "orders"]


def test_a_level_may_be_given_and_below_zero_means_dead(shell: Shell) -> None:
    """Law: delayLevel sets the level; below zero it makes a dead letter."""
    ready(shell)
    send(shell, body=b"soon", props=properties(UNIQ_KEY="A"))
    first = shell.state.physical_end
    send(shell, body=b"never", props=properties(UNIQ_KEY="B"))

    hand_back(shell, 0, level=1)
    hand_back(shell, first, level=-1)
    shell.pass_time(1_100)

    assert found(shell, "%RETRY%billing") == [b"soon"]
    assert found(shell, "%DLQ%billing") == [b"never"]


def test_the_maximum_of_the_client_counts_from_version_121_on(shell: Shell) -> None:
    """Law: the client's maximum of tries counts from version 121 on, because older clients send something else in that field."""
    ready(shell)
    send(shell, body=b"old", props=properties(UNIQ_KEY="A"))
    first = shell.state.physical_end
    send(shell, body=b"new", props=properties(UNIQ_KEY="B"))

    hand_back(shell, 0, version=120, maxReconsumeTimes="0")
    hand_back(shell, first, maxReconsumeTimes="0")

    assert found(shell, "%DLQ%billing") == [b"new"]


def test_handed_back_twice_is_stored_once(shell: Shell) -> None:
    """Law: a message returned twice, or followed by the client's own copy, is stored once."""
    ready(shell)
    send(shell, body=b"x", props=properties(UNIQ_KEY="U"))

    hand_back(shell, 0)
    hand_back(shell, 0)
    text = properties(UNIQ_KEY="U", RETRY_TOPIC="orders", DELAY="3")
    assert send(shell, "%RETRY%billing", b"x", text, caller=BOB, j=1, l=16).code == 0
    shell.pass_time(40_000, step=1_000)

    assert found(shell, "%RETRY%billing") == [b"x"]


def test_the_window_keeps_no_long_origin_of_a_copy(shell: Shell) -> None:
    """Law: a long origin is not kept in the window of known sends, by any maker of the copy."""
    ready(shell)
    text = properties(UNIQ_KEY="U", RETRY_TOPIC="o" * 30_000)
    sent = send(shell, "%RETRY%billing", b"x", text, caller=BOB, j=1, l=16)
    again = send(shell, "%RETRY%billing", b"x", text, caller=BOB, j=1, l=16)

    hand_back(shell, int(sent.ext["msgId"][16:], 16))

    assert again.ext["msgId"] == sent.ext["msgId"]
    assert len(shell.state.dedup) == 2
    assert max(map(len, shell.state.dedup.sends)) < 2_000


def test_a_compressed_message_and_its_consumers_inflated_copy_are_one(shell: Shell) -> None:
    """Law: a compressed message and the uncompressed copy of its consumer count as one."""
    ready(shell)
    plain, deflated = b"paid " * 100, zlib.compress(b"paid " * 100)
    checksums = f"{body_crc(plain):08x},{body_crc(deflated):08x}"
    place = send(shell, body=deflated, props=properties(UNIQ_KEY="U", OMQ_BODY_CRC=checksums))
    hand_back(shell, int(place.ext["msgId"][16:], 16))

    text = properties(UNIQ_KEY="U", RETRY_TOPIC="orders", DELAY="3")
    assert send(shell, "%RETRY%billing", plain, text, caller=BOB, j=1, l=16).code == 0
    shell.pass_time(40_000, step=1_000)

    assert found(shell, "%RETRY%billing") == [deflated]


def test_a_dead_letter_handed_over_by_another_try_is_stored_once(shell: Shell) -> None:
    """Law: a dead letter sent again with one try more, after a lost answer, is stored once."""
    ready(shell)
    send(shell, body=b"x", props=properties(UNIQ_KEY="U"))
    text = properties(UNIQ_KEY="U", RETRY_TOPIC="orders")

    for times in (2, 3, 4):
        answered = send(shell, "%RETRY%billing", b"x", text, j=times, l=2, version=455)
        assert answered.code == 0

    assert found(shell, "%DLQ%billing") == [b"x"]


@pytest.mark.parametrize("level", [0, -1])
def test_each_message_that_fails_is_kept_also_with_the_key_and_body_of_another(level: int) -> None:
    """Law: messages with the same key and body, as Java makes them from one object, are kept separately; each return counts once."""
    shell = ready(Shell().lead())
    create(shell, TopicSet("plain", 2, 2), TopicSet("other", 1, 1))
    # As in a forwarded message, from where it failed before.
    text = properties(UNIQ_KEY="U", ORIGIN_MESSAGE_ID=f"{'0' * 32}")
    places = []
    for topic, queue in (("plain", 0), ("plain", 1), ("other", 0), ("plain", 0)):
        places.append(shell.state.physical_end)
        send(shell, topic, b"x", text, e=queue)

    for physical in (*places, *reversed(places)):
        shell.submit(36, {"offset": str(physical), "group": "billing", "delayLevel": str(level)})
    shell.settle()
    shell = shell.restart().lead()
    for physical in places:
        assert hand_back(shell, physical, level=level) == 0
    shell.pass_time(10_100, step=1_000)

    target = "%RETRY%billing" if level == 0 else "%DLQ%billing"
    copies = messages(pull(shell, topic=target))
    said = [decode_properties(each.properties) for each in copies]
    assert [each["RETRY_TOPIC"] for each in said] == ["plain", "plain", "other", "plain"]
    assert [int(each["ORIGIN_MESSAGE_ID"][16:], 16) for each in said] == places
    # The next try of each counts too, and knows the first message.
    for copy in (*copies, *copies):
        assert hand_back(shell, copy.physical_offset, level=-1) == 0
    assert len(found(shell, "%DLQ%billing")) == 4


def reset(topic: str, offset: int) -> OffsetsReset:
    return OffsetsReset((Commit("billing", topic, 0, offset),))


@pytest.mark.parametrize(
    ("records", "fresh"),
    [
        ([reset("orders", 0)], ["orders"]),
        ([reset("%RETRY%billing", 0)], ["orders", "other"]),
        ([GroupDeleted("billing", clean_offsets=True), GroupSet("billing")], ["orders", "other"]),
        ([reset("orders", 1)], []),
        ([GroupDeleted("billing"), GroupSet("billing")], []),
    ],
)
@pytest.mark.parametrize("level", [1, -1])
def test_what_is_consumed_once_more_may_fail_once_more(
    records: list[Record], fresh: list[str], level: int
) -> None:
    """Law: after a reset, messages consumed again may be returned again; other returns are still known."""
    shell = ready(Shell().lead())
    create(
        shell, GroupSet("audit"), *(TopicSet(each, 1, 1) for each in ("other", "%RETRY%billing"))
    )
    places = {}
    for topic in ("orders", "other"):
        places[topic] = shell.state.physical_end
        send(shell, topic, topic.encode(), properties(UNIQ_KEY="U"))
    create(shell, reset("orders", 0), reset("%RETRY%billing", 0))
    for physical in places.values():
        hand_back(shell, physical, level=level)
        hand_back(shell, physical, level=-1, group="audit")
    shell.pass_time(2_000, step=500)
    create(shell, reset("orders", 1), reset("%RETRY%billing", 1))

    create(shell, *records)
    shell = shell.restart().lead()
    for _ in range(2):
        for physical in places.values():
            assert hand_back(shell, physical, level=level) == 0
            assert hand_back(shell, physical, level=-1, group="audit") == 0
    shell.pass_time(2_000, step=500)

    copies = found(shell, "%RETRY%billing" if level == 1 else "%DLQ%billing")
    assert [body.decode() for body in copies] == ["orders", "other", *fresh]
    assert found(shell, "%DLQ%audit") == [b"orders", b"other"]
    shell.replay()


def test_the_clients_own_copies_of_two_topics_are_two(shell: Shell) -> None:
    """Law: clients' own copies with the same key from two topics are two messages, known by their origin."""
    ready(shell)

    for topic in ("orders", "payments", "orders"):
        text = properties(UNIQ_KEY="U", RETRY_TOPIC=topic)
        assert send(shell, "%RETRY%billing", b"x", text, j=1, l=16).code == 0

    assert found(shell, "%RETRY%billing") == [b"x", b"x"]


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        ({"offset": "12345", "group": "billing", "delayLevel": "0"}, 1),
        ({"offset": "-1", "group": "billing", "delayLevel": "0"}, 1),
        ({"offset": "7", "group": "billing", "delayLevel": "0"}, 1),
        ({"offset": "0", "group": "unknown", "delayLevel": "0"}, 26),
        ({"offset": "0", "group": "billing"}, 1),
    ],
)
def test_what_cannot_be_handed_back_is_refused(
    shell: Shell, ext: dict[str, str], code: int
) -> None:
    """Law: a return without the message or the group is refused."""
    ready(shell)
    send(shell)

    assert shell.call(36, ext).code == code


@pytest.mark.parametrize(("level", "prefix", "longest"), [(1, "%RETRY%", 120), (-1, "%DLQ%", 122)])
def test_no_message_goes_to_a_topic_that_older_clients_cannot_read(
    shell: Shell, level: int, prefix: str, longest: int
) -> None:
    """Law: a return is refused if its topic's name is too long for older clients, which would lose messages of a pull."""
    ready(shell)
    send(shell, body=b"x")
    fits, too_long = "g" * longest, "g" * (longest + 1)
    create(shell, GroupSet(fits), GroupSet(too_long))
    ext = {"offset": "0", "group": too_long, "delayLevel": str(level)}

    assert hand_back(shell, 0, level=level, group=fits) == 0
    refused = shell.call(36, ext)

    shell.pass_time(1_100)
    stored = pull(shell, topic=prefix + fits).body
    assert (bodies(pull(shell, topic=prefix + fits)), stored[4:8].hex()) == ([b"x"], "daa320a7")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "give the consumer group a shorter name" in (refused.remark or "")
    assert prefix + too_long not in shell.state.topics.by_name


def test_what_nobody_was_ever_delivered_cannot_be_handed_back(shell: Shell) -> None:
    """Law: a half or delayed message cannot be returned, because it was never delivered."""
    ready(shell)
    physical = shell.state.physical_end
    send(shell, body=b"later", props=properties(DELAY="18"))

    refused = shell.call(36, {"offset": str(physical), "group": "billing", "delayLevel": "0"})

    assert refused.code == 1
    assert "waits in SCHEDULE_TOPIC_XXXX and was never delivered" in (refused.remark or "")


def test_a_message_with_full_properties_is_refused_as_a_retry_and_stored_as_a_dead_letter(
    shell: Shell,
) -> None:
    """Law: if a message's properties are full, its retry is refused, so that the client keeps it; as a dead letter it is stored with those that fit."""
    ready(shell)
    keyed = properties(UNIQ_KEY="u", big="")
    stored_with = len(properties(**STORED_WITH))
    big = "y" * (PROPERTIES_BYTES_MAX - stored_with - len(keyed) - 1)
    send(shell, body=b"full", props=keyed + big)
    ext = {"offset": "0", "group": "billing", "delayLevel": "0"}

    refused = shell.call(36, ext)

    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "the properties of the message leave no room" in (refused.remark or "")
    # The client then sends a copy to the retry topic; that is refused for certain, so it keeps the message.
    copy = send(shell, "%RETRY%billing", body=b"full", props=keyed + big + properties(DELAY="3"))
    assert copy.code == ResponseCode.MESSAGE_ILLEGAL
    assert hand_back(shell, 0, level=-1) == 0
    (letter,) = messages(pull(shell, topic="%DLQ%billing"))
    assert decode_properties(letter.properties) == {"UNIQ_KEY": "u", "big": big, **STORED_WITH}


def test_a_group_without_retry_queues_drops_what_it_hands_back(shell: Shell) -> None:
    """Law: with retryQueueNums 0, returned messages are answered 0 and dropped."""
    ready(shell, retry_queues=0)
    send(shell)
    end = shell.state.physical_end

    assert (hand_back(shell, 0), shell.state.physical_end) == (0, end)


# -- delay levels --------------------------------------------------------------------------------


def test_the_reply_to_a_delayed_send_names_the_requested_queue(shell: Shell) -> None:
    """Law: the reply to a delayed send names the requested queue and the schedule queue's offset, as RocketMQ does."""
    ready(shell)
    send(shell, props=properties(DELAY="4"), e=0)

    reply = send(shell, props=properties(DELAY="4"), e=1)

    assert (reply.ext["queueId"], reply.ext["queueOffset"]) == ("1", "1")


@pytest.mark.parametrize(
    ("level", "delay_ms"), [(1, 1_000), (2, 5_000), (18, 7_200_000), (99, 7_200_000)]
)
def test_a_delayed_message_is_never_early_and_comes_within_a_tick(
    shell: Shell, level: int, delay_ms: int
) -> None:
    """Law: a delayed message is never early and at most a tick late; higher levels count as the highest."""
    ready(shell)
    send(shell, body=b"later", props=properties(DELAY=str(level)), e=1)
    queue = 1

    shell.wall_ms += delay_ms - 100 - 1
    shell.pass_time(100)
    assert pull(shell, queue=queue).body == b""
    shell.pass_time(100)

    (message,) = messages(pull(shell, queue=queue))
    assert message.store_timestamp == shell.wall_ms
    assert decode_properties(message.properties) == {
        "DELAY": str(min(level, 18)),
        "REAL_TOPIC": "orders",
        "REAL_QID": "1",
        **STORED_WITH,
    }


def test_copies_and_progress_are_one_entry(shell: Shell) -> None:
    """Law: delivered copies and the progress of their level are one entry, so that no leader can die between them."""
    ready(shell)
    for _ in range(3):
        send(shell, props=properties(DELAY="1"))
    before = len(shell.proposed)
    shell.wall_ms += 1_000

    shell.run(shell.core.tick(shell.now))
    assert len(shell.pending) == 1
    shell.settle()

    kinds = [type(each) for each in shell.proposed[before:]]
    assert kinds == [Append, Append, Append, DelayProgress]


def test_many_due_messages_are_handed_on_in_order_over_several_ticks(shell: Shell) -> None:
    """Law: many due messages are delivered in order over several ticks, none skipped."""
    ready(shell)
    for number in range(1_500):
        shell.submit(310, _delayed(number), str(number).encode())
    shell.settle()

    shell.pass_time(1_400)

    queue = shell.state.topics.by_name["orders"].queues[0]
    assert [decode_record(bytes(each.message)).body for each in queue.tail] == [
        str(number).encode() for number in range(1_500)
    ]


def _delayed(number: int) -> dict[str, str]:
    return send_ext("orders", properties(DELAY="1", UNIQ_KEY=f"U{number}"))


def test_messages_for_a_deleted_topic_are_dropped_and_counted(shell: Shell) -> None:
    """Law: messages for a deleted topic are dropped and counted, and do not block the level."""
    ready(shell)
    create(shell, TopicSet("short", 1, 1))
    send(shell, "short", props=properties(DELAY="1"))
    send(shell, body=b"kept", props=properties(DELAY="1"))
    create(shell, TopicDeleted("short"))

    shell.pass_time(1_200)

    assert found(shell, "orders") == [b"kept"]
    assert shell.core.context.counters["delayed_dropped"] == 1


def test_a_topic_that_has_shrunk_takes_its_delayed_messages_in_queue_0(shell: Shell) -> None:
    """Law: if the topic has fewer queues now, a delayed message goes to queue 0."""
    ready(shell)
    send(shell, body=b"x", props=properties(DELAY="1"), e=1)
    create(shell, TopicSet("orders", 1, 1))

    shell.pass_time(1_200)

    assert found(shell, "orders") == [b"x"]


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["send", "tick", "turn", "crash", "lose"]), min_size=1, max_size=30)
)
def test_over_any_change_of_leader_each_delayed_message_comes_exactly_once(
    steps: list[str],
) -> None:
    """Law: over any changes of leader each delayed message is delivered exactly once."""
    shell = ready(Shell().lead())
    acknowledged: list[bytes] = []
    waiting: dict[int, bytes] = {}
    number = 0
    for step in steps:
        if step == "send":
            number += 1
            body = f"m{number}".encode()
            waiting[shell.submit(310, _delayed(number), body)] = body
        elif step == "tick":
            shell.wall_ms += 600
            shell.monotonic_ms += 600
            shell.run(shell.core.tick(shell.now))
        elif step == "turn" and shell.pending:
            shell.turn()
        elif step == "lose":
            shell.lose_proposals()
            shell.follow()
            shell.lead()
        elif step == "crash":
            acknowledged += _told(shell, waiting)
            waiting = {}
            shell = shell.restart().lead()
    shell.settle()
    acknowledged += _told(shell, waiting)
    shell.pass_time(2_000)

    reply = pull(shell)
    delivered = bodies(reply) if reply.body else []
    assert sorted(delivered) == sorted(acknowledged)
    assert len(set(delivered)) == len(delivered)


def _told(shell: Shell, waiting: dict[int, bytes]) -> list[bytes]:
    replies = {opaque: shell.reply_to(opaque) for opaque in waiting}
    return [
        waiting[opaque] for opaque, reply in replies.items() if reply is not None and not reply.code
    ]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_was_ahead_delays_no_level(restarts: bool) -> None:
    """Law: if the clock was ahead, messages wait their delay from when a leader with the right clock sees them."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 1, 1))
    shell.set_clock(shell.wall_ms + DAY_MS)
    send(shell, body=b"0", props=properties(DELAY="1"))
    shell.set_clock(shell.wall_ms - DAY_MS)
    if restarts:
        shell = shell.restart().lead()
    for body in (b"1", b"2"):
        send(shell, body=body, props=properties(DELAY="1"))

    shell.pass_time(900)
    early = found(shell, "orders")
    shell.pass_time(1_400)

    assert early == []
    assert found(shell, "orders") == [b"0", b"1", b"2"]
    shell.replay()


def test_levels_that_were_shortened_hand_nothing_on_early() -> None:
    """Law: if delay levels are shortened, waiting messages keep the delay with which they were sent."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 1, 1))
    for level in ("18", "4"):
        send(shell, body=level.encode(), props=properties(DELAY=level))
    timers = replace(shell.settings.timers, delay_levels="1s 5s 10s")
    shell.settings = replace(shell.settings, timers=timers)
    shell = shell.restart().lead()

    shell.pass_time(29_000)
    early = found(shell, "orders")
    shell.pass_time(2_000)
    later = found(shell, "orders")
    shell.pass_time(7_200_000 - 31_000)

    assert (early, later) == ([], [b"4"])
    assert found(shell, "orders") == [b"4", b"18"]


def test_a_repeat_of_what_was_handed_back_is_not_refused_for_a_full_disk(shell: Shell) -> None:
    """Law: on a full disk, repeating a stored return succeeds, because nothing new is stored; a new return is refused."""
    ready(shell)
    for key in ("U1", "U2"):
        send(shell, props=properties(UNIQ_KEY=key))
    (_, second) = shell.state.topics.by_name["orders"].queue(0).tail
    assert hand_back(shell, 0) == 0

    shell.core.context.disk_full = True

    assert hand_back(shell, 0) == 0
    assert hand_back(shell, second.physical) == 14


def test_a_broker_that_may_only_be_read_takes_nothing_back() -> None:
    """Law: with brokerPermission 4 a return is refused, as in RocketMQ; a repeat is told that it is stored."""
    shell = ready(Shell().lead())
    for key in ("U1", "U2"):
        send(shell, props=properties(UNIQ_KEY=key))
    (_, second) = shell.state.topics.by_name["orders"].queue(0).tail
    assert hand_back(shell, 0) == 0

    shell.core.context.settings = settings(permission=4)

    assert hand_back(shell, 0) == 0
    assert hand_back(shell, second.physical) == 16
    assert hand_back(shell, second.physical, level=-1) == 16
