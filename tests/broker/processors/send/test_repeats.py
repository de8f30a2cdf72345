"""When a send is a repeat, and when it is another send of one ``Message`` object, which keeps its key in Java and Go."""

import pytest

from orderlymq import Message
from orderlymq.producer.requests import SendOptions, batch_request, send_request
from orderlymq.settings import ProducerSettings
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.batch import BatchEntry, encode_batch
from orderlymq_protocol.message.record import body_crc
from tests.broker.processors.driver import Shell
from tests.broker.processors.halves import GROUP
from tests.broker.processors.requests import bodies, create, properties, pull, send, send_ext
from tests.broker.processors.schedule.test_retries import hand_back, reset

KEYED = {"__SHARDINGKEY": "customer-7"}
FIRST = {"UNIQ_KEY": "U1", "TAGS": "open", "KEYS": "o-1", "WAIT": "true"}

OTHERS = [
    {"TAGS": "close"},
    {"KEYS": "o-2"},
    {"DELAY": "1"},
    {"TIMER_DELAY_MS": "1000"},
    {"CORRELATION_ID": "c-2"},
    {"colour": "red"},
    KEYED,
]
# Properties that client libraries and tracers write again at each try, or that a batch omits.
SAME = [
    {"WAIT": "false"},
    {"traceparent": "00-1-2-01", "tracestate": "a=1", "baggage": "a=1"},
    {"b3": "1-2", "X-B3-TraceId": "1", "x-b3-spanid": "2"},
    {"uber-trace-id": "1:2:0:1", "uberctx-a": "1"},
    {"sw8": "1-2", "sw8-correlation": "3"},
    {"RECONSUME_TIME": "1", "MAX_RECONSUME_TIMES": "16"},
    {"INSTANCE_ID": "shop"},
    {"OMQ_HELD_BEHIND": "U0"},
]


@pytest.fixture
def ordered(shell: Shell) -> Shell:
    create(shell, TopicSet("orders", 4, 4, order=True), GroupSet("billing"))
    return shell


def stored(shell: Shell) -> int:
    """Return the number of messages in all queues after every delay."""
    shell.pass_time(3_000, step=500)
    replies = [pull(shell, queue=queue) for queue in range(4)]
    return sum(len(bodies(reply)) for reply in replies if reply.body)


def place(shell: Shell, how: str, said: dict[str, str], queue: int) -> tuple[str, str]:
    """Send in one of the ways; return the answered place."""
    text = properties(**said)
    if how == "half":
        half = {"TRAN_MSG": "true", "PGROUP": GROUP, **said}
        reply = send(shell, props=properties(**half), a=GROUP, e=queue, f=4)
    elif how == "batch":
        body = encode_batch([BatchEntry(0, b"paid", text.encode())])
        reply = shell.call(320, send_ext("orders", m="true", e=queue), body)
    else:
        reply = send(shell, props=text, e=queue)
    assert reply.code == 0, reply.remark
    return reply.ext["msgId"], reply.ext["queueOffset"]


@pytest.mark.parametrize("how", ["single", "batch"])
@pytest.mark.parametrize("more", OTHERS)
def test_one_object_with_other_properties_is_another_message(
    ordered: Shell, how: str, more: dict[str, str]
) -> None:
    """Law: a send with other properties is another message, even with the same key; what is acknowledged is stored."""
    first, other = (place(ordered, how, said, 0) for said in (FIRST, FIRST | more))

    assert first != other
    assert stored(ordered) == 2


@pytest.mark.parametrize("how", ["single", "batch"])
def test_one_object_to_each_queue_is_a_message_in_each(ordered: Shell, how: str) -> None:
    """Law: one object sent to each queue is a message in each."""
    assert len({place(ordered, how, FIRST, queue) for queue in range(4)}) == 4
    assert stored(ordered) == 4


@pytest.mark.parametrize("more", [{}, *SAME])
def test_a_try_again_is_a_repeat_whatever_its_library_writes_anew(
    ordered: Shell, more: dict[str, str]
) -> None:
    """Law: a repeat is known alone or in a batch, in another order of properties and with another trace."""
    first = place(ordered, "single", FIRST, 1)

    for how in ("single", "batch"):
        again = dict(reversed((FIRST | more).items()))
        assert place(ordered, how, again, 1) == first

    assert stored(ordered) == 1


@pytest.mark.parametrize("how", ["single", "batch"])
def test_a_sharding_key_is_one_intention_in_every_queue(ordered: Shell, how: str) -> None:
    """Law: a send with a sharding key is known in every queue, because its queue may change with the topic's number of
    queues.
    """
    assert len({place(ordered, how, FIRST | KEYED, queue) for queue in range(4)}) == 1
    assert stored(ordered) == 1


@pytest.mark.parametrize("how", ["single", "batch"])
def test_a_repeat_that_leaves_the_queue_to_the_broker_is_known(ordered: Shell, how: str) -> None:
    """Law: a repeat that leaves the queue to the broker is known, whichever queue the first one got."""
    assert len({place(ordered, how, FIRST, -1) for _ in range(3)}) == 1
    assert stored(ordered) == 1


def test_halves_are_distinguished_by_what_they_say(ordered: Shell) -> None:
    """Law: half messages are compared by content, not by queue, which each try chooses again;
    else a second one would be committed.
    """
    half = {"UNIQ_KEY": "U1", "TAGS": "open"}
    sends = [(half, 0), (half, 1), (half | {"TAGS": "close"}, 0), (half | {"sw8": "1"}, 0)]

    found = [place(ordered, "half", said, queue) for said, queue in sends]

    assert found[0] == found[1] == found[3]
    assert found[2] != found[0]


def test_retries_that_clients_send_are_distinguished_by_what_their_message_says(
    ordered: Shell,
) -> None:
    """Law: clients' retries are compared by the sender's properties, not by queue, delay or what a library adds."""
    tries = [
        ({"TAGS": "open", "DELAY": "4", "RECONSUME_TIME": "1"}, 0),
        ({"TAGS": "open", "DELAY": "5", "MIN_OFFSET": "1", "CONSUME_START_TIME": "9"}, 0),
        ({"TAGS": "close", "DELAY": "4"}, 0),
    ]

    sent = [
        send(
            ordered,
            "%RETRY%billing",
            props=properties(UNIQ_KEY="U1", RETRY_TOPIC="orders", **said),
            e=queue,
            j=1,
            l=16,
        ).ext["msgId"]
        for said, queue in tries
    ]

    assert (sent[0] == sent[1], sent[0] == sent[2]) == (True, False)


def test_a_message_whose_key_holds_a_separator_fails_once_more_after_a_reset(
    ordered: Shell,
) -> None:
    """Law: a key with a separator is not read as an origin, so that after a reset its message can be returned again."""
    send(ordered, props="UNIQ_KEY\x01a\x01b")

    for _ in range(2):
        assert hand_back(ordered, 0, level=1) == 0
        create(ordered, reset("orders", 0))
    ordered.pass_time(2_000, step=500)

    assert bodies(pull(ordered, topic="%RETRY%billing")) == [b"paid"] * 2


def options(level: int) -> SendOptions:
    return SendOptions(
        "producers", ProducerSettings(compress_message_body_over_bytes=100, compress_level=level)
    )


def test_a_message_of_the_sdk_is_one_in_each_form_of_its_body(ordered: Shell) -> None:
    """Law: a message of the SDK is known in each form of its body (compressed, compressed more, plain in a batch);
    another body is another message.
    """
    queue = MessageQueue("orders", "broker-a", 1)
    message = Message(topic="orders", body=b"paid " * 100, unique_key="U1")
    other = Message(topic="orders", body=b"open " * 100, unique_key="U1")
    requests = [
        *(send_request(message, queue, options(level), level) for level in (1, 9)),
        batch_request([message], queue, options(1), 3),
        send_request(other, queue, options(1), 4),
        batch_request([other], queue, options(1), 5),
    ]

    found = [ordered.call(each.code, each.ext, each.body).ext["queueOffset"] for each in requests]

    assert found == ["0", "0", "0", "1", "1"]
    assert len({len(each.body) for each in requests[:3]}) == 3, "the forms differ"


def test_a_half_of_the_sdk_is_one_however_its_body_is_compressed(ordered: Shell) -> None:
    """Law: this holds for half messages too."""
    queue = MessageQueue("orders", "broker-a", 1)
    marks = {"TRAN_MSG": "true", "PGROUP": GROUP}
    bodies_of = (b"paid " * 100, b"paid " * 100, b"open " * 100)
    halves = [
        send_request(
            Message(topic="orders", body=body, unique_key="U1", marks=marks), queue, form, 1
        )
        for body, form in zip(bodies_of, (options(1), options(9), options(1)), strict=True)
    ]

    found = [ordered.call(each.code, each.ext, each.body).ext["queueOffset"] for each in halves]

    assert found == ["0", "0", "1"]


@pytest.mark.parametrize(
    "checksums", [f"{body_crc(b'paid'):08x},{body_crc(b'open'):08x}", "paid", "0,0", "0" * 17, ""]
)
def test_checksums_of_another_body_do_not_count(ordered: Shell, checksums: str) -> None:
    """Law: a body checksum copied to another body does not count, so that the second message is stored."""
    said = {"UNIQ_KEY": "U1"} | ({"OMQ_BODY_CRC": checksums} if checksums else {})

    first = send(ordered, body=b"paid", props=properties(UNIQ_KEY="U1"), e=1)
    second = send(ordered, body=b"late", props=properties(**said), e=1)

    assert (first.ext["queueOffset"], second.ext["queueOffset"]) == ("0", "1")
