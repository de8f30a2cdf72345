"""Signatures against the vectors of RocketMQ's ACL hook."""

from orderlymq.connection.signatures import RequestSigner, signed
from orderlymq_protocol.frame.command import request
from orderlymq_protocol.signature import SERVER, verified


def _sign(ext: dict[str, str], body: bytes, access_key: str = "RocketMQ") -> dict[str, str]:
    return signed(ext, body, access_key=access_key, secret_key="12345678", token="")


def test_the_known_vectors() -> None:
    """Wire 4.10: values in the order of their names, then the body; HMAC-SHA1."""
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
    """ACL-01: `token=`."""
    ext = signed({"a": "1"}, b"", access_key="", secret_key="", token="secret")

    assert ext == {"a": "1", "SecurityToken": "secret"}


def test_version_2_is_made_first_and_covered_by_rocketmqs() -> None:
    """A server that strips our fields, or changes one, breaks RocketMQ's signature, too; signing again replaces both."""
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


def test_a_mark_that_a_refusal_names_is_signed_for() -> None:
    """A leader's mark counts for its address alone."""
    signer = RequestSigner("ann", "secret of ann")
    command = request(17)
    signer.sign("one", command)

    assert signer.learn("one", command.reply(1, ext={SERVER: "mark"}), command)
    signer.sign("one", command)
    assert verified(command, [b"secret of ann"]).server == "mark"
    signer.sign("two", command)
    assert verified(command, [b"secret of ann"]).server == ""
