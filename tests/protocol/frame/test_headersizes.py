"""Limits of headers: the receiver accepts every header that the sender writes."""

import json
import struct
from dataclasses import replace

import pytest

from orderlymq_protocol.codes import SerializeType
from orderlymq_protocol.frame.binaryheader import FIELDS_MAX
from orderlymq_protocol.frame.codec import (
    ANSWER_HEADER_SIZE_MAX,
    HEADER_SIZE_MAX,
    FrameDecoder,
    FrameError,
    encode,
)
from orderlymq_protocol.frame.command import FLAG_RESPONSE, RemotingCommand


def test_a_header_beyond_the_limit_is_refused_before_it_is_there() -> None:
    """Once, a field of 16 MB blocked a broker's loop for seconds."""
    size = HEADER_SIZE_MAX + 1

    with pytest.raises(FrameError, match=f"a header of {size} bytes is announced"):
        FrameDecoder().receive_data(struct.pack(">II", 4 + size, size))


@pytest.mark.parametrize("kind", list(SerializeType))
@pytest.mark.parametrize(
    ("flag", "size_max"), [(0, HEADER_SIZE_MAX), (FLAG_RESPONSE, ANSWER_HEADER_SIZE_MAX)]
)
def test_what_is_written_is_read(kind: SerializeType, flag: int, size_max: int) -> None:
    """Law: the sender refuses a header that the peer would refuse by closing the whole connection."""
    command = RemotingCommand(10, flag=flag, ext={"a": ""}, serialize_type=kind)
    room = size_max - len(encode(command)) + 8

    largest = replace(command, ext={"a": "x" * room})
    assert FrameDecoder(header_size_max=size_max).receive_data(encode(largest)) == [largest]

    for text in ("x" * (room + 1), "\u20ac" * (room // 2)):
        with pytest.raises(FrameError, match=f"a header of .* the limit is {size_max}"):
            encode(replace(command, ext={"a": text}))


@pytest.mark.parametrize("kind", list(SerializeType))
def test_a_header_of_as_many_fields_as_may_be_is_read_and_no_longer_one_is_written(
    kind: SerializeType,
) -> None:
    """Law: the sender also refuses a header with more fields than the peer would accept."""
    most = RemotingCommand(10, ext={f"{number}": "" for number in range(FIELDS_MAX)})
    most.serialize_type = kind

    assert FrameDecoder().receive_data(encode(most)) == [most]
    with pytest.raises(FrameError, match="257 fields are more than the limit, 256"):
        encode(replace(most, ext={**most.ext, "more": ""}))


def _json(code: object, value: object) -> bytes:
    names = [f"{number}" for number in range(FIELDS_MAX + 1)]
    return json.dumps({"code": code, "extFields": dict.fromkeys(names, value)}).encode()


def _binary(name: bytes) -> bytes:
    field = struct.pack(">h", len(name)) + name + struct.pack(">i", 0)
    ext = field * (FIELDS_MAX + 1)
    return struct.pack(">hBhiiii", 10, 0, 0, 0, 0, 0, len(ext)) + ext


@pytest.mark.parametrize(
    ("kind", "header"),
    [(0, _json(10, "")), (0, _json("10", "")), (0, _json(10, None)), (1, _binary(b"name"))],
    ids=["usual", "repaired", "left out", "binary, of one name"],
)
def test_a_header_of_more_fields_is_not_read(kind: int, header: bytes) -> None:
    """A signature covers all fields: checking one of 90,000 blocked a leader's loop for a tenth of a second."""
    prefix = struct.pack(">II", 4 + len(header), kind << 24 | len(header))

    with pytest.raises(FrameError, match="fields"):
        FrameDecoder().receive_data(prefix + header)
