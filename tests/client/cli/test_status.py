"""`orderlymq status` reports a broker group that no name server knows any more."""

import asyncio
import json

from click.testing import CliRunner

from orderlymq.cli import cli
from orderlymq_protocol.codes import RequestCode, ResponseCode
from tests.client.fakecluster import BROKER, refuse, running


async def test_a_group_that_is_gone_is_not_healthy() -> None:
    """Law: a broker group that queue lists name but no name server knows makes the cluster unhealthy."""
    led = {"leader": 1, "role": "leader", "term": 1}
    for declared, code, leaders in (
        ({"orders": f"{BROKER}:4"}, 0, {BROKER: 1}),
        ({"orders": f"{BROKER}:4;broker-b:4"}, 1, {BROKER: 1, "broker-b": None}),
    ):
        async with running(topics={"orders": 4}, declared=declared) as cluster:
            cluster.faults[RequestCode.ORDERLYMQ_GROUP_STATUS] = [
                lambda command, _: command.reply(body=json.dumps(led).encode())
            ] * 2
            results = [
                await asyncio.to_thread(
                    CliRunner().invoke,
                    cli,
                    ["status", "--name-server", cluster.address, "--output", output],
                )
                for output in ("json", "text")
            ]

        assert [each.exit_code for each in results] == [code, code]
        found = json.loads(results[0].stdout)
        assert {each["group"]: each["leader"] for each in found["groups"]} == leaders
        assert found["healthy"] is (code == 0)
        assert all(name in results[1].stdout for name in leaders)


async def test_a_group_that_does_not_answer_is_reported_with_its_reason() -> None:
    """Law: a broker group that does not answer is reported on stderr with its reason."""
    async with running(topics={"orders": 4}) as cluster:
        denied = refuse(ResponseCode.SYSTEM_ERROR, "No accessKey is configured")
        cluster.faults[RequestCode.ORDERLYMQ_GROUP_STATUS] = [denied]
        text = await asyncio.to_thread(
            CliRunner().invoke, cli, ["status", "--name-server", cluster.address]
        )

    assert text.exit_code == 1
    assert f"({BROKER}: code 1 from {cluster.address}: No accessKey is configured)" in text.stderr


async def test_a_missing_right_is_not_taken_for_a_missing_leader() -> None:
    """Law: if only rights are missing, the status says so and names the cure, not the brokers' logs."""
    async with running(topics={"orders": 4}) as cluster:
        denied = refuse(ResponseCode.SYSTEM_ERROR, "AclException: No accessKey is configured")
        cluster.faults[RequestCode.ORDERLYMQ_GROUP_STATUS] = [denied]
        text = await asyncio.to_thread(
            CliRunner().invoke, cli, ["status", "--name-server", cluster.address]
        )

    assert text.exit_code == 1
    assert "No accessKey is configured" in text.stderr
    assert "ORDERLYMQ_ACCESS_KEY" in text.stderr
    assert not any(each in text.stderr for each in ("has a leader", "logs"))


async def test_rates_stand_in_a_table_of_their_own() -> None:
    """Law: rates have their own table with readable headings, one line per broker group."""
    told = {"leader": 1, "rates": {"entriesPerSecond": 12.5, "framesOutPerSecond": 0.0}}
    async with running(topics={"orders": 4}) as cluster:
        cluster.faults[RequestCode.ORDERLYMQ_GROUP_STATUS] = [
            lambda command, _: command.reply(body=json.dumps(told).encode())
        ]
        text = await asyncio.to_thread(
            CliRunner().invoke, cli, ["status", "--name-server", cluster.address]
        )

    lines = [line.split() for line in text.stdout.splitlines()]
    assert ["BROKER", "GROUP", "ENTRIES/s", "FRAMES", "OUT/s"] in lines
    assert [BROKER, "12.5", "0.0"] in lines
    assert "PerSecond" not in text.stdout


async def test_queues_that_stand_still_end_the_status() -> None:
    """Law: the status ends with the blocked queues and the command that shows them."""
    rows = [{"group": "ship", "topic": "orders", "queue": queue} for queue in (1, 2)]
    told = {"leader": 1, "watch": {"blocked": [*rows, {**rows[0], "group": "bill"}]}}
    async with running(topics={"orders": 4}) as cluster:
        cluster.faults[RequestCode.ORDERLYMQ_GROUP_STATUS] = [
            lambda command, _: command.reply(body=json.dumps(told).encode())
        ]
        text = await asyncio.to_thread(
            CliRunner().invoke, cli, ["status", "--name-server", cluster.address]
        )

    assert text.exit_code == 0
    assert text.stdout.splitlines()[-2:] == [
        "1 blocked queue: `orderlymq group show bill`",
        "2 blocked queues: `orderlymq group show ship`",
    ]
