"""`orderlymq consume` when it can get nothing: it says so instead of looking like an empty topic."""

import asyncio
import sys
import time

import pytest

from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import FakeCluster, refuse, reset, running


async def consume(cluster: FakeCluster, *arguments: str) -> tuple[int | None, str, str]:
    """Run the command, which handles signals; return its code and output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "orderlymq", "consume", "T", *arguments),
        *("--name-server", cluster.address),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize(
    ("request_code", "arguments"),
    [
        (RequestCode.HEART_BEAT, []),
        (RequestCode.PULL_MESSAGE, []),
        (RequestCode.LOCK_BATCH_MQ, ["--ordered"]),
        (RequestCode.QUERY_CONSUMER_OFFSET, ["--ordered"]),
    ],
)
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ResponseCode.NO_PERMISSION, "reader has no right SUB on topic T"),
        (ResponseCode.SYSTEM_ERROR, "org.apache.rocketmq.acl.common.AclException: No permission"),
    ],
)
async def test_a_refusal_ends_it_immediately_with_the_brokers_words(
    code: ResponseCode, words: str, request_code: RequestCode, arguments: list[str]
) -> None:
    """Law: a refusal ends it immediately with the broker's words and code 1."""
    began = time.monotonic()
    async with running(topics={"T": 1}) as cluster:
        cluster.faults[request_code] = [refuse(code, words)] * 1_000

        ended, _, err = await consume(cluster, "--for", "60s", *arguments)

    assert ended == 1, err
    assert f"Error: code {code}" in err
    assert words in err
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("kind", [[], ["--ordered"]], ids=["concurrent", "ordered"])
async def test_a_text_that_the_output_cannot_encode_is_shown_by_its_number(
    monkeypatch: pytest.MonkeyPatch, kind: list[str]
) -> None:
    """Law: a text that the output cannot encode is printed as a number, and its message is committed."""
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    async with running(topics={"T": 1}, ordered=True) as cluster:
        cluster.append("T", 0, "10 \N{EURO SIGN}".encode())

        code, out, err = await consume(cluster, "--from", "earliest", "--max", "1", *kind)

    assert code == 0, err
    assert r"10 \u20ac" in out
    assert cluster.offsets["orderlymq-cli", "T", 0] == 1
    assert RequestCode.CONSUMER_SEND_MSG_BACK not in cluster.codes()


async def test_a_lost_broker_is_a_warning_and_no_end() -> None:
    """Law: a lost broker causes one warning; messages that come later are printed."""
    async with running(topics={"T": 1}) as cluster:
        cluster.append("T", 0, b"late")

        def lose(command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
            if command.ext["topic"] != "T":
                return cluster.serve(command, conn)
            reset(command, conn)
            return None

        cluster.faults[RequestCode.PULL_MESSAGE] = [lose] * 5

        code, out, err = await consume(cluster, "--from", "earliest", "--max", "1", "--for", "30s")

    assert code == 0, err
    assert "late" in out
    assert err.count("is lost and will be retried") == 1
    assert err.count("is back after") == 1
