"""`orderlymq tail` waits for a leader if a queue cannot be read, and for nothing else."""

import asyncio

import pytest
from click.testing import CliRunner, Result

from orderlymq.cli import cli, tail
from orderlymq_protocol.body.catalogue import BrokerData, QueueData, TopicRouteData
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.message.properties import encode_properties
from orderlymq_protocol.message.sysflag import COMPRESSED
from tests.client.fakecluster import BROKER, FakeCluster, refuse, reset, running


async def run(cluster: FakeCluster, *arguments: str) -> Result:
    return await asyncio.to_thread(
        CliRunner().invoke, cli, [*arguments, "--name-server", cluster.address]
    )


async def test_a_broker_that_does_not_answer_is_one_sentence() -> None:
    """Law: a broker that does not answer ends it with code 4 and one sentence."""
    route = TopicRouteData(
        (QueueData(BROKER, 2, 2, 6),), (BrokerData("fake", BROKER, {0: "127.0.0.1:1"}),), None
    )
    async with running(topics={"T": 2}) as cluster:
        cluster.faults[RequestCode.GET_ROUTEINFO_BY_TOPIC] = [
            lambda command, _: command.reply(body=route.to_json())
        ]

        result = await run(cluster, "tail", "T")

    assert result.exit_code == 4, result.exception
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 2


async def test_a_topic_that_is_deleted_and_a_right_that_is_taken_end_it() -> None:
    """Law: a deleted topic and a lost right end it."""
    for code, end in ((ResponseCode.TOPIC_NOT_EXIST, 3), (ResponseCode.NO_PERMISSION, 1)):
        async with running(topics={"T": 1}) as cluster:
            cluster.faults[RequestCode.PULL_MESSAGE] = [refuse(code, "taken away")] * 100

            result = await run(cluster, "tail", "T", "--for", "20s")

        assert result.exit_code == end, result.exception
        assert "taken away" in result.stderr


async def test_a_lost_leader_is_reported_once_and_waited_for() -> None:
    """Law: a lost leader is reported once, and messages that come later are printed."""
    follower = refuse(ResponseCode.SYSTEM_ERROR, "this replica does not lead group g")
    deleted = refuse(ResponseCode.TOPIC_NOT_EXIST, "deleted")
    async with running(topics={"T": 1}) as cluster:
        cluster.append("T", 0, b"late")
        cluster.faults[RequestCode.PULL_MESSAGE] = [reset, follower, cluster.serve, deleted]

        result = await run(cluster, "tail", "T", "--for", "50s")

    assert result.exit_code == 3, result.exception
    assert "late" in result.stdout
    assert result.stderr.count("Warning: ") == 1


async def test_a_body_that_cannot_be_inflated_is_reported_and_left_out() -> None:
    async with running(topics={"T": 1}) as cluster:
        cluster.append("T", 0, b"first")
        cluster.append("T", 0, b"no zlib stream", sys_flag=COMPRESSED)
        cluster.append("T", 0, b"third")

        result = await run(cluster, "tail", "T", "--no-follow")

    assert result.exit_code == 0, result.exception
    assert "first" in result.stdout
    assert "third" in result.stdout
    assert result.stderr.count("Warning: the body of the message at offset 1") == 1


async def test_a_number_of_lines_counts_what_matches() -> None:
    """Law: the last N lines are those that match key or tag, however far back they are."""
    async with running(topics={"T": 1}) as cluster:
        for number in range(2_500):
            mine = number % 500 == 0
            properties = {"KEYS": "x", "__SHARDINGKEY": "mine" if mine else "other"}
            properties["TAGS"] = "rare" if mine else "usual"
            cluster.append("T", 0, f"m{number}".encode(), encode_properties(properties))

        by_key = await run(cluster, "tail", "T", "--key", "mine", "-n", "3", "--no-follow")
        by_tag = await run(cluster, "tail", "T", "--filter", "rare", "-n", "2", "--no-follow")
        every = await run(cluster, "tail", "T", "--key", "mine", "-n", "50", "--no-follow")

    assert [line.split()[-1] for line in by_key.stdout.splitlines()] == ["m1000", "m1500", "m2000"]
    assert [line.split()[-1] for line in by_tag.stdout.splitlines()] == ["m1500", "m2000"]
    assert len(every.stdout.splitlines()) == 5
    assert every.stderr == ""


async def test_a_search_backwards_ends_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a backward search is bounded and says where it ended."""
    monkeypatch.setattr(tail, "READ_MAX", 100)
    async with running(topics={"T": 1}) as cluster:
        for number in range(250):
            cluster.append("T", 0, f"m{number}".encode())

        found = await run(cluster, "tail", "T", "--key", "none", "--no-follow")

    assert found.stdout == ""
    assert "Note: in queue 0 of broker-a 0 messages match from offset 150 on" in found.stderr
