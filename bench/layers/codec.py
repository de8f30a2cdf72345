"""
Measures the cost of one frame: decode and encode of a send with a 1 KiB body, and of its reply.

Run `python bench/layers/codec.py`. It prints microseconds per frame, the best of several rounds, on one core.
"""

import sys
import time
from collections.abc import Callable

from orderlymq_protocol.frame import codec
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import (
    PullMessageHeader,
    SendMessageHeader,
    SendMessageResponseHeader,
    UpdateConsumerOffsetHeader,
)
from orderlymq_protocol.message import properties
from orderlymq_protocol.message.ids import encode_offset_message_id
from orderlymq_protocol.message.record import (
    RecordTemplate,
    decode_record,
    encode_with_positions,
    pack_host,
)
from orderlymq_protocol.message.tags import java_string_hash

# Many short rounds, so that other processes on the machine do not disturb the best one.
ROUNDS = 60
CALLS = 2_048
FRAMES_PER_CHUNK = 64

PROPERTIES = {
    properties.KEYS: "order-4711",
    properties.UNIQ_KEY: "C0000202051E5FFD2B27654AE66E0000",
    properties.WAIT: "true",
    properties.TAGS: "paid",
}
HEADER = SendMessageHeader(
    producer_group="orders-producer",
    topic="orders",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=3,
    sys_flag=0,
    born_timestamp=1_795_190_027_603,
    flag=0,
    properties=properties.encode_properties(PROPERTIES).decode(),
    broker_name="group-0",
)


def measure(name: str, call: Callable[[], object], per_call: int = 1) -> None:
    """Print the best time of one *call*, divided by the number of frames that it handles."""
    calls = CALLS // per_call
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(calls):
            call()
        best = min(best, time.thread_time() - start)
    print(f"{name:<44} {best / calls / per_call * 1e6:7.2f} us")


def main() -> None:
    """Measure and print every row."""
    body = bytes(range(256)) * 4
    send = request(310, HEADER.to_ext_v2(), body)
    send.opaque = 123_456
    frame = codec.encode(send)
    decoder = codec.FrameDecoder()
    answer = SendMessageResponseHeader("7F00000100002A9F0000000000001FF2", 3, 4711)
    reply = send.reply(0, answer.to_ext())
    reply_frame = codec.encode(reply)
    chunk = frame * FRAMES_PER_CHUNK
    pull = PullMessageHeader("billing", "orders", 3, 4711, 32, 3, 4711, 15000, 1_795_190_027_603)
    pull_ext = pull.to_ext()
    commit_ext = UpdateConsumerOffsetHeader("billing", "orders", 3, 4711).to_ext()
    raw = properties.encode_properties(PROPERTIES)
    record = _record(body, raw)

    print(f"Python {sys.version.split()[0]}, frame of {len(frame)} bytes, best of {ROUNDS} rounds")
    measure("decode a 310 frame, alone", lambda: decoder.receive_data(frame))
    measure("decode a 310 frame, 64 in a chunk", lambda: decoder.receive_data(chunk), 64)
    measure("decode a reply frame", lambda: decoder.receive_data(reply_frame))
    measure("encode a 310 frame", lambda: codec.encode(send))
    measure("build reply and its ext", lambda: send.reply(0, answer.to_ext()))
    measure("encode a reply", lambda: codec.encode(reply))
    measure("encode a reply as parts", lambda: codec.encode_parts(reply))
    measure("SendMessageHeader.from_ext_v2", lambda: SendMessageHeader.from_ext_v2(send.ext))
    measure("SendMessageHeader.to_ext_v2", HEADER.to_ext_v2)
    measure("PullMessageHeader.from_ext", lambda: PullMessageHeader.from_ext(pull_ext))
    measure(
        "UpdateConsumerOffsetHeader.from_ext",
        lambda: UpdateConsumerOffsetHeader.from_ext(commit_ext),
    )
    measure("record: template and positions", lambda: _record(body, raw))
    template = _template(body, raw)
    measure("record: positions alone", lambda: encode_with_positions(template, 1, 2))
    measure("record: decode", lambda: decode_record(record))
    measure("properties: decode", lambda: properties.decode_properties(raw))
    measure("properties: find one", lambda: properties.find_property(raw, properties.UNIQ_KEY))
    measure("properties: append one", lambda: properties.append_property(raw, "CLUSTER", "c"))
    measure("offset message id", lambda: encode_offset_message_id("127.0.0.1", 10911, 4711))
    measure("Java hash of a 10-character key", lambda: java_string_hash("order-4711"))
    _check(decoder.receive_data(frame), send)


def _record(body: bytes, raw: bytes) -> bytes:
    return encode_with_positions(_template(body, raw), 4711, 123_456_789)


def _template(body: bytes, raw: bytes) -> RecordTemplate:
    host = pack_host("127.0.0.1", 10911)
    return RecordTemplate(
        topic=b"orders",
        queue_id=3,
        body=body,
        properties=raw,
        flag=0,
        sys_flag=0,
        born_timestamp=1_795_190_027_603,
        born_host=host,
        store_timestamp=1_795_190_027_604,
        store_host=host,
    )


def _check(commands: list[RemotingCommand], expected: RemotingCommand) -> None:
    assert commands == [expected], "what was measured is not what was meant"


if __name__ == "__main__":
    main()
