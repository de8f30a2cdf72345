"""How a consumer reads messages from the answer of a pull."""

import zlib
from dataclasses import replace

import pytest

from orderlymq.connection.wire import read_or_flag
from orderlymq.consumer.core.flowcontrol import MIB, FlowLimits, reason_to_wait
from orderlymq.consumer.core.processqueue import ProcessQueue
from orderlymq.consumer.group.requests import (
    PullResult,
    PullStatus,
    copy_to_retry,
    read_offset,
    read_pull,
)
from orderlymq.errors import BrokerError
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import request
from orderlymq_protocol.header.catalogue import PullMessageResponseHeader, SendMessageHeader
from orderlymq_protocol.message import sysflag
from orderlymq_protocol.message.compression import CompressionType, compress, decompress
from orderlymq_protocol.message.properties import decode_properties
from orderlymq_protocol.message.record import PROPERTIES_BYTES_MAX, StoredMessage, body_crc
from orderlymq_protocol.message.sysflag import COMPRESSED
from tests.client.messages import QUEUE, messages
from tests.protocol.records import encode_record

BIG = zlib.compress(bytes(40 * MIB), 1)
SMALL = zlib.compress(b"x", 1)


def read(*bodies: bytes) -> PullResult:
    """Read an answer with these compressed bodies, from offset 0 on."""
    header = PullMessageResponseHeader(0, len(bodies), 0, len(bodies))
    records = b"".join(encode_record(stored(offset, body)) for offset, body in enumerate(bodies))
    answer = request(RequestCode.PULL_MESSAGE).reply(0, header.to_ext(), records)
    return read_pull(answer, QUEUE, "G", "127.0.0.1:10911")


def stored(offset: int, body: bytes) -> StoredMessage:
    return StoredMessage(
        topic=QUEUE.topic,
        queue_id=QUEUE.queue_id,
        flag=0,
        queue_offset=offset,
        physical_offset=100 * offset,
        sys_flag=COMPRESSED,
        born_timestamp=0,
        born_host=("127.0.0.1", 1),
        store_timestamp=0,
        store_host=("127.0.0.1", 10911),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        properties=b"a\x01b\x02OMQ_BODY_CRC\x0100000001,00000002",
        body_crc=0,
    )


def test_the_checksums_of_a_body_stay_with_the_body_as_it_was_sent() -> None:
    """Law: a decompressed body loses its body checksums; a body that cannot be decompressed keeps everything."""
    inflated, broken = read(SMALL, b"broken").messages

    assert (inflated.body, inflated.properties["a"]) == (b"x", "b")
    assert "OMQ_BODY_CRC" not in inflated.properties
    assert (broken.body, broken.properties["OMQ_BODY_CRC"]) == (b"broken", "00000001,00000002")


@pytest.mark.parametrize("offset", ["-5", "x", None])
def test_a_pull_whose_answer_names_no_next_offset_has_failed(offset: str | None) -> None:
    """Law: a pull answered without a next offset has failed and is tried again; else its queue would stand still."""
    fields = PullMessageResponseHeader(0, 0, 0, 9).to_ext() | {"nextBeginOffset": offset}
    ext = {name: value for name, value in fields.items() if value is not None}
    answer = request(RequestCode.PULL_MESSAGE).reply(PullStatus.NO_MATCHED_MSG.value, ext)

    with pytest.raises(BrokerError, match="nextBeginOffset"):
        read_pull(answer, QUEUE, "G", "127.0.0.1:10911")


def test_an_offset_that_cannot_be_read_is_an_error_of_its_broker() -> None:
    """Law: an unreadable offset in an answer is a BrokerError of that call only."""
    with pytest.raises(BrokerError, match="offset"):
        read_offset(request(RequestCode.GET_MAX_OFFSET).reply(0, {"offset": "x"}))


def letter(message: ReceivedMessage, *, times: int = 3) -> tuple[SendMessageHeader, bytes]:
    """Return header and body of the dead letter after three tries."""
    copy = copy_to_retry(
        message, "G", times=times, maximum=3, delay_level=0, born_ms=1, behind="0" * 32
    )
    return SendMessageHeader.from_request(copy.code, copy.ext), copy.body


@pytest.mark.parametrize("kind", CompressionType)
def test_a_copy_of_what_came_deflated_is_deflated(kind: CompressionType) -> None:
    """Law: the copy of a compressed message is compressed again, so that a stored message can always become a dead letter."""
    text = b"order " * 1_000_000
    record = replace(
        stored(0, compress(text, kind)), sys_flag=sysflag.with_compression(0, kind), properties=b""
    )
    header, body = letter(read_or_flag(record, QUEUE))

    assert decompress(body, header.sys_flag, len(text)) == text
    assert len(body) < 100_000
    # The broker also recognises a letter that another member sends as it was stored.
    said = decode_properties(header.properties.encode())
    assert said["OMQ_BODY_CRC"] == f"{body_crc(text):08x},{body_crc(body):08x}"


@pytest.mark.parametrize("free", [0, 20, 60, 110, 500])
def test_a_dead_letter_goes_without_what_its_sender_has_left_no_room_for(free: int) -> None:
    """Law: a dead letter omits added properties that do not fit; one with 32.7 KB of properties was once refused for ever.

    A retry omits none.
    """
    message = messages(0)[0]
    message.properties = {"a": "x" * (PROPERTIES_BYTES_MAX - 3 - free)}
    header, _ = letter(message)
    retry, _ = letter(message, times=2)

    said = decode_properties(header.properties.encode())
    assert len(header.properties) <= PROPERTIES_BYTES_MAX
    assert said["a"] == message.properties["a"]
    assert ("RETRY_TOPIC" in said) == (free > 19)
    assert decode_properties(retry.properties.encode())["RETRY_TOPIC"] == QUEUE.topic


def test_what_a_consumer_caches_counts_as_large_as_it_is_in_memory() -> None:
    """Law: the cache counts decompressed bodies, because compressed ones may be a thousand times smaller."""
    cache = ProcessQueue()

    cache.put(read(BIG).messages)

    assert reason_to_wait(cache, FlowLimits(queue_size_mib=39), ordered=True) is not None
    assert reason_to_wait(cache, FlowLimits(queue_size_mib=40), ordered=True) is None


def test_a_pull_inflates_no_more_than_fits_and_the_next_begins_behind_that() -> None:
    """Law: a pull decompresses no more than fits and the next one begins behind it; 32 small records could become 2 GiB."""
    cut = read(BIG, BIG, SMALL, BIG)
    whole = read(BIG, SMALL, SMALL)

    assert ([each.queue_offset for each in cut.messages], cut.next_offset) == ([0, 1], 2)
    assert ([each.queue_offset for each in whole.messages], whole.next_offset) == ([0, 1, 2], 3)
