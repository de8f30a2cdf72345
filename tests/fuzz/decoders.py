"""
Every decoder with the errors that it may raise and bytes to begin with.

The law: for any bytes, a decoder returns or raises one of its named errors, and its cost is bounded by the size of
its input. The seeds come from our own encoders and from the captured frames of the protocol's tests.
"""

import functools
import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from orderlymq_backup import manifest as manifests
from orderlymq_backup.errors import BackupDamaged
from orderlymq_broker.core.requestcontext import RequestRefused
from orderlymq_broker.processors.admin.addresses import AddressPatternError, address_matcher
from orderlymq_broker.processors.admin.config import parse_properties
from orderlymq_broker.processors.fetch.sql import SqlError, compile_sql
from orderlymq_broker.replication.snapshotframes import Chunk, Offer, Verdict, Wanted
from orderlymq_broker.replication.transport.frameheaders import (
    CallerProof,
    Challenge,
    Forward,
    ForwardedConnection,
    Hello,
    Welcome,
)
from orderlymq_broker.replication.transport.frames import (
    Frame,
    FrameCorrupt,
    FrameKind,
    FrameReader,
    decode_header,
    decode_messages,
    encode_frame,
    encode_messages,
)
from orderlymq_broker.settings import BrokerSettings
from orderlymq_broker.state.records import decode_records, encode_records
from orderlymq_broker.store.entry import EntryCorrupt, cut_messages, encode_entry, split_entry
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.declaration import ModelError
from orderlymq_protocol.body.fastjson import JsonError
from orderlymq_protocol.body.routes import RegisterBrokerBody
from orderlymq_protocol.codes import SerializeType
from orderlymq_protocol.decodeerrors import UNREADABLE
from orderlymq_protocol.frame.codec import FrameDecoder, FrameError, encode
from orderlymq_protocol.frame.command import request
from orderlymq_protocol.header.declaration import REQUEST_HEADERS, RESPONSE_HEADERS, HeaderError
from orderlymq_protocol.header.send import SendMessageHeader
from orderlymq_protocol.message.batch import BatchEntry, BatchError, encode_batch, read_batch
from orderlymq_protocol.message.compression import (
    CompressionError,
    CompressionType,
    compress,
    decompress,
)
from orderlymq_protocol.message.ids import (
    MessageIdError,
    decode_offset_message_id,
    encode_offset_message_id,
)
from orderlymq_protocol.message.properties import (
    decode_properties,
    encode_properties,
    find_property,
)
from orderlymq_protocol.message.recallhandle import InvalidHandle, RecallHandle
from orderlymq_protocol.message.record import RecordError, iter_records, record_properties
from orderlymq_protocol.message.sysflag import with_compression
from orderlymq_protocol.message.tags import TagExpressionError, TagFilter
from orderlymq_raft.messages import Append, Heartbeat, Vote
from orderlymq_raft.types import Entry, Index, Membership, NodeId, Term
from tests.broker.state.entries import stored
from tests.hostile import values
from tests.hostile.shapes import FirstChoice, header_fields, models, plausible, sample
from tests.protocol.golden import frames

# The most bytes of a fuzzed input; larger inputs only repeat, slowly, what smaller ones show.
SIZE_MAX: Final = 8_192
_INFLATED_MAX: Final = 1 << 20
_Errors = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class Decoder:
    """One decoder: *read* takes bytes and may raise *errors* and nothing else."""

    name: str
    read: Callable[[bytes], object]
    errors: _Errors
    seeds: tuple[bytes, ...]

    def survives(self, data: bytes) -> bool:
        """Decode; return whether the bytes were valid.

        Raises:
            Exception: any error that is not one of the decoder's own.
        """
        try:
            self.read(data)
        except self.errors:
            return False
        return True


def _frame(data: bytes) -> None:
    whole, parted = FrameDecoder(), FrameDecoder()
    commands = whole.receive_data(data)
    half = len(data) // 2
    again = parted.receive_data(data[:half]) + parted.receive_data(data[half:])
    assert commands == again, "frames depend on how they are cut"
    for command in commands:
        encode(command)


def _header(data: bytes) -> None:
    classes = [*REQUEST_HEADERS.items(), *RESPONSE_HEADERS.items()]
    code, cls = classes[data[0] % len(classes)] if data else classes[0]
    pairs = (each.partition("=") for each in data[1:].decode(errors="replace").split("\n"))
    ext = {name: value for name, _, value in pairs}
    if issubclass(cls, SendMessageHeader):
        cls.from_request(code, ext)
    cls.from_ext(ext)


def _model(data: bytes) -> None:
    found = list(models().values())
    cls = found[data[0] % len(found)] if data else found[0]
    cls.from_json(data[1:]).to_json()


def _properties(data: bytes) -> None:
    found = decode_properties(data)
    for name in found:
        assert find_property(data, name) == found[name] or b"\xef\xbf\xbd" in name.encode()


def _compressed(data: bytes) -> None:
    kind = data[0] % 5 if data else 0
    body = decompress(data[1:], with_compression(0, kind), _INFLATED_MAX)
    assert len(body) <= _INFLATED_MAX


def _records(data: bytes) -> None:
    for message in iter_records(data):
        decode_properties(message.properties)


def _entry(data: bytes) -> None:
    parts = split_entry(data)
    decode_records(parts.meta)
    cut_messages(data, len(data) - len(parts.blob), parts.physical_start)


def _replica_frames(data: bytes) -> None:
    headers: dict[FrameKind, type[Any]] = {
        FrameKind.HELLO: Hello,
        FrameKind.CHALLENGE: Challenge,
        FrameKind.PROOF: CallerProof,
        FrameKind.WELCOME: Welcome,
        FrameKind.REFUSED: str,
        FrameKind.FORWARD: Forward,
        FrameKind.SNAPSHOT_OFFER: Offer,
        FrameKind.SNAPSHOT_WANTED: Wanted,
        FrameKind.SNAPSHOT_CHUNK: Chunk,
        FrameKind.SNAPSHOT_DONE: Verdict,
    }
    for frame in FrameReader().receive_data(_with_checksums(data)):
        if frame.kind is FrameKind.RAFT:
            decode_messages(frame)
        else:
            decode_header(frame, headers.get(frame.kind, ForwardedConnection))


def _with_checksums(data: bytes) -> bytes:
    """Return the frames with correct checksums, so that the decoders behind them are reached."""
    frames, at = bytearray(data), 0
    while at + 8 <= len(frames):
        end = at + 4 + int.from_bytes(frames[at : at + 4], "big")
        frames[at + 4 : at + 8] = zlib.crc32(frames[at + 8 : end]).to_bytes(4, "big")
        at = max(at + 8, end)
    return bytes(frames)


def _raft_messages(data: bytes) -> None:
    # The first byte is the end of the header.
    end = 1 + data[0] if data else 1
    header, payload = data[1:end], data[end:]
    messages = decode_messages(Frame(FrameKind.RAFT, header, payload))
    # A frame that was read can be encoded again: no value of another type has come in.
    encode_messages(messages)


def _sql(data: bytes) -> None:
    text, _, properties = data.partition(b"\x00")
    compile_sql(text.decode(errors="replace")).matches(properties)


def _settings(data: bytes) -> None:
    msgspec.json.decode(data, type=BrokerSettings, dec_hook=lambda kind, value: kind(value))


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode(errors="replace"))


def _join(pieces: list[bytes]) -> bytes:
    return b"".join(pieces)


@functools.cache
def decoders() -> dict[str, Decoder]:
    """Return every decoder by its name."""
    found = (
        Decoder("frames", _frame, (FrameError,), _frame_seeds()),
        Decoder("headers", _header, (HeaderError,), _header_seeds()),
        Decoder("json", fastjson.loads, (JsonError,), _json_seeds()),
        Decoder("bodies", _model, (ModelError, JsonError), _model_seeds()),
        Decoder(
            "registration",
            lambda data: RegisterBrokerBody.decode(data, compressed=True),
            (ModelError, JsonError),
            (RegisterBrokerBody().encode(compressed=True), values.bomb(0, 100_000)),
        ),
        Decoder(
            "properties", _properties, (), (encode_properties({"KEYS": "k", "a": "7"}), b"\x01\x02")
        ),
        Decoder(
            "batch",
            lambda data: list(read_batch(data)),
            (BatchError,),
            (encode_batch([BatchEntry(0, b"paid", b"a\x01b"), BatchEntry(1, b"", b"")]),),
        ),
        Decoder("compression", _compressed, (CompressionError,), _compression_seeds()),
        Decoder("records", _records, (RecordError,), (stored(0, 0), stored(1, 2) * 2)),
        Decoder("record properties", record_properties, (RecordError,), (stored(0, 0),)),
        Decoder(
            "message id",
            _text(decode_offset_message_id),
            (MessageIdError,),
            (encode_offset_message_id("127.0.0.1", 10911, 7).encode(),),
        ),
        Decoder("tags", _text(TagFilter.parse), (TagExpressionError,), (b"a || b", b"*")),
        Decoder(
            "recall handle",
            _text(RecallHandle.decode),
            (InvalidHandle,),
            (RecallHandle("orders", "broker-a", 7, "U").encode().encode(),),
        ),
        Decoder("replica frames", _replica_frames, (FrameCorrupt,), _replica_seeds()),
        Decoder("raft messages", _raft_messages, (FrameCorrupt,), _raft_seeds()),
        Decoder("entry", _entry, (EntryCorrupt, *UNREADABLE), _entry_seeds()),
        Decoder(
            "membership",
            Membership.decode,
            (ValueError,),
            (Membership(frozenset({NodeId(1)})).encode(),),
        ),
        Decoder(
            "sql",
            _sql,
            (SqlError,),
            tuple(each.encode()[:SIZE_MAX] + b"\x00a\x017\x02b\x01x" for each in values.SQL),
        ),
        Decoder(
            "address pattern",
            _text(_matched),
            (AddressPatternError,),
            (b"10.0.1-5.*", b"::{1,2}", b"*"),
        ),
        Decoder(
            "broker config", parse_properties, (RequestRefused,), (b"brokerPermission=6\na=b\n",)
        ),
        Decoder("settings", _settings, UNREADABLE, _settings_seeds()),
        *_manifests(),
    )
    return {each.name: each for each in found}


_DIGEST: Final = "ab" * 32
_BACKUP: Final = manifests.Backup(
    id="20261125T184314123Z-0badcafe",
    cluster="demo",
    began_ms=1,
    ended_ms=2,
    release="0.1.0",
    new_bytes=16,
    parts=(
        manifests.Part(
            cluster="demo",
            group="demo-0",
            node=1,
            index=7,
            term=2,
            physical_end=900,
            taken_ms=1,
            files=(manifests.BackupFile(name="CURRENT", size=16, sha256=_DIGEST, tail=_DIGEST),),
        ),
    ),
)


def _manifests() -> tuple[Decoder, ...]:
    return (
        Decoder(
            "backup manifest",
            functools.partial(manifests.decode, backup_id=_BACKUP.id),
            (BackupDamaged,),
            (manifests.encode(_BACKUP),),
        ),
        # With the right digest, so that the decoder behind it is reached.
        Decoder(
            "backup manifest, sealed",
            _sealed_manifest,
            (BackupDamaged,),
            (manifests.encode(_BACKUP).partition(b"\n")[2],),
        ),
    )


def _sealed_manifest(text: bytes) -> object:
    digest = hashlib.sha256(text).hexdigest().encode()
    return manifests.decode(b"orderlymq-backup 1 " + digest + b"\n" + text, _BACKUP.id)


def _matched(text: str) -> bool:
    return address_matcher(text)("10.0.0.1")


def _frame_seeds() -> tuple[bytes, ...]:
    captured = {each.code: each.wire for each in frames() if len(each.wire) <= SIZE_MAX}
    command = request(310, {"a": "g", "b": "orders"}, b"paid")
    command.serialize_type = SerializeType.ROCKETMQ
    return (*captured.values(), encode(command), encode(request(105, {"topic": "orders"})))


def _header_seeds() -> tuple[bytes, ...]:
    found = []
    for number, code in enumerate(REQUEST_HEADERS):
        fields = header_fields(code).items()
        lines = (f"{wire}={plausible(FirstChoice(), *about)}" for wire, about in fields)
        found.append(bytes([number % 256]) + "\n".join(lines).encode())
    return tuple(found)


def _json_seeds() -> tuple[bytes, ...]:
    captured = {each.code: each.body for each in frames() if each.body[:1] in (b"{", b"[")}
    small = (each for each in captured.values() if len(each) <= SIZE_MAX)
    return (*small, b'{{"brokerName":"b","queueId":0,"topic":"t"}:1,0:2}', b"[1e5,null,true]")


def _model_seeds() -> tuple[bytes, ...]:
    return tuple(
        bytes([number]) + values.dumps(sample(FirstChoice(), cls)).encode()
        for number, cls in enumerate(models().values())
    )


def _compression_seeds() -> tuple[bytes, ...]:
    return (
        *(bytes([kind]) + compress(b"paid" * 100, kind) for kind in CompressionType),
        *(bytes([kind]) + values.bomb(kind, 4 << 20) for kind in (0, 1, 2)),
    )


def _replica_seeds() -> tuple[bytes, ...]:
    hello = Hello(2, "C", "g", 2, 1, "raft", "127.0.0.1", 7, False, bytes(32))
    return (
        _join(encode_frame(FrameKind.HELLO, hello)),
        _join(encode_frame(FrameKind.CHALLENGE, Challenge(bytes(32)))),
        _join(encode_frame(FrameKind.PROOF, CallerProof(bytes(32)))),
        _join(encode_frame(FrameKind.WELCOME, Welcome(False, bytes(32)))),
        _join(encode_frame(FrameKind.FORWARD, Forward(1, "127.0.0.1", 7), [b"x"])),
        *(_join(encode_messages([each])) for each in _messages()),
    )


def _messages() -> tuple[Any, ...]:
    one, two, term, index = NodeId(1), NodeId(2), Term(3), Index(4)
    return (
        Vote(two, one, term, index, term),
        Heartbeat(two, one, term, index, 7),
        Append(two, one, term, index, term, index, (Entry(term, Index(5), b"data"),)),
    )


def _raft_seeds() -> tuple[bytes, ...]:
    found = []
    for message in _messages():
        (frame,) = FrameReader().receive_data(_join(encode_messages([message])))
        found.append(bytes([len(frame.header)]) + frame.header + frame.payload)
    return tuple(found)


def _entry_seeds() -> tuple[bytes, ...]:
    message = stored(0, 0)
    empty = encode_entry(encode_records([]), [], 0, 7)
    return (empty, encode_entry(encode_records([]), [message, message], 0, 7))


def _settings_seeds() -> tuple[bytes, ...]:
    address = {"host": "127.0.0.1", "port": 7}
    plain = {
        "cluster": "C",
        "group": "g",
        "node_id": 1,
        "peers": {"1": address},
        "address": address,
    }
    return (msgspec.json.encode({**plain, "http": address, "data_dir": "x"}),)
