"""Version 2 of signatures: they cover the whole request, and each signed request is accepted once."""

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.signature import (
    BODY,
    DIFFERENCE_MS_MAX,
    DIGEST_FROM,
    READ_MAX,
    SERVER,
    SIGNATURE,
    ReplayGuard,
    SignAgain,
    SignatureRefused,
    Signer,
    Stamp,
    signature,
    verified,
)

SECRET = b"s" * 32
NOW_MS = 1_790_000_000_000

texts = st.text(max_size=8)
fields = st.dictionaries(texts, texts, max_size=4)


def _signer(secret: bytes = SECRET, now_ms: int = NOW_MS) -> Signer:
    numbers = count()
    return Signer("ann", secret, clock_ms=lambda: now_ms, nonce=lambda: f"n{next(numbers)}")


def _signed(
    signer: Signer, code: int = 215, ext: dict[str, str] | None = None, body: bytes = b""
) -> RemotingCommand:
    return request(code, signer.sign("broker", code, ext or {}, body), body)


@given(st.integers(0, 30_000), fields, st.binary(max_size=8))
def test_a_signed_request_is_recognised(code: int, ext: dict[str, str], body: bytes) -> None:
    """A signed request is verified with the right secret, also if that is the second of two secrets."""
    command = _signed(_signer(), code, ext, body)

    stamp = verified(command, [b"another secret", SECRET])

    assert stamp == Stamp("ann", "", "n0", NOW_MS)


@given(
    st.tuples(st.integers(0, 9), fields, st.binary(max_size=4)),
    st.tuples(st.integers(0, 9), fields, st.binary(max_size=4)),
)
def test_no_two_requests_have_one_signature(
    one: tuple[int, dict[str, str], bytes], other: tuple[int, dict[str, str], bytes]
) -> None:
    """Code, names, values and body are all signed, each at its own place."""
    drop = (SIGNATURE, "Signature")
    same = (one[0], {n: v for n, v in one[1].items() if n not in drop}, one[2]) == (
        other[0],
        {n: v for n, v in other[1].items() if n not in drop},
        other[2],
    )

    assert (signature(*one, SECRET) == signature(*other, SECRET)) is same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": "bc"}, {"ab": "c"}),
        ({"a": "b", "c": "d"}, {"a": "bcd"}),
        ({"topic": "x", "group": "y"}, {"topic": "y", "group": "x"}),
    ],
)
def test_texts_do_not_run_together(one: dict[str, str], other: dict[str, str]) -> None:
    """The signed text separates its parts; RocketMQ's signature is the same for the first two pairs."""
    assert signature(1, one, b"", SECRET) != signature(1, other, b"", SECRET)


@pytest.mark.parametrize(
    "ext",
    [
        {},
        {"OmqSignature": "x"},
        {"OmqSignature": "x", "OmqTime": "tomorrow", "OmqNonce": "n"},
        {"OmqSignature": "x", "OmqTime": "9" * 19, "OmqNonce": "n"},
        {"OmqSignature": "x", "OmqTime": "1", "OmqNonce": "n" * 65},
        {"OmqSignature": "\udc80", "OmqTime": "1", "OmqNonce": "n"},
    ],
)
def test_what_is_no_signature_is_refused(ext: dict[str, str]) -> None:
    """No value that a stranger writes as a signature causes an unexpected error."""
    with pytest.raises(SignatureRefused):
        verified(request(1, ext), [SECRET])


def test_a_request_of_another_secret_is_refused() -> None:
    """The refusal says that the secret differs."""
    with pytest.raises(SignatureRefused, match="another secret"):
        verified(_signed(_signer(b"guessed")), [SECRET])


def test_a_large_body_is_not_read_for_a_stranger() -> None:
    """Law: a wrong signature is refused before the body is hashed, which would block the loop for 30 ms."""
    ours = _signed(_signer(), body=b"x" * (DIGEST_FROM + 1))
    theirs = _signed(_signer(b"other"), body=b"x" * (DIGEST_FROM + 1))

    assert verified(ours, [SECRET]) == Stamp("ann", "", "n0", NOW_MS)
    with pytest.raises(SignatureRefused, match="another body"):
        verified(replace(ours, body=b"y" * (DIGEST_FROM + 1)), [SECRET])
    with pytest.raises(SignatureRefused, match="another secret"):
        verified(replace(theirs, body=b"y"), [SECRET])


@pytest.mark.parametrize("digest", ["", "zz", "00" * 31, "00" * 33, "\u0661" * 64])
def test_what_is_no_digest_is_refused(digest: str) -> None:
    """Law: every malformed digest gets the same refusal."""
    ext = {**_signed(_signer()).ext, BODY: digest}

    with pytest.raises(SignatureRefused, match="not a SHA-256"):
        verified(request(215, ext), [SECRET])


def test_a_large_body_needs_its_digest() -> None:
    """Law: earlier signers may sign requests of up to 1 MiB without a digest; for larger ones the error says what to do."""
    signed = dict(_signed(_signer()).ext)
    for size, why in ((READ_MAX, None), (READ_MAX + 1, "upgrade the client that signs")):
        body = bytes(size)
        signed[SIGNATURE] = signature(215, signed, body, SECRET)
        if why is None:
            assert verified(request(215, signed, body), [SECRET])
            continue
        with pytest.raises(SignatureRefused, match=why):
            verified(request(215, signed, body), [SECRET])


def test_a_request_is_taken_once() -> None:
    """A copy of a signed request is refused at any later time."""
    guard = ReplayGuard("mark")
    stamp = Stamp("ann", "mark", "n", NOW_MS)

    guard.take(stamp, NOW_MS)

    for later_ms in (0, 1, DIFFERENCE_MS_MAX, DIFFERENCE_MS_MAX + 1, 10 * DIFFERENCE_MS_MAX):
        with pytest.raises(SignatureRefused):
            guard.take(stamp, NOW_MS + later_ms)


@pytest.mark.parametrize(("shift_ms", "side"), [(-301_000, "behind"), (301_000, "ahead of")])
def test_clocks_that_differ_are_named(shift_ms: int, side: str) -> None:
    """The refusal says which clock differs and by how much."""
    with pytest.raises(SignatureRefused, match=f"301 s {side} this server's"):
        ReplayGuard("mark").take(Stamp("ann", "mark", "n", NOW_MS + shift_ms), NOW_MS)


def test_another_start_of_the_server_takes_nothing_of_the_former() -> None:
    """The refusal names the new mark of the server, and the signer signs again with it."""
    signer, guard = _signer(), ReplayGuard("second")
    old = Stamp("ann", "first", "n", NOW_MS)

    with pytest.raises(SignAgain):
        guard.take(old, NOW_MS)

    command = _signed(signer)
    refusal = command.reply(1, ext={SERVER: guard.mark})
    assert signer.learn("broker", refusal, command.ext)
    guard.take(verified(_signed(signer), [SECRET]), NOW_MS)


def test_a_server_whose_clock_was_ahead_takes_requests_again() -> None:
    """After all clocks were an hour ahead, newly signed requests are accepted, and copies of old ones are not."""
    signer, guard = _signer(), ReplayGuard("mark")
    before, ahead = (Stamp("ann", "mark", "n", NOW_MS + ms) for ms in (0, 3_600_000))
    guard.take(before, NOW_MS)
    guard.take(ahead, NOW_MS + 3_600_000)

    with pytest.raises(SignAgain):
        guard.take(Stamp("ann", "mark", "m", NOW_MS), NOW_MS)

    command = _signed(signer)
    assert signer.learn("broker", command.reply(1, ext={SERVER: guard.mark}), command.ext)
    guard.take(verified(_signed(signer), [SECRET]), NOW_MS)
    for stamp, now_ms in ((before, NOW_MS), (ahead, NOW_MS + 3_600_000)):
        with pytest.raises(SignAgain):
            guard.take(stamp, now_ms)


def test_a_signer_does_not_sign_again_for_ever() -> None:
    """A refusal is final if the request has the present mark, or if the refusal names no mark."""
    signer = _signer()
    command = _signed(signer)
    refusal = command.reply(1, ext={SERVER: "mark"})

    assert signer.learn("broker", refusal, command.ext)
    assert not signer.learn("broker", refusal, _signed(signer).ext)
    assert not signer.learn("broker", command.reply(1), command.ext)
    assert not signer.learn("broker", command.reply(0, ext={SERVER: "other"}), command.ext)


def test_signing_again_replaces_the_signatures() -> None:
    """A signer that signs a request again replaces its former signatures, also one in RocketMQ's form."""
    signer = _signer()

    again = signer.sign(
        "broker", 1, {**signer.sign("broker", 1, {"a": "b"}, b""), "Signature": "x"}, b""
    )

    assert set(again) == {"a", "OmqKey", "OmqTime", "OmqNonce", "OmqServer", "OmqSignature"}
    verified(request(1, again), [SECRET])


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=40))
def test_memory_is_bounded_and_nothing_is_taken_twice(asked: list[tuple[int, int]]) -> None:
    """With room for four nonces, requests whose nonces were dropped are refused because of their time."""
    guard = ReplayGuard("mark", capacity=4)
    taken: list[Stamp] = []
    for time_ms, nonce in asked:
        stamp = Stamp("ann", "mark", str(nonce), time_ms)
        try:
            guard.take(stamp, 12)
        except SignatureRefused:
            continue
        assert stamp not in taken
        taken.append(stamp)
        assert len(guard) <= 4


def test_a_full_memory_takes_younger_requests() -> None:
    """The oldest nonces make room, so that a busy cluster is served."""
    guard = ReplayGuard("mark", capacity=2)

    for time_ms in range(10):
        guard.take(Stamp("ann", "mark", str(time_ms), time_ms), 10)

    assert len(guard) == 2
