"""Batches: several messages in one send, stored together or not at all."""

import pytest

from orderlymq_protocol.message.batch import BatchEntry, encode_batch
from orderlymq_protocol.message.properties import decode_properties
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import (
    STORED_WITH,
    create,
    messages,
    pull,
    send,
    send_ext,
)
from tests.broker.processors.send.test_sends import ORDERED, PLAIN, stored


def batch_body(*entries: tuple[bytes, bytes]) -> bytes:
    return encode_batch([BatchEntry(9, body, props) for body, props in entries])


def test_a_batch_is_stored_as_a_whole_without_gaps(shell: Shell) -> None:
    """One record per message, consecutive offsets, joined ids, WAIT kept."""
    create(shell, PLAIN)
    send(shell, e=1)
    body = batch_body((b"1", b"UNIQ_KEY\x01A"), (b"2", b"UNIQ_KEY\x01B\x02"), (b"3", b""))

    reply = shell.call(320, send_ext("orders", "WAIT\x01false", e=1, m="true"), body)

    assert (reply.code, reply.ext["queueOffset"], reply.ext["queueId"]) == (0, "1", "1")
    found = messages(pull(shell, queue=1, offset=1))
    assert [(each.body, each.queue_offset, each.flag) for each in found] == [
        (b"1", 1, 9),
        (b"2", 2, 9),
        (b"3", 3, 9),
    ]
    assert reply.ext["msgId"] == ",".join(
        f"C000026400002A9F{each.physical_offset:016X}" for each in found
    )
    assert [decode_properties(each.properties) for each in found] == [
        {"UNIQ_KEY": "A", "WAIT": "false", **STORED_WITH},
        {"UNIQ_KEY": "B", "WAIT": "false", **STORED_WITH},
        {"WAIT": "false", **STORED_WITH},
    ]


def test_the_key_of_a_batch_does_not_hide_those_of_its_messages(shell: Shell) -> None:
    """5.x clients give the batch a UNIQ_KEY of its own."""
    create(shell, PLAIN)
    body = batch_body((b"1", b"UNIQ_KEY\x01A"), (b"2", b""))

    shell.call(320, send_ext("orders", "UNIQ_KEY\x01BATCH\x02WAIT\x01true\x02", m="true"), body)

    keys = [decode_properties(each.properties)["UNIQ_KEY"] for each in messages(pull(shell))]
    assert keys == ["A", "BATCH"]


def test_a_repeated_batch_stores_only_what_is_new(shell: Shell) -> None:
    """A program that builds its batches again after a time-out gets each message once."""
    create(shell, ORDERED)
    a, b, c = ((f"{n}".encode(), f"UNIQ_KEY\x01{n}".encode()) for n in "abc")
    ext = send_ext("orders", m="true")

    first = shell.call(320, ext, batch_body(a, b))
    same = shell.call(320, ext, batch_body(a, b))
    overlapping = shell.call(320, ext, batch_body(b, c))

    assert same.ext == first.ext
    assert overlapping.ext["queueOffset"] == "1"
    assert stored(shell) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        batch_body((b"1", b"UNIQ_KEY\x01\xff")),
        batch_body((b"1", b"k\x01" + b"v" * 32_760)),
    ],
)
def test_a_bad_batch_is_refused_as_a_whole(shell: Shell, body: bytes) -> None:
    """13, and not one message of it is stored."""
    create(shell, PLAIN)

    reply = shell.call(320, send_ext("orders", m="true"), body)

    assert (reply.code, shell.state.physical_end) == (13, 0)


def test_a_delayed_batch_is_released_together(shell: Shell) -> None:
    """Delay levels in a batch are served: one append to the schedule queue, one release."""
    create(shell, PLAIN)
    body = batch_body((b"1", b"DELAY\x011"), (b"2", b"DELAY\x011"))

    assert shell.call(320, send_ext("orders", m="true"), body).code == 0

    assert stored(shell) == []
    shell.pass_time(1_200)
    assert stored(shell) == [b"1", b"2"]
