"""Signatures against the vectors of RocketMQ's ACL hook."""

from orderlymq.connection.signatures import signed


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
