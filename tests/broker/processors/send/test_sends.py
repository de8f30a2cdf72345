"""Sends: which are stored, which are refused, and how a repeat is answered."""

import tracemalloc
from cProfile import Profile
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orderlymq_broker.core.effects import Caller, Propose
from orderlymq_broker.core.messagedraft import Properties
from orderlymq_broker.processors.fetch.read import read_message
from orderlymq_broker.state.records import Append, GroupSet, TopicDeleted, TopicSet
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.batch import BatchEntry, encode_batch
from orderlymq_protocol.message.properties import decode_properties
from orderlymq_protocol.message.record import decode_record
from orderlymq_protocol.message.tags import tags_code
from tests.broker.processors.driver import ALICE, BOB, START_MS, Shell, settings
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

ORDERED = TopicSet("orders", 4, 4, order=True)
PLAIN = TopicSet("orders", 4, 4)


def stored(shell: Shell, topic: str = "orders", queue: int = 0) -> list[bytes]:
    """Return the bodies of a queue, read as a pull reads them."""
    reply = pull(shell, topic=topic, queue=queue)
    return bodies(reply) if reply.body else []


def test_a_send_is_answered_with_where_the_message_is(shell: Shell) -> None:
    """Law: after the commit, a send is answered with offset id, queue, offset, region and trace switch."""
    create(shell, PLAIN)

    opaque = shell.submit(310, send_ext("orders", e=2), b"paid")
    assert shell.reply_to(opaque) is None
    shell.settle()

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert (reply.code, reply.ext) == (
        0,
        {
            "msgId": "C000026400002A9F0000000000000000",
            "queueId": "2",
            "queueOffset": "0",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        },
    )


def test_the_stored_record_is_complete(shell: Shell) -> None:
    """Law: each field of the stored record comes from the request, the broker or the clock."""
    create(shell, PLAIN)
    text = properties(KEYS="a b", TAGS="TagA", UNIQ_KEY="U1", WAIT="true", colour="red")

    send(shell, body=b"one", props=text, e=1, h=7, f=0x301)
    send(shell, body=b"two", props=text, e=1)

    (first, second) = messages(pull(shell, queue=1))
    assert (first.topic, first.queue_id, first.queue_offset, first.physical_offset) == (
        "orders",
        1,
        0,
        0,
    )
    assert (first.flag, first.sys_flag, first.body) == (7, 0x301, b"one")
    assert (first.born_timestamp, first.born_host) == (1699999999000, (ALICE.host, ALICE.port))
    assert (first.store_timestamp, first.store_host) == (START_MS, ("192.0.2.100", 10911))
    assert decode_properties(first.properties) == {
        "KEYS": "a b",
        "TAGS": "TagA",
        "UNIQ_KEY": "U1",
        "colour": "red",
        **STORED_WITH,
    }
    assert (second.queue_offset, second.body) == (1, b"two")
    record = next(each for each in shell.proposed if isinstance(each, Append))
    assert (record.unique_key, record.keys, record.tags_code) == ("U1", "a b", tags_code("TagA"))


def test_each_message_reports_its_region_once(shell: Shell) -> None:
    """Law: each stored message has MSG_REGION once, because RocketMQ 5's clients trace none without it."""
    create(shell, PLAIN)

    send(shell, props=properties(UNIQ_KEY="U1"), e=0)
    send(shell, props=properties(MSG_REGION="DefaultRegion", TRACE_ON="true"), e=0)

    (first, again) = messages(pull(shell, queue=0))
    assert decode_properties(first.properties) == {"UNIQ_KEY": "U1", **STORED_WITH}
    assert again.properties.count(b"MSG_REGION") == 1


def test_the_long_form_of_a_send_is_the_same_send(shell: Shell) -> None:
    """Law: the long form (10) stores the same as 310."""
    create(shell, PLAIN)
    ext = {
        "producerGroup": "p",
        "topic": "orders",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "3",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "flag": "0",
        "properties": "UNIQ_KEY\x01U\x02",
    }

    reply = shell.call(10, ext, b"go")

    assert (reply.code, reply.ext["queueId"]) == (0, "3")
    assert stored(shell, queue=3) == [b"go"]


def test_a_oneway_send_is_stored_and_not_answered(shell: Shell) -> None:
    """Law: a one-way send is stored and gets no reply."""
    create(shell, PLAIN)

    assert shell.ask(310, send_ext("orders"), b"quiet", oneway=True) is None
    assert shell.ask(310, send_ext("orders", e=99), b"bad", oneway=True) is None

    assert stored(shell) == [b"quiet"]
    assert not [send for send in shell.sent if send.command.code != 0 and send.command.is_response]


def test_an_unknown_topic_is_created_from_the_default_topic(shell: Shell) -> None:
    """Law: an unknown topic is created with the smaller number of queues (asked or default) and the default's permission."""
    reply = send(shell, "fresh", d=4, e=3)

    assert reply.code == 0
    topic = shell.state.topics.by_name["fresh"]
    assert (topic.config.read_queues, topic.config.write_queues, topic.config.perm) == (4, 4, 6)
    assert send(shell, "wide", d=100).code == 0
    assert shell.state.topics.by_name["wide"].config.write_queues == 8


@pytest.mark.parametrize(
    ("default", "auto"), [("TBW102", False), ("nothing", True), ("plain", True)]
)
def test_a_topic_that_may_not_be_inherited_is_not_created(default: str, auto: bool) -> None:
    """Law: without an inheritable default topic the answer is 17, and nothing is stored."""
    shell = Shell(settings(auto_create_topic=auto)).lead()
    create(shell, TopicSet("plain", 1, 1))

    reply = send(shell, "fresh", c=default)

    assert reply.code == 17
    assert "topic[fresh] not exist, apply first please!" in (reply.remark or "")
    assert shell.state.topics.get("fresh") is None


def test_sends_that_wait_for_their_topic_keep_their_order(shell: Shell) -> None:
    """Law: two sends to an unknown topic are stored in their order."""
    shell.submit(310, send_ext("fresh"), b"1")
    shell.submit(310, send_ext("fresh"), b"2")
    shell.settle()

    assert stored(shell, "fresh") == [b"1", b"2"]


@pytest.mark.parametrize(
    ("topic", "letters", "code"),
    [
        ("../etc/passwd", {}, 1),
        ("a" * 128, {}, 1),
        ("", {}, 1),
        ("SCHEDULE_TOPIC_XXXX", {}, 16),
        ("RMQ_SYS_TRANS_HALF_TOPIC", {}, 16),
        ("readonly", {}, 16),
        ("orders", {"e": 4}, 1),
        ("orders", {"e": "x"}, 1),
        ("orders", {"e": 2**31}, 1),
        ("orders", {"g": "soon"}, 1),
        ("orders", {"i": "TIMER_DELIVER_MS\x01soon\x02"}, 13),
        ("rmq_sys_wheel_timer", {}, 16),
        ("orders", {"i": "DELAY\x01soon\x02"}, 13),
        ("orders", {"i": "k\x01" + "v" * 32_767}, 13),
        ("orders", {"i": "k\x01" + "é" * 16_400}, 13),
        ("%RETRY%nobody", {}, 26),
    ],
)
def test_what_cannot_be_stored_is_refused(
    shell: Shell, topic: str, letters: dict[str, Any], code: int
) -> None:
    """Law: each refusal has RocketMQ's code and a remark and leaves no gap in the offsets."""
    create(shell, PLAIN, TopicSet("readonly", 1, 1, perm=4))
    end = shell.state.physical_end

    reply = send(shell, topic, **letters)

    assert reply.code == code
    assert reply.remark
    assert shell.state.physical_end == end
    assert send(shell).ext["queueOffset"] == "0"


def test_a_missing_field_is_named(shell: Shell) -> None:
    """Law: a send without its topic says which field is missing."""
    ext = send_ext("orders")
    del ext["b"]

    reply = shell.call(310, ext, b"x")

    assert reply.code == 1
    assert "<b>" in (reply.remark or "")


def test_a_body_over_the_limit_is_refused(shell: Shell) -> None:
    """Law: a body of exactly the limit is stored; one byte more is refused with 13."""
    create(shell, PLAIN)
    limit = shell.settings.storage.body_size_max

    refused = send(shell, body=bytes(limit + 1))

    assert (refused.code, (refused.remark or "")[:26]) == (13, "the message is illegal, ma")
    assert send(shell, body=bytes(limit)).code == 0


def test_a_negative_queue_id_leaves_the_choice_to_the_broker(shell: Shell) -> None:
    """Law: for a negative queue id the broker chooses the queues in turn."""
    create(shell, PLAIN)

    chosen = [send(shell, e=-1).ext["queueId"] for _ in range(5)]

    assert chosen == ["0", "1", "2", "3", "0"]


def test_a_full_disk_refuses_sends_and_recovers_by_itself(shell: Shell) -> None:
    """Law: above the disk mark sends get 14 and pulls go on; below the lower mark sends are accepted again."""
    create(shell, PLAIN)
    send(shell, body=b"before")

    shell.core.set_environment(0.91, {})
    refused = send(shell)
    readable = stored(shell)
    shell.core.set_environment(0.89, {})
    still = send(shell)
    shell.core.set_environment(0.87, {})

    assert (refused.code, "disk is full" in (refused.remark or "")) == (14, True)
    assert readable == [b"before"]
    assert still.code == 14
    assert send(shell).code == 0


def test_too_much_uncommitted_is_refused_with_flow_control() -> None:
    """Law: uncommitted bytes are limited; beyond the limit the answer is 2 (flow control)."""
    shell = Shell().lead()
    create(shell, PLAIN)
    body = bytes(4 << 20)  # The limit is 64 MiB; 17 of these are more.
    opaques = [shell.submit(310, send_ext("orders"), body) for _ in range(18)]

    reply = shell.reply_to(opaques[-1])

    assert reply is not None
    assert (reply.code, reply.remark) == (
        2,
        "[REJECTREQUEST]system busy, start flow control for a while",
    )
    shell.settle()
    assert shell.core.context.entries.uncommitted == 0
    assert send(shell).code == 0


def test_store_times_of_a_queue_never_fall(shell: Shell) -> None:
    """Law: store times of a queue never fall, even if the clock steps back."""
    create(shell, PLAIN)
    send(shell)
    shell.wall_ms -= 10_000
    send(shell)
    send(shell, e=1)

    assert [each.store_timestamp for each in messages(pull(shell))] == [START_MS, START_MS]
    assert messages(pull(shell, queue=1))[0].store_timestamp == START_MS - 10_000


def test_an_ipv6_producer_is_stored_with_its_address(shell: Shell) -> None:
    """Law: an IPv6 producer is stored with its address, and the flag and size follow."""
    create(shell, PLAIN)

    assert send(shell, caller=Caller(5, "2001:db8::1", 4711)).code == 0

    (message,) = messages(pull(shell))
    assert (message.born_host, message.sys_flag) == (("2001:db8::1", 4711), 0x10)


# -- retry and dead letters ----------------------------------------------------------------------


def test_a_used_up_retry_becomes_a_dead_letter_immediately(shell: Shell) -> None:
    """Law: a retry without tries left (j >= l) becomes a dead letter immediately, without its delay."""
    create(shell, GroupSet("billing"))
    text = properties(UNIQ_KEY="U", DELAY="5", RETRY_TOPIC="orders")

    reply = send(shell, "%RETRY%billing", b"poison", text, j=2, l=2)

    assert (reply.code, reply.ext["queueId"], reply.ext["queueOffset"]) == (0, "0", "0")
    (message,) = messages(pull(shell, topic="%DLQ%billing"))
    assert decode_properties(message.properties) == {
        "UNIQ_KEY": "U",
        "RETRY_TOPIC": "orders",
        **STORED_WITH,
    }
    assert (message.reconsume_times, message.body) == (2, b"poison")


def test_a_retry_with_tries_left_waits_its_delay(shell: Shell) -> None:
    """Law: a retry with tries left (j < l) waits in its delay level."""
    create(shell, GroupSet("billing"))

    send(shell, "%RETRY%billing", b"again", properties(UNIQ_KEY="U", DELAY="3"), j=1, l=2)

    assert stored(shell, "%RETRY%billing") == []
    shell.pass_time(10_100)
    assert stored(shell, "%RETRY%billing") == [b"again"]


def test_an_old_client_cannot_set_the_maximum(shell: Shell) -> None:
    """Law: below version 121 the group's maximum counts, not the header's."""
    create(shell, GroupSet("billing", retry_max_times=1))

    send(shell, "%RETRY%billing", b"x", j=1, l=16, version=120)

    assert stored(shell, "%DLQ%billing") == [b"x"]


def test_a_dead_letter_handed_over_twice_is_stored_once(shell: Shell) -> None:
    """Law: a dead letter sent twice is stored once."""
    create(shell, GroupSet("billing"))
    text = properties(UNIQ_KEY="U")

    first = send(shell, "%RETRY%billing", b"poison", text, j=2, l=2)
    second = send(shell, "%RETRY%billing", b"poison", text, j=2, l=2)

    assert first.ext == second.ext
    assert stored(shell, "%DLQ%billing") == [b"poison"]


# -- the duplicate window ------------------------------------------------------------------------


def test_a_repeat_gets_the_first_result_and_stores_nothing(shell: Shell) -> None:
    """Law: in an ordered topic a repeat gets the first send's answer and stores nothing."""
    create(shell, ORDERED)
    first = send(shell, body=b"paid", props="UNIQ_KEY\x01U1", e=1)
    send(shell, body=b"else", props="UNIQ_KEY\x01U2", e=1)

    again = send(shell, body=b"paid", props="UNIQ_KEY\x01U1", e=1, caller=BOB)

    assert again.ext == first.ext
    assert stored(shell, queue=1) == [b"paid", b"else"]


def test_a_repeat_of_a_send_under_way_waits_for_it(shell: Shell) -> None:
    """Law: a repeat of an uncommitted send waits for it, and both get the same answer."""
    create(shell, ORDERED)
    ext = send_ext("orders", "UNIQ_KEY\x01U1")

    first, second = shell.submit(310, ext, b"paid"), shell.submit(310, ext, b"paid", caller=BOB)
    assert len(shell.pending) == 1
    assert (shell.reply_to(first), shell.reply_to(second)) == (None, None)
    shell.settle()

    replies = shell.reply_to(first), shell.reply_to(second)
    assert replies[0] is not None
    assert replies[1] is not None
    assert replies[0].ext == replies[1].ext
    assert stored(shell) == [b"paid"]


@pytest.mark.parametrize("closed", ["full disk", "read-only"])
def test_a_repeat_gets_the_first_result_also_where_nothing_is_stored_any_more(
    shell: Shell, closed: str
) -> None:
    """Law: a stored send's repeat succeeds even where new sends are refused (full disk, read-only): alone, in a batch, as a half message or a dead letter."""
    plain = TopicSet("plain", 1, 1)
    create(shell, ORDERED, plain, GroupSet("billing"))

    def answers(key: str) -> list[RemotingCommand]:
        text = properties(UNIQ_KEY=key)
        half = properties(UNIQ_KEY=key, TRAN_MSG="true", PGROUP="producers")
        batch = encode_batch([BatchEntry(0, b"x", f"UNIQ_KEY\x01{key}B".encode())])
        return [
            send(shell, props=text),
            send(shell, props=half, f=4),
            send(shell, "plain", props=half, f=4),
            send(shell, "%RETRY%billing", b"poison", text, j=2, l=2),
            shell.call(320, send_ext("orders", m="true"), batch),
        ]

    firsts = answers("U1")
    assert [first.code for first in firsts] == [0] * 5
    if closed == "full disk":
        shell.core.set_environment(0.91, {})
    else:
        create(
            shell,
            msgspec.structs.replace(ORDERED, perm=4),
            msgspec.structs.replace(plain, perm=4),
            TopicSet("%RETRY%billing", 1, 1, perm=4),
        )

    assert [again.ext for again in answers("U1")] == [first.ext for first in firsts]
    assert {other.code for other in answers("U2")} == {14 if closed == "full disk" else 16}


@pytest.mark.parametrize("batch", [False, True])
def test_repeats_that_wait_keep_no_body(shell: Shell, batch: bool) -> None:
    """Law: repeats that wait keep no body, because a client chooses how many there are."""
    create(shell, ORDERED)
    body = b"x" * 100_000
    if batch:
        body = encode_batch([BatchEntry(0, body, b"UNIQ_KEY\x01U1")])
        code, ext = 320, send_ext("orders", m="true")
    else:
        code, ext = 310, send_ext("orders", "UNIQ_KEY\x01U1")
    shell.submit(code, ext, body)
    tracemalloc.start()
    opaques = [shell.submit(code, ext, bytes(bytearray(body))) for _ in range(50)]
    shell.go_on()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert all(shell.reply_to(opaque) is None for opaque in opaques)
    assert held < 10 * len(body)
    shell.settle()
    assert {(reply := shell.reply_to(opaque)) and reply.code for opaque in opaques} == {0}


def test_another_body_under_the_same_key_is_another_message(shell: Shell) -> None:
    """Law: the same key with another body is another message, because Java gives an object its key once."""
    create(shell, ORDERED)

    for body in (b"1", b"2", b"3"):
        send(shell, body=body, props="UNIQ_KEY\x01U1")

    assert stored(shell) == [b"1", b"2", b"3"]


def test_a_plain_topic_keeps_every_copy(shell: Shell) -> None:
    """Law: a plain topic keeps every copy, unless its attribute asks for the window of known sends."""
    create(shell, PLAIN, TopicSet("asked", 1, 1, attributes={"duplicate.window": "true"}))

    for _ in range(2):
        send(shell, props="UNIQ_KEY\x01U1")
        send(shell, "asked", props="UNIQ_KEY\x01U1")

    assert stored(shell) == [b"paid", b"paid"]
    assert stored(shell, "asked") == [b"paid"]


def test_the_window_survives_a_restart_and_moves_with_time() -> None:
    """Law: a new leader knows its predecessor's sends until they leave the window."""
    shell = Shell().lead()
    create(shell, ORDERED)
    first = send(shell, props="UNIQ_KEY\x01U1")

    successor = shell.restart().lead()
    assert send(successor, props="UNIQ_KEY\x01U1").ext == first.ext

    successor.wall_ms += successor.settings.storage.dedup_window_ms + 1
    successor.pass_time(2_000)
    assert len(successor.state.dedup) == 0
    assert send(successor, props="UNIQ_KEY\x01U1").ext["queueOffset"] == "1"


def test_a_lost_send_is_refused_for_certain_with_its_repeats(shell: Shell) -> None:
    """Law: a lost send and its repeats are refused with 14, and the next send gets the offset."""
    create(shell, ORDERED)
    ext = send_ext("orders", "UNIQ_KEY\x01U1")
    opaques = [shell.submit(310, ext, b"paid"), shell.submit(310, ext, b"paid")]

    shell.lose_proposals()
    shell.settle()

    replies = [shell.reply_to(opaque) for opaque in opaques]
    assert [reply.code for reply in replies if reply is not None] == [14, 14]
    shell.lead()
    assert send(shell, props="UNIQ_KEY\x01U1").ext["queueOffset"] == "0"


def test_a_repeat_has_the_fate_of_the_first(shell: Shell) -> None:
    """Law: a repeat has the outcome of the first send; nobody is refused before that is certain."""
    create(shell, ORDERED)
    ext = send_ext("orders", "UNIQ_KEY\x01U1")
    opaques = [shell.submit(310, ext, b"paid"), shell.submit(310, ext, b"paid")]

    shell.core.proposals_lost()
    assert [shell.reply_to(opaque) for opaque in opaques] == [None, None]
    shell.settle()

    replies = [shell.reply_to(opaque) for opaque in opaques]
    assert [reply.code for reply in replies if reply is not None] == [0, 0]
    assert stored(shell) == [b"paid"]


def test_a_message_whose_topic_is_deleted_on_the_way_is_refused(shell: Shell) -> None:
    """Law: a message whose topic is deleted meanwhile is refused with 17 and is in no queue."""
    create(shell, ORDERED)
    shell.run([Propose([TopicDeleted("orders")])])
    opaque = shell.submit(310, send_ext("orders", "UNIQ_KEY\x01U1"), b"late")
    shell.settle()

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert reply.code == 17
    create(shell, ORDERED)
    assert stored(shell) == []


@pytest.mark.parametrize("level", ["18", "19", "100", "2147483647"])
def test_a_level_above_the_highest_is_stored_as_the_highest(shell: Shell, level: str) -> None:
    """Law: a delay level above the highest is stored as the highest, as in RocketMQ."""
    create(shell, PLAIN)
    before = shell.state.physical_end

    assert shell.call(310, send_ext("orders", f"a\x011\x02DELAY\x01{level}"), b"x").code == 0

    stored_record = decode_record(read_message(shell.store, before) or b"")
    kept = decode_properties(stored_record.properties)
    assert (stored_record.queue_id, kept["DELAY"], kept["a"]) == (17, "18", "1")


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["submit", "turn", "lose"]), st.integers(0, 3), st.integers(0, 2)
        ),
        max_size=30,
    )
)
def test_whatever_happens_one_identity_has_one_copy_and_acknowledged_sends_are_kept(
    steps: list[tuple[str, int, int]],
) -> None:
    """Law: over repeats, group commits and lost leaderships, each identity has one copy, at the answered offset."""
    shell = Shell().lead()
    create(shell, ORDERED)
    told: dict[str, set[str]] = {}
    sent: dict[int, str] = {}
    for kind, key, queue in steps:
        if kind == "submit":
            name = f"K{key}q{queue}"
            opaque = shell.submit(310, send_ext("orders", f"UNIQ_KEY\x01{name}", e=queue), b"x")
            sent[opaque] = name
        elif kind == "turn":
            if shell.pending:
                shell.turn()
        else:
            shell.lose_proposals()
            shell.follow()
            shell.lead()
    shell.settle()

    for opaque, name in sent.items():
        reply = shell.reply_to(opaque)
        assert reply is not None
        if reply.code == 0:
            told.setdefault(name, set()).add(reply.ext["msgId"])
    assert all(len(ids) == 1 for ids in told.values())
    kept = [
        decode_record(bytes(entry.message))
        for queue in shell.state.topics.by_name["orders"].queues.values()
        for entry in queue.tail
    ]
    keys = [decode_properties(message.properties)["UNIQ_KEY"] for message in kept]
    assert sorted(keys) == sorted(set(keys))
    assert set(told) == set(keys)
    shell.restart()


@pytest.mark.interpreted
@pytest.mark.parametrize("code", [310, 320, 325])
def test_properties_that_no_message_may_have_are_refused_unread(shell: Shell, code: int) -> None:
    """Law: too long properties are refused before they are read, which would take 50 ms for a megabyte."""
    create(shell, TopicSet("orders", 1, 1))
    text = properties(**{f"name-{number}": "v" for number in range(8_000)})
    body = encode_batch([BatchEntry(0, b"x", b"")]) if code == 320 else b"x"
    profile = Profile()

    reply = profile.runcall(shell.call, code, send_ext("orders", text, e=0), body)

    assert reply.code == 13
    read = Properties.__init__.__code__
    assert all(entry.code is not read for entry in profile.getstats())
