"""
One hostile request from a seed and a number.

`Generator(seed).case(number)` gives the same bytes at any time and on any machine with the same sources, so
its two numbers name a case. A case is a whole frame, or a stream that ends its connection; `CaseKind` says
how it was spoiled.
"""

import itertools
import random
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import orjson

from orderlymq_broker.core.requestcontext import reads_no_code
from orderlymq_broker.processors.admin.access import signature
from orderlymq_protocol.codes import LanguageCode, RequestCode, SerializeType
from orderlymq_protocol.frame import binaryheader
from orderlymq_protocol.frame.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from orderlymq_protocol.header.send import SEND_CODES
from orderlymq_protocol.message import sysflag
from orderlymq_protocol.message.batch import BatchEntry, encode_batch
from tests.hostile import values
from tests.hostile.catalogue import Question, Server, questions
from tests.hostile.shapes import FirstChoice, models, places, plausible, sample
from tests.hostile.sweep import MISSING, Sweep, canonical_body, sweeps
from tests.hostile.world import STRONG, WEAK

_PREFIX: Final = struct.Struct(">II")
_INT32: Final = 2**31 - 1
# The first opaque number of cases; the numbers below belong to probes.
FIRST_OPAQUE: Final = 1 << 20
# Most bombs are small, so that millions fit an hour; one in some thousands is as large as a frame may be.
_BOMB_SIZES: Final = (100_000, 1 << 20, 5 << 20, 64 << 20)


# Nearly the largest frame, of many small parts or of one. Only a few of a million cases are so large, because each
# takes a second to send.
_HUGE: Final = 5_400_000
_HUGE_SHARE: Final = 0.005
# A repeated text may be repeated again: a few times in a million cases this would make a name of 100 GB.
_FIELD_MAX: Final = 8 << 20
_PLACES_MAX: Final = 1_000


class CaseKind(StrEnum):
    """The treatment of a request."""

    VALID = "valid"
    FIELD = "a field spoiled"
    BODY = "a member of the body spoiled"
    TEXT = "the text of the body spoiled"
    BOMB = "a body that grows"
    COMMAND = "numbers of the header spoiled"
    FRAME = "the frame spoiled"


class Signer(StrEnum):
    """The account that signs a request."""

    NOBODY = "nobody"
    WRONGLY = "wrongly"
    WEAK = "weak"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class Case:
    """One request as bytes.

    Attributes:
        opaque: the number that identifies its answer.
        wants_answer: a server that reads it must answer, or close the connection. No answer is required if the client
            would take a refusal for success.
        ends_stream: anything that follows on the same connection may not be read as frames.
    """

    number: int
    kind: CaseKind
    server: Server
    code: int
    signer: Signer
    frame: bytes
    opaque: int
    wants_answer: bool
    ends_stream: bool


_KINDS: Final = (
    *([CaseKind.VALID] * 14 + [CaseKind.FIELD] * 40 + [CaseKind.BODY] * 26),
    *([CaseKind.TEXT] * 8 + [CaseKind.BOMB] * 2 + [CaseKind.COMMAND] * 6 + [CaseKind.FRAME] * 4),
)
_SIGNERS: Final = (
    *([Signer.NOBODY] * 2 + [Signer.WRONGLY] + [Signer.WEAK] * 3 + [Signer.STRONG] * 4),
)
_ACCOUNTS: Final = {
    Signer.WRONGLY: (STRONG[0], "not the secret"),
    Signer.WEAK: WEAK,
    Signer.STRONG: STRONG,
}


class Generator:
    """Makes the cases of one seed."""

    def __init__(self, seed: int, *, servers: tuple[Server, ...] = tuple(Server)) -> None:
        self._seed = seed
        self._questions = [each for each in questions() if each.server in servers]
        # A request that no server handles is sent sometimes; a served one is sent often.
        self._weights = [
            4 if each.fields or each.model or each.bodies else 1 for each in self._questions
        ]
        self._models = list(models())
        self._sweeps = [each for each in sweeps() if questions()[each.question].server in servers]
        random.Random(seed).shuffle(self._sweeps)

    @property
    def systematic(self) -> int:
        """The number of systematic cases, which is that of the first random case."""
        return len(self._questions) + len(self._sweeps)

    def case(self, number: int) -> Case:
        """Return case *number*: first all codes unchanged, then the sweep, then random ones."""
        rng = random.Random((self._seed << 40) + number)
        if number < len(self._questions):
            return _Draft(rng, self._questions[number], CaseKind.VALID, self._models).case(number)
        if number < self.systematic:
            sweep = self._sweeps[number - len(self._questions)]
            kind = CaseKind.FIELD if sweep.field else CaseKind.BODY
            question = questions()[sweep.question]
            return _Draft(rng, question, kind, self._models, sweep).case(number)
        (question,) = rng.choices(self._questions, self._weights)
        return _Draft(rng, question, rng.choice(_KINDS), self._models).case(number)


class _Draft:
    """A request that is being made into a case."""

    def __init__(
        self,
        rng: random.Random,
        question: Question,
        kind: CaseKind,
        model_names: list[str],
        sweep: Sweep | None = None,
    ) -> None:
        self._sweep = sweep
        self._rng = rng
        self._question = question
        self._kind = kind
        self._model_names = model_names
        self._code = question.code
        # A swept request is spoiled in one place, because most handlers end at the first place that is wrong.
        taste = rng if sweep is None or rng.random() < 0.2 else FirstChoice()
        self._ext: dict[str, Any] = {
            wire: plausible(taste, *about) for wire, about in question.fields.items()
        }
        self._numbers: dict[str, Any] = {"version": rng.choice((409, 409, 317, 501, 0))}

    def case(self, number: int) -> Case:
        """Spoil the request and return it."""
        rng, kind = self._rng, self._kind
        body = self._body()
        match kind:
            case CaseKind.FIELD:
                self._spoil_fields()
            case CaseKind.BOMB:
                body = self._grown_body()
            case CaseKind.COMMAND:
                self._spoil_command()
        opaque = FIRST_OPAQUE + number % (_INT32 - FIRST_OPAQUE)
        flag = FLAG_ONEWAY if rng.random() < 0.03 else FLAG_RESPONSE if rng.random() < 0.02 else 0
        # A swept request should pass access control wherever there is any.
        signer = rng.choice(_SIGNERS) if self._sweep is None else Signer.STRONG
        self._sign(signer, body)
        language = rng.choice(("JAVA", "PYTHON", "GO", "CPP"))
        asked = RemotingCommand(self._code, opaque, language=LanguageCode[language])
        command = {
            "code": self._code,
            "language": language,
            "opaque": opaque,
            "flag": flag,
            "extFields": self._ext,
            **self._numbers,
        }
        frame = self._frame(command, body)
        is_spoiled = kind in (CaseKind.COMMAND, CaseKind.FRAME)
        return Case(
            number,
            kind,
            self._question.server,
            self._question.code,
            signer,
            frame,
            opaque,
            wants_answer=not (flag or is_spoiled or reads_no_code(asked)),
            ends_stream=is_spoiled or self._has_odd_fields(),
        )

    def _has_odd_fields(self) -> bool:
        return any(type(each) is not str for each in self._ext.values())

    def _body(self) -> bytes:
        rng, question = self._rng, self._question
        if self._sweep is not None and self._sweep.member >= 0:
            return _swept_body(question, self._sweep)
        if question.code in SEND_CODES:
            return self._message_body()
        texts = question.bodies
        name = question.model
        if name is None and not texts:
            if self._kind not in (CaseKind.BODY, CaseKind.TEXT):
                return b"" if rng.random() < 0.9 else rng.choice((b"[]", b"{}", b"null", b"a=b\n"))
            name = rng.choice(self._model_names)
        if texts and (name is None or rng.random() < 0.3):
            captured = rng.choice(texts)
            try:
                value = orjson.loads(captured)
            except orjson.JSONDecodeError:
                return self._spoiled_bytes(captured)
        else:
            assert name is not None
            value = sample(rng, models()[name])
        if self._kind is CaseKind.BODY:
            value = self._spoil_json(value)
        text = values.dumps(value)
        if self._kind is CaseKind.TEXT:
            return values.spoiled(rng, text)
        return text.encode(errors="surrogatepass")

    def _spoiled_bytes(self, text: bytes) -> bytes:
        rng = self._rng
        if self._kind not in (CaseKind.BODY, CaseKind.TEXT):
            return text
        name, equals, _ = text.partition(b"=")
        if equals and rng.random() < 0.7:
            return name + b"=" + values.text(rng, rng.choice((int, str))).encode()
        at = rng.randrange(len(text) + 1)
        return text[:at] + rng.randbytes(rng.randrange(4)) + text[at + rng.randrange(3) :]

    def _spoil_json(self, value: Any) -> Any:
        rng = self._rng
        if not isinstance(value, dict | list) or rng.random() < 0.04:
            return values.value(rng)
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            found = list(places(value))
            if not found:
                return values.value(rng)
            container, key = rng.choice(found)
            roll = rng.random()
            if roll < 0.35:
                container[key] = values.confused(rng, container[key])
            elif roll < 0.78:
                container[key] = values.value(rng)
            elif roll < 0.88:
                container.pop(key)
            elif isinstance(container, dict):
                container[values.text(rng)] = container[key]
            else:
                times = rng.choice((1, 3, 700))
                container.extend([container[key]] * (times if len(found) < _PLACES_MAX else 0))
        return value

    def _message_body(self) -> bytes:
        rng = self._rng
        spoils = self._kind in (CaseKind.BODY, CaseKind.TEXT)
        is_batch = self._code == RequestCode.SEND_BATCH_MESSAGE or rng.random() < 0.05
        if not is_batch:
            if not spoils:
                return b"paid"
            return rng.choice((b"", b"\x00", rng.randbytes(40), b"x" * 5_000))
        props = values.text(rng).encode(errors="replace")[:30_000] if spoils else b"KEYS\x01k"
        entries = [BatchEntry(0, b"paid", props) for _ in range(rng.choice((1, 2, 20)))]
        body = bytearray(encode_batch(entries))
        if self._kind is CaseKind.TEXT:
            at = 4 * rng.randrange(len(body) // 4)
            body[at : at + 4] = (values.number(rng) % 2**32).to_bytes(4, "big")
        if "m" in self._ext:
            self._ext["m"] = "true"
        return bytes(body)

    def _spoil_fields(self) -> None:
        rng, fields = self._rng, self._question.fields
        if self._sweep is not None:
            self._ext[self._sweep.field] = self._sweep.value
            if self._sweep.value is MISSING:
                del self._ext[self._sweep.field]
            elif self._sweep.value in values.SQL:
                _call_it_sql(self._ext)
            return
        if not fields:
            self._ext[values.text(rng)] = values.text(rng)
            return
        names = list(fields)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            wire = rng.choice(names)
            kind = fields[wire][1]
            roll = rng.random()
            if fields[wire][0] == "properties" and roll < 0.5:
                self._ext[wire] = rng.choice(values.PROPERTIES)
            elif roll < 0.82:
                self._ext[wire] = values.text(rng, kind)
            elif roll < 0.90:
                self._ext.pop(wire, None)
            elif roll < 0.93:
                self._ext[wire] = values.value(rng)
            elif roll < 0.96:
                self._ext[values.text(rng)] = values.text(rng)
            else:
                text, times = f"{self._ext.get(wire, '')}", rng.choice((2, 100, 2_000))
                self._ext[wire] = text * min(times, 1 + _FIELD_MAX // max(1, len(text)))

    def _grown_body(self) -> bytes:
        """Return a body that is small here and large there: compressed, or of many small parts."""
        rng = self._rng
        size = rng.choices(_BOMB_SIZES, (8, 4, 2, 1))[0]
        kind = rng.randrange(4)
        if self._code == RequestCode.SEND_BATCH_MESSAGE:
            # The last choice is legal: as many messages as a client may put into one request.
            count, size = rng.choice(((100, 30_000), (2_300, 100), (2_300, 5_000), (20_000, 20)))
            entries = [BatchEntry(0, b"", b"")] * count
            self._ext["i"] = "a\x01" + "x" * size
            self._ext["m"] = "true"
            return encode_batch(entries)
        if self._code in SEND_CODES:
            name = "f" if "f" in self._ext else "sysFlag"
            self._ext[name] = str(sysflag.with_compression(0, kind))
            return values.bomb(kind, size)
        if self._code == RequestCode.REGISTER_BROKER:
            self._ext["compressed"] = "true"
            return values.bomb(0, size)
        if rng.random() < _HUGE_SHARE:
            return rng.choice(
                (b"[" + b"{}," * _HUGE + b"{}]", b'{"a":"' + b"x" * 3 * _HUGE + b'"}')
            )
        if rng.random() < 0.5:
            return values.dumps([{}] * rng.choice((1_000, 20_000))).encode()
        name = self._question.model or rng.choice(self._model_names)
        value = sample(rng, models()[name])
        for container, key in list(places(value)):
            if isinstance(container[key], list):
                container[key] = container[key] * rng.choice((100, 1_000))
                break
        return values.dumps(value).encode()

    def _spoil_command(self) -> None:
        rng = self._rng
        for _ in range(rng.choice((1, 1, 3))):
            name = rng.choice(
                ("code", "opaque", "flag", "version", "language", "remark", "extFields")
            )
            self._numbers[name] = values.value(rng)

    def _sign(self, signer: Signer, body: bytes) -> None:
        account = _ACCOUNTS.get(signer)
        if account is None:
            return
        self._ext["AccessKey"] = account[0]
        text = {name: str(value) for name, value in self._ext.items()}
        self._ext["Signature"] = signature(text, body, account[1])

    def _frame(self, command: dict[str, Any], body: bytes) -> bytes:
        rng = self._rng
        header = None
        mark = 0
        if self._kind is not CaseKind.COMMAND and rng.random() < 0.15:
            header = _binary_header(command)
            mark = SerializeType.ROCKETMQ << 24
        if header is None:
            mark = 0
            header = values.dumps(command).encode(errors="surrogatepass")
        frame = _PREFIX.pack(4 + len(header) + len(body), mark | len(header)) + header + body
        return self._spoil_frame(frame) if self._kind is CaseKind.FRAME else frame

    def _spoil_frame(self, frame: bytes) -> bytes:
        rng = self._rng
        spoiled = bytearray(frame)
        match rng.randrange(6):
            case 0:
                spoiled[0:4] = (values.number(rng) % 2**32).to_bytes(4, "big")
            case 1:
                spoiled[4:8] = (values.number(rng) % 2**32).to_bytes(4, "big")
            case 2:
                spoiled[4] = rng.choice((1, 2, 255))
            case 3:
                del spoiled[rng.randrange(1, len(spoiled)) :]
            case 4:
                for _ in range(rng.choice((1, 8))):
                    spoiled[rng.randrange(min(len(spoiled), 200))] = rng.randrange(256)
            case _:
                spoiled[8:8] = rng.randbytes(rng.randrange(1, 9))
        return bytes(spoiled)


def _swept_body(question: Question, sweep: Sweep) -> bytes:
    value = canonical_body(question)
    container, key = next(itertools.islice(places(value), sweep.member, None))
    if sweep.value is MISSING:
        container.pop(key)
    else:
        container[key] = sweep.value
        if isinstance(container, dict) and sweep.value in values.SQL:
            _call_it_sql(container)
    return values.dumps(value).encode(errors="surrogatepass")


def _call_it_sql(fields: dict[str, Any]) -> None:
    if "expressionType" in fields:
        fields["expressionType"] = "SQL92"


def _binary_header(command: dict[str, Any]) -> bytes | None:
    """Return the header in its binary form; None if that form cannot express it."""
    if any(type(value) is not str for value in command["extFields"].values()):
        return None
    try:
        return binaryheader.encode(
            RemotingCommand(
                command["code"],
                command["opaque"],
                command["flag"],
                command["extFields"],
                language=LanguageCode[command["language"]],
                version=command["version"],
            )
        )
    except binaryheader.HeaderFormatError:
        return None
