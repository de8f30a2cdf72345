"""How stored records are built, and the units of delay levels."""

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.core.messagedraft import MessageDraft, Properties
from orderlymq_broker.processors.schedule.delays import parse_delay_levels
from orderlymq_broker.state.records import Append, TopicSet, decode_records
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_broker.store.entry import split_entry
from orderlymq_protocol.message.record import RecordTemplate, encode_with_positions, pack_host
from tests.broker.processors.driver import START_MS, Shell


@hypothesis_settings(max_examples=80, deadline=None)
@given(
    body=st.binary(max_size=200),
    properties=st.text(alphabet="ab\x01\x02é", max_size=30),
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=st.integers(0, 0x7FF),
    born=st.integers(0, 2**62),
    host=st.sampled_from(["192.0.2.7", "2001:db8::7"]),
    times=st.integers(0, 100),
    name=st.sampled_from(["t", "T" * 127]),
)
def test_the_fast_layout_is_the_plain_one(
    body: bytes,
    properties: str,
    flag: int,
    sys_flag: int,
    born: int,
    host: str,
    times: int,
    name: str,
) -> None:
    """Law: the fast layout of a record equals the simple one byte for byte, in every field."""
    context = Shell().core.context
    topic = Topic(3, TopicSet(name, 4, 4))
    born_host = pack_host(host, 4711)
    draft = MessageDraft(
        topic, 2, body, Properties(properties), flag, sys_flag, born, born_host, times
    )

    proposal = Propose([draft])
    assert context.entries.admit(proposal) is None
    parts = split_entry(context.entries.build([proposal], START_MS).data)

    template = RecordTemplate(
        topic=name.encode(),
        queue_id=2,
        body=body,
        properties=properties.encode(),
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born,
        born_host=born_host,
        store_timestamp=START_MS,
        store_host=pack_host("192.0.2.100", 10911),
        reconsume_times=times,
    )
    assert parts.blob == encode_with_positions(template, 0, 0)
    (record,) = decode_records(parts.meta)
    assert record == Append(3, 2, 0, 0, len(parts.blob), 0, START_MS, reply_queue=2)


def test_offsets_are_dense_within_queues_and_over_the_log() -> None:
    """Law: offsets have no gap within a queue and over the log, counting entries not applied yet;
    an entry that was not proposed gave none.
    """
    context = Shell().core.context
    entries = context.entries
    topic = Topic(3, TopicSet("t", 2, 2))
    places = []
    for queue in (0, 1, 0):
        draft = MessageDraft(topic, queue, b"x", Properties(""), 0, 0, 1, pack_host("192.0.2.7", 1))
        proposal = Propose([draft])
        assert entries.admit(proposal) is None
        entries.build([proposal], START_MS)
        built = entries.build([proposal], START_MS)
        entries.proposed(built)
        (record,) = decode_records(split_entry(built.data).meta)
        assert isinstance(record, Append)
        places.append((record.queue_offset, record.physical, record.size))

    size = places[0][2]
    assert places == [(0, 0, size), (0, size, size), (1, 2 * size, size)]


def test_delay_levels_are_read_with_their_units() -> None:
    """Law: delay levels have the units s, m, h and d; anything else is refused with what to write."""
    assert parse_delay_levels("1s 5m 2h 1d") == (1_000, 300_000, 7_200_000, 86_400_000)
    for text in ("5", "1w", "xs", "-1s"):
        with pytest.raises(ValueError, match="write a number and s, m, h or d"):
            parse_delay_levels(text)
