"""
Version 2 of a request's signature, for requests that change a cluster.

RocketMQ's own signature covers the values of the header fields and the body. So the signature of a query is also valid
for a deletion, and it never expires. Version 2 covers the request code, the names and values of all fields,
the body, a time and a nonce. It also covers a mark of the server. A server makes a new mark each time that it begins
to serve. So a signature that another server or an earlier start has seen is not valid here. A request without the
present mark is refused. The refusal has the mark, and the signer signs again.

A large body is covered by its digest, which is a field, so a stranger's signature is found wrong without reading the body.
Version 2 stands in fields next to RocketMQ's signature, which is made last and covers them: without these fields
RocketMQ's signature is wrong. Pure: times are given. `Signer` signs, `ReplayGuard` and `verified` judge.
"""

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Final

from orderlymq_protocol.frame.command import RemotingCommand

KEY: Final = "OmqKey"
TIME: Final = "OmqTime"
NONCE: Final = "OmqNonce"
SERVER: Final = "OmqServer"  # in requests and in refusals
SIGNATURE: Final = "OmqSignature"
BODY: Final = "OmqBody"  # SHA-256 of a large body in hexadecimal digits
# RocketMQ's signature, which is made after ours and which ours does not cover.
ROCKETMQ_SIGNATURE: Final = "Signature"

_FORM: Final = b"OMQ2"
_UNCOVERED: Final = frozenset({SIGNATURE, ROCKETMQ_SIGNATURE})
_OURS: Final = (KEY, TIME, NONCE, SERVER, SIGNATURE, BODY)

# A signer names the digest of a body that is larger than this.
DIGEST_FROM: Final = 64 << 10
# Reading this takes less than 2 ms of the loop; signers of earlier releases name no digest.
READ_MAX: Final = 1 << 20

# How far the clocks of signers and servers may differ, as in Kerberos.
DIFFERENCE_MS_MAX: Final = 300_000
# About 20 MB. Only a signer with the right to what it signs can fill it; then the oldest are refused because of their time.
NONCES_MAX: Final = 100_000
_NONCE_LENGTH_MAX: Final = 64
# A signer talks to the servers of one cluster.
_SERVERS_MAX: Final = 10_000


class SignatureRefused(Exception):  # noqa: N818 - the answer to give
    """A request is not signed as it must be; the text says why, and what to do."""


class SignAgain(SignatureRefused):
    """The signature is for another start of this server; signed with the present mark, the request is accepted."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """The unique part of a signed request.

    Attributes:
        key: the key of the signer.
        server: the mark of the server for which the request is meant.
    """

    key: str
    server: str
    nonce: str
    time_ms: int


def signature(code: int, ext: Mapping[str, str], body: bytes, secret: bytes) -> str:
    """Return the signature of a request: HMAC-SHA256 in Base64.

    Lengths stand before texts, so that no two requests have the same signed text.
    """
    return _signature(code, ext, hashlib.sha256(body).digest(), secret)


def _signature(code: int, ext: Mapping[str, str], digest: bytes, secret: bytes) -> str:
    names = sorted(name for name in ext if name not in _UNCOVERED)
    parts = [_FORM, digest]
    for text in (str(code), *(text for name in names for text in (name, ext[name]))):
        data = text.encode(errors="surrogatepass")
        parts += [len(data).to_bytes(4, "big"), data]

    return b64encode(hmac.digest(secret, b"".join(parts), "sha256")).decode()


def is_signed(ext: Mapping[str, str]) -> bool:
    """Return whether a request claims to have a signature of version 2."""
    return SIGNATURE in ext


def verified(request: RemotingCommand, secrets_of_key: Iterable[bytes]) -> Stamp:
    """Return the stamp of a request that was signed with one of the secrets.

    Raises:
        SignatureRefused: It has no signature, or a wrong one.
    """
    ext = request.ext
    given = ext.get(SIGNATURE, "").encode(errors="surrogatepass")
    key = ext.get(KEY, "")
    nonce = ext.get(NONCE, "")
    digits = ext.get(TIME, "")
    # 18 digits are beyond any time, and fit into 64 bits.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise SignatureRefused(f"the field {TIME} of the signature is not a time in milliseconds")
    if not 0 < len(nonce) <= _NONCE_LENGTH_MAX:
        raise SignatureRefused(f"the field {NONCE} must have 1 to {_NONCE_LENGTH_MAX} characters")
    named = _named_digest(request)
    digest = named or hashlib.sha256(request.body).digest()
    for secret in secrets_of_key:
        expected = _signature(request.code, ext, digest, secret).encode()
        if hmac.compare_digest(expected, given):
            if named is not None and hashlib.sha256(request.body).digest() != named:
                raise SignatureRefused(f"the field {BODY} is the digest of another body")
            return Stamp(key, ext.get(SERVER, ""), nonce, int(digits))
    raise SignatureRefused(f"the signature of {key} is wrong; it was made with another secret")


def _named_digest(request: RemotingCommand) -> bytes | None:
    """Return the digest that a request names; None if the body must be read.

    Raises:
        SignatureRefused: The digest is malformed, or the body is too large to be read for a stranger.
    """
    text = request.ext.get(BODY)
    if text is None:
        if len(request.body) > READ_MAX:
            raise SignatureRefused(
                f"a signed body of more than {READ_MAX} bytes needs its digest in the field "
                f"{BODY}; upgrade the client that signs"
            )
        return None
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise SignatureRefused(f"the field {BODY} is not a SHA-256 in hexadecimal digits")
    return digest


class ReplayGuard:
    """Accepts each signed request once.

    Its memory is bounded: when it holds *capacity* nonces, it forgets the oldest, and refuses requests that are not
    younger than those.

    Args:
        mark: the mark of this start of this server; no other start may have it, or one that begins with it and a slash.
    """

    def __init__(self, mark: str, *, capacity: int = NONCES_MAX) -> None:
        self.mark = mark
        self._marks = (f"{mark}/{number}" for number in count(1))
        self._capacity = capacity
        self._taken: set[tuple[str, str]] = set()
        self._by_time: list[tuple[int, str, str]] = []
        self._forgotten_ms = -1

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, stamp: Stamp, now_ms: int) -> None:
        """Accept a request whose signature is right.

        Raises:
            SignAgain: It was signed for another start of this server, or is older than what is remembered, or this server's clock
                was set back; in the last case the mark changes.
            SignatureRefused: The clocks differ too much, or it was accepted before.
        """
        if stamp.server != self.mark:
            raise SignAgain("the request was signed before this server started; sign it again")
        difference_ms = stamp.time_ms - now_ms
        if abs(difference_ms) > DIFFERENCE_MS_MAX:
            side = "ahead of" if difference_ms > 0 else "behind"
            raise SignatureRefused(
                f"the signer's clock is {abs(difference_ms) / 1000:.0f} s {side} this server's; at most "
                f"{DIFFERENCE_MS_MAX // 1000} s are allowed: set the clocks"
            )
        if now_ms <= self._forgotten_ms:
            # The clock was ahead when it forgot. All that is signed now is older, and would be refused until the clock is there again.
            self.mark = next(self._marks)
            self._taken.clear()
            self._by_time.clear()
            self._forgotten_ms = -1
            raise SignAgain("the clock of this server was set back; sign the request again")
        self._forget(now_ms - DIFFERENCE_MS_MAX - 1)
        if stamp.time_ms <= self._forgotten_ms:
            raise SignAgain("the server has already accepted newer requests; sign this one again")
        once = (stamp.key, stamp.nonce)
        if once in self._taken:
            raise SignatureRefused("this signed request was accepted before; each is accepted once")
        if len(self._taken) >= self._capacity:
            self._forget(self._by_time[0][0])
        if stamp.time_ms <= self._forgotten_ms:
            raise SignAgain("the server has already accepted newer requests; sign this one again")
        self._taken.add(once)
        heappush(self._by_time, (stamp.time_ms, *once))

    def _forget(self, until_ms: int) -> None:
        """Forget the nonces that were signed up to *until_ms*."""
        while self._by_time and self._by_time[0][0] <= until_ms:
            _, key, nonce = heappop(self._by_time)
            self._taken.discard((key, nonce))
        self._forgotten_ms = max(self._forgotten_ms, until_ms)


class Signer:
    """Signs requests, and remembers the mark of each server.

    Args:
        key: the key under which servers know the secret.
        clock_ms: returns milliseconds since 1970.
        nonce: returns texts of at most 64 characters, no two alike.
    """

    def __init__(
        self,
        key: str,
        secret: bytes,
        *,
        clock_ms: Callable[[], int],
        nonce: Callable[[], str],
    ) -> None:
        self.key = key
        self._secret = secret
        self._clock_ms = clock_ms
        self._nonce = nonce
        self._marks: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Signer({self.key!r})"

    def sign(self, server: str, code: int, ext: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return the fields of a request with a signature; a signature that they have already is replaced."""
        fields = {name: value for name, value in ext.items() if name not in _OURS}
        fields.pop(ROCKETMQ_SIGNATURE, None)
        fields[KEY] = self.key
        fields[TIME] = str(self._clock_ms())
        fields[NONCE] = self._nonce()
        fields[SERVER] = self._marks.get(server, "")
        digest = hashlib.sha256(body).digest()
        if len(body) > DIGEST_FROM:
            fields[BODY] = digest.hex()
        fields[SIGNATURE] = _signature(code, fields, digest, self._secret)
        return fields

    def learn(self, server: str, answer: RemotingCommand, sent: Mapping[str, str]) -> bool:
        """Remember the mark of a refusal; return whether the request must be signed again."""
        mark = answer.ext.get(SERVER, "")
        if answer.code == 0 or not mark or len(mark) > 256:
            return False
        if len(self._marks) >= _SERVERS_MAX:
            self._marks.clear()
        self._marks[server] = mark
        return sent.get(SERVER) != mark
