"""Typed headers: headers of real clients are read, and written so that those clients can read them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol import integers
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.codec import FrameDecoder
from orderlymq_protocol.header import catalogue
from orderlymq_protocol.header.catalogue import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    ConsumerSendMsgBackHeader,
    CreateTopicHeader,
    GetConsumeStatsInBrokerHeader,
    Header,
    HeaderError,
    PullMessageHeader,
    PullMessageResponseHeader,
    QueryMessageHeader,
    ResetOffsetHeader,
    SendMessageHeader,
    SendMessageResponseHeader,
    UpdateConsumerOffsetHeader,
)
from tests.protocol import golden

# Fields that are sent in ext in addition to the header: broker names, namespaces, signatures, trace switches.
BESIDES = {"bname", "ReqT", "lo", "AccessKey", "Signature", "MSG_REGION", "TRACE_ON"}
REQUIRED_CODES = {
    *(10, 310, 320, 324, 325, 11, 361, 12, 14, 15, 17, 29, 30, 31, 32, 33, 35, 36, 37, 38, 39, 40),
    *(100, 101, 102, 103, 104, 105, 202, 203, 204, 205, 207, 208, 215, 216, 219, 220, 221, 222),
    *(223, 224, 300, 303, 307, 309, 314, 315, 317, 321, 322, 323, 326, 327, 351, 352),
}
GOOD = {
    **{name: name for name in "abc"},
    **dict.fromkeys("defghj", "1"),
    "i": "p",
    "k": "false",
    "m": "false",
}
PULL = {
    "consumerGroup": "g",
    "topic": "t",
    "queueId": "1",
    "queueOffset": "2",
    "maxMsgNums": "3",
    "sysFlag": "4",
    "commitOffset": "5",
    "suspendTimeoutMillis": "6",
    "subVersion": "7",
}


def decoded_ext(frame: golden.GoldenFrame) -> dict[str, str]:
    (command,) = FrameDecoder().receive_data(frame.wire)
    return command.ext


def test_every_code_of_the_reference_has_its_header() -> None:
    """Without its own class, code somewhere else would have to parse the header by hand."""
    assert set(REQUEST_HEADERS) >= REQUIRED_CODES
    assert set(RESPONSE_HEADERS) >= {10, 310, 11, 361, 14, 29, 30, 31, 103, 370}


def test_golden_requests_are_read_and_written_alike() -> None:
    """Each header that a real client sent is written back unchanged, and no field is left over."""
    count = 0
    for frame in golden.frames():
        ext = decoded_ext(frame) if frame.is_request else {}
        declared = REQUEST_HEADERS.get(frame.fields["code"])
        if declared is None or not ext:
            continue

        header: Header
        if declared is SendMessageHeader:
            header = SendMessageHeader.from_request(frame.fields["code"], ext)
            written = header.to_ext() if frame.fields["code"] == 10 else header.to_ext_v2()
        else:
            header = declared.from_ext(ext)
            written = header.to_ext()

        assert {k: written.get(k) for k in ext if k not in BESIDES} == {
            k: v for k, v in ext.items() if k not in BESIDES
        }, f"line {frame.line}"
        assert declared.from_ext(header.to_ext()) == header
        count += 1
    assert count > 150


def test_golden_responses_are_read_and_written_alike() -> None:
    """Each header of a successful answer of a real broker is written back unchanged, and no field is left over."""
    count = 0
    for frame in golden.frames():
        declared = RESPONSE_HEADERS.get(frame.code)
        if frame.is_request or declared is None or frame.fields["code"] != ResponseCode.SUCCESS:
            continue
        ext = decoded_ext(frame)

        written = declared.from_ext(ext).to_ext()

        assert written == {k: v for k, v in ext.items() if k not in BESIDES}
        count += 1
    assert count > 50


ALL_HEADERS: list[type[Header]] = sorted(
    {*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()}, key=lambda cls: cls.__name__
)


@given(st.data())
def test_every_header_survives(data: st.DataObject) -> None:
    """Values of all types, including the largest and smallest, are read as they were written."""
    header = data.draw(st.sampled_from(ALL_HEADERS).flatmap(_instances))

    assert type(header).from_ext(header.to_ext()) == header
    if isinstance(header, SendMessageHeader):
        assert SendMessageHeader.from_ext_v2(header.to_ext_v2()) == header


def _instances(cls: type[Header]) -> st.SearchStrategy[Header]:
    strategies: dict[Any, st.SearchStrategy[Any]] = {
        integers.Int: st.integers(-(2**31), 2**31 - 1),
        integers.Long: st.integers(-(2**63), 2**63 - 1),
        bool: st.booleans(),
        str: st.text(max_size=10),
    }
    arguments = {}
    for field in cls.__dataclass_fields__.values():  # type: ignore[attr-defined]  # every header is a dataclass
        declared = field.type
        optional = declared not in strategies
        if optional:
            (declared,) = (a for a in declared.__args__ if a is not type(None))
        arguments[field.name] = (st.none() if optional else st.nothing()) | strategies[declared]
    return st.builds(cls, **arguments)


@pytest.mark.parametrize("missing", list("befgh"))
def test_a_send_without_a_required_field_names_it(missing: str) -> None:
    """The remark that a client shows names the missing field."""
    ext = {key: value for key, value in GOOD.items() if key != missing}

    with pytest.raises(HeaderError, match=f"the custom field <{missing}> is null .*310"):
        SendMessageHeader.from_ext_v2(ext)


def test_a_send_needs_only_what_rocketmq_requires() -> None:
    """As in 4.9.7 and 5.3.3, the producer group, the template topic and everything from the properties on may be absent."""
    ext = {key: value for key, value in GOOD.items() if key in "abcdefgh"}
    assert SendMessageHeader.from_ext_v2(ext) == SendMessageHeader("a", "b", "c", 1, 1, 1, 1, 1)

    least = SendMessageHeader("", "b", "", 0, 1, 1, 1, 1)
    assert SendMessageHeader.from_ext_v2({key: ext[key] for key in "befgh"}) == least
    long = least.to_ext()
    del long["producerGroup"], long["defaultTopic"], long["defaultTopicQueueNums"]
    assert SendMessageHeader.from_ext(long) == least


def test_the_code_decides_between_the_two_forms_of_a_send() -> None:
    """Go sends the long form of names, Java the one-letter form."""
    header = SendMessageHeader("p", "t", "d", 4, 1, 0, 5, 0, "k\x01v", 2, False, 3, True, "b")

    for code in (10, 324):
        assert SendMessageHeader.from_request(code, header.to_ext()) == header
    for code in (310, 320, 325):
        assert SendMessageHeader.from_request(code, header.to_ext_v2()) == header


@pytest.mark.parametrize("missing", list(PULL)[:6])
def test_a_pull_without_a_required_field_names_it(missing: str) -> None:
    """If a field is missing, the fast reader falls back to the slow one, which names the field."""
    ext = {key: value for key, value in PULL.items() if key != missing}

    with pytest.raises(HeaderError, match=f"the custom field <{missing}> is null"):
        PullMessageHeader.from_ext(ext)


def test_a_pull_needs_only_what_rocketmq_requires() -> None:
    """The commit offset, the wait time, the version and other fields may be absent, as in 4.9.7 and 5.3.3."""
    least = {key: PULL[key] for key in list(PULL)[:6]}
    topic = CreateTopicHeader("t", "d", 1, 2, 6, "SINGLE_TAG").to_ext()
    del topic["order"], topic["topicSysFlag"]

    assert PullMessageHeader.from_ext(least) == PullMessageHeader("g", "t", 1, 2, 3, 4)
    assert CreateTopicHeader.from_ext(topic) == CreateTopicHeader("t", "d", 1, 2, 6, "SINGLE_TAG")
    assert not GetConsumeStatsInBrokerHeader.from_ext({}).is_order


@pytest.mark.parametrize("field", ["queueId", "commitOffset"])
@pytest.mark.parametrize("text", ["", "x", "1.0", "9223372036854775808", "9" * 5000, "0x1"])
def test_numbers_that_are_none_are_refused_by_name(field: str, text: str) -> None:
    """Refused are also numbers beyond Java's types, and long texts that are slow to convert."""
    ext = {"consumerGroup": "g", "topic": "t", "queueId": "1", "commitOffset": "2"} | {field: text}

    with pytest.raises(HeaderError, match=f"<{field}> of request 15 cannot be read"):
        UpdateConsumerOffsetHeader.from_ext(ext)


@pytest.mark.parametrize("text", ["2147483648", "-2147483649", "99999999999"])
def test_an_int_does_not_take_a_long(text: str) -> None:
    """A queue id is an int32 in all code that reads the header."""
    with pytest.raises(HeaderError, match="queueId"):
        PullMessageHeader.from_ext(PULL | {"queueId": text})
    with pytest.raises(HeaderError, match="<e>"):
        SendMessageHeader.from_ext_v2(GOOD | {"e": text})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("true", True), ("TRUE", True), ("false", False), ("1", False), ("", False)],
)
def test_flags_are_read_as_in_java(text: str, expected: bool) -> None:
    """Only the word "true" counts as true."""
    header = ResetOffsetHeader.from_ext(
        {"topic": "t", "group": "g", "timestamp": "-1", "isForce": text}
    )

    assert header == ResetOffsetHeader("t", "g", -1, expected)
    assert SendMessageHeader.from_ext_v2(GOOD | {"m": text}).batch is expected


def test_what_is_none_is_not_written() -> None:
    """A field that is None is left out, because Java distinguishes an absent field from an empty one."""
    assert ConsumerSendMsgBackHeader(5, "g", 3).to_ext() == {
        "offset": "5",
        "group": "g",
        "delayLevel": "3",
        "unitMode": "false",
    }


def test_names_on_the_wire_are_rocketmqs() -> None:
    """The wire name is the field's name in camel case, with two exceptions."""
    assert CreateTopicHeader("t", "d", 1, 2, 6, "SINGLE_TAG", order=True).to_ext() == {
        "topic": "t",
        "defaultTopic": "d",
        "readQueueNums": "1",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "true",
        "topicSysFlag": "0",
    }
    assert "clientID" in catalogue.UnregisterClientHeader("c").to_ext()
    assert "_UNIQUE_KEY_QUERY" in QueryMessageHeader("t", "k", 1, 2, 3, True).to_ext()


def test_hot_answers_are_written_as_brokers_write_them() -> None:
    """Send and pull replies have their own fast writers."""
    assert SendMessageResponseHeader("ID", 3, 7, "tx").to_ext() == {
        "msgId": "ID",
        "queueId": "3",
        "queueOffset": "7",
        "transactionId": "tx",
    }
    assert PullMessageResponseHeader(0, 7, 1, 9).to_ext() == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "7",
        "minOffset": "1",
        "maxOffset": "9",
    }


def test_our_own_codes_stay_away_from_those_of_the_protocol() -> None:
    """A client that meets such a code by accident would do something unexpected."""
    own = {code for code in RequestCode if code.name.startswith("ORDERLYMQ_")}

    assert sorted(own) == [*range(20500, 20517), *range(20520, 20523)]
    # Codes whose header is our own, too.
    ours = {
        RequestCode.ORDERLYMQ_APPEND_COPIES,
        RequestCode.ORDERLYMQ_FETCH_LANES,
        RequestCode.ORDERLYMQ_COMPLETE_LANES,
        RequestCode.ORDERLYMQ_LANES,
    }
    assert own & set(REQUEST_HEADERS) == ours


def test_codes_of_golden_frames_have_names() -> None:
    """Every captured code has a name, except those at the dledger library's own port."""
    for frame in golden.frames():
        if frame.server != "dledger":
            assert frame.code in set(RequestCode)
            if not frame.is_request:
                assert frame.fields["code"] in set(ResponseCode)
