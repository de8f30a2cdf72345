"""Signatures, compared with the vectors of RocketMQ's ACL hook."""

import asyncio

from orderlymq.connection.signatures import RequestSigner, signed
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.signature import SERVER, verified


def _sign(ext: dict[str, str], body: bytes, access_key: str = "RocketMQ") -> dict[str, str]:
    return signed(ext, body, access_key=access_key, secret_key="12345678", token="")


def test_the_known_vectors() -> None:
    """Law: a signature is HMAC-SHA1 over the values in the order of their names, then the body (wire 4.10)."""
    route = _sign({"topic": "TopicTest"}, b"BODY")
    captured = _sign({"topic": "TACL"}, b"", "rocketmq2")
    send = _sign(
        {
            "a": "PG",
            "b": "TopicTest",
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": "0",
            "g": "1600000000000",
            "h": "0",
            "i": "KEYS\x01k\x02TAGS\x01TagA",
            "j": "0",
            "k": "false",
            "m": "false",
            "n": "broker-a",
        },
        b"hello",
    )

    assert route["Signature"] == "8k+RtuF86i3W63wHzoYk2Ccnik4="
    assert captured["Signature"] == "eCwHRJ551ptXJ0wqpp2Ixm8s8Mg="
    assert send["Signature"] == "7oRrUGSv3USXBUsNhNRRxR3OqYY="


def test_a_token_alone_is_sent_unsigned() -> None:
    """Law: a token alone is sent without a signature (ACL-01)."""
    ext = signed({"a": "1"}, b"", access_key="", secret_key="", token="secret")

    assert ext == {"a": "1", "SecurityToken": "secret"}


def test_version_2_is_made_first_and_covered_by_rocketmqs() -> None:
    """Law: our signature (version 2) is computed first and covered by RocketMQ's, so that it cannot be stripped."""
    signer = RequestSigner("ann", "secret of ann", "token", is_encrypted=True)
    command = request(17, {"topic": "T"}, b"body")

    signer.sign("broker", command)
    signer.sign("broker", command)

    stamp = verified(command, [b"secret of ann"])
    rest = {name: value for name, value in command.ext.items() if name != "Signature"}
    again = signed(rest, b"body", access_key="ann", secret_key="secret of ann", token="token")
    stripped = {name: value for name, value in rest.items() if not name.startswith("Omq")}
    weaker = signed(stripped, b"body", access_key="ann", secret_key="secret of ann", token="token")
    assert stamp.key == "ann"
    assert command.ext["AccessKey"] == "ann"
    assert command.ext["Signature"] == again["Signature"] != weaker["Signature"]


async def test_a_mark_that_a_refusal_names_is_signed_for() -> None:
    """Law: a request refused with a server mark is signed for it and sent again; the mark counts for that address only."""
    signer = RequestSigner("ann", "secret of ann")
    seen: list[tuple[str, str]] = []

    async def refuse(address: str, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        seen.append((address, verified(command, [b"secret of ann"]).server))
        return command.reply(1, ext={SERVER: "mark"})

    assert (await signer.invoke(refuse, "one", request(17), 1.0)).code == 1
    assert (await signer.invoke(refuse, "one", request(17), 1.0)).code == 1
    command = request(17)
    signer.sign("two", command)

    assert seen == [("one", ""), ("one", "mark"), ("one", "mark")]
    assert verified(command, [b"secret of ann"]).server == ""


async def test_a_request_that_is_signed_again_has_what_is_left_of_its_time() -> None:
    """Law: a request signed again has only the rest of its time-out."""
    times: list[float] = []

    async def refuse(address: str, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        times.append(timeout_s)
        await asyncio.sleep(0.02)
        return command.reply(1, ext={SERVER: f"mark {len(times)}"})

    for timeout_s in (1.0, 0.01):
        signer = RequestSigner("ann", "secret of ann")
        assert (await signer.invoke(refuse, "one", request(17), timeout_s)).code == 1

    first, second, third = times
    assert (first, third) == (1.0, 0.01)
    assert second <= 0.98


async def test_who_has_no_key_sends_once() -> None:
    """Law: without a key a request is sent once."""
    sent: list[str] = []

    async def refuse(address: str, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        sent.append(address)
        return command.reply(1, ext={SERVER: "mark"})

    await RequestSigner("", "").invoke(refuse, "one", request(17), 1.0)

    assert sent == ["one"]
