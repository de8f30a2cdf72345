"""`group list` sends few requests; the lag of a group without commits is unknown, not zero."""

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

from orderlymq.cli import cli
from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.groups import total_lag
from orderlymq_protocol.body.catalogue import (
    ConsumeStats,
    OffsetWrapper,
    SubscriptionGroupTable,
)
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import Fault, refuse, running

QUEUE = MessageQueue("orders", "g", 0)


def test_a_lag_is_the_sum_over_queues_that_are_known() -> None:
    """Law: lag is the sum over known queues; a subscribed topic without offsets makes it unknown."""
    progress = {QUEUE: OffsetWrapper(7, 5, 0), QUEUE._replace(queue_id=1): OffsetWrapper(3, 3, 0)}

    assert total_lag(progress, ["orders", "%RETRY%billing"]) == 2
    assert total_lag(progress, []) == 2
    assert total_lag(progress, ["orders", "parcels"]) is None
    assert total_lag({}, ["orders"]) is None
    assert total_lag({}, []) is None


async def test_a_list_of_groups_asks_once_for_brokers_and_locks() -> None:
    """Law: a list of groups asks once for brokers and locks, however many groups there are."""
    names = [f"group-{number}" for number in range(40)]
    lock = {"consumerGroup": names[3], "topic": "orders", "brokerName": "broker-a", "clientId": "c"}
    locks = [lock | {"queueId": number, "epoch": 1} for number in range(2)]
    table = SubscriptionGroupTable({name: SubscriptionGroupConfig(name) for name in names})
    async with running(topics={"orders": 1}) as cluster:
        cluster.faults |= {
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: [says(table.to_json())],
            RequestCode.ORDERLYMQ_LOCK_TABLE: [says(json.dumps({"locks": locks}).encode())],
            RequestCode.GET_CONSUMER_CONNECTION_LIST: [refuse(ResponseCode.CONSUMER_NOT_ONLINE)]
            * 40,
            RequestCode.GET_CONSUME_STATS: [says(b'{"offsetTable":{}}')] * 40,
        }

        listed = await asyncio.to_thread(
            CliRunner().invoke, cli, ["group", "list", "--json", "--name-server", cluster.address]
        )

    assert listed.exit_code == 0, listed.output
    shown = json.loads(listed.stdout)
    assert [each["group"] for each in shown] == sorted(names)
    assert [each["group"] for each in shown if each["ordered"]] == [names[3]]
    for code in (RequestCode.ORDERLYMQ_LOCK_TABLE, RequestCode.GET_BROKER_CLUSTER_INFO):
        assert cluster.codes().count(code) == 1


async def test_a_list_names_all_groups_and_asks_about_a_bounded_number() -> None:
    """Law: a list names all groups but asks about a limited number; for the others members and lag are missing,
    with a note.
    """
    names = [f"group-{number:02}" for number in range(40)]
    table = SubscriptionGroupTable({name: SubscriptionGroupConfig(name) for name in names})
    absent = refuse(ResponseCode.CONSUMER_NOT_ONLINE)
    async with running(topics={"orders": 1}) as cluster:
        cluster.faults |= {
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: [says(table.to_json())] * 2,
            RequestCode.ORDERLYMQ_LOCK_TABLE: [says(b'{"locks":[]}')] * 2,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: [absent] * 40,
            RequestCode.GET_CONSUME_STATS: [says(b'{"offsetTable":{}}')] * 40,
        }
        base = ["group", "list", "--json", "--name-server", cluster.address]

        cut = await asyncio.to_thread(CliRunner().invoke, cli, [*base, "--details", "3"])
        some = await asyncio.to_thread(CliRunner().invoke, cli, [*base, "--match", "p-1"])

    shown = {each["group"]: each["members"] for each in json.loads(cut.stdout)}
    assert shown == {name: 0 if name < "group-03" else None for name in names}
    assert "members and lag of 37 groups are not shown" in cut.stderr
    assert [each["group"] for each in json.loads(some.stdout)] == names[10:20]
    assert some.stderr == ""
    assert cluster.codes().count(RequestCode.GET_CONSUMER_CONNECTION_LIST) == 13


async def test_the_lag_of_a_group_by_key_is_what_it_has_not_consumed() -> None:
    """Law: the lag of a group by key counts messages that are not completed,
    because a held lane stops its committed offset.
    """
    table = SubscriptionGroupTable({"billing": SubscriptionGroupConfig("billing")})

    def answer(command: RemotingCommand, _: Connection) -> RemotingCommand:
        offsets = OffsetWrapper(60, 2, backlog=4 if "orderlymq" in command.ext else None)
        return command.reply(body=ConsumeStats({QUEUE: offsets}).to_json())

    async with running(topics={"orders": 1}) as cluster:
        cluster.faults |= {
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: [says(table.to_json())],
            RequestCode.ORDERLYMQ_LOCK_TABLE: [says(b'{"locks":[]}')],
            RequestCode.GET_CONSUMER_CONNECTION_LIST: [refuse(ResponseCode.CONSUMER_NOT_ONLINE)],
            RequestCode.GET_CONSUME_STATS: [answer],
        }
        words = ["group", "list", "--json", "--name-server", cluster.address]
        listed = await asyncio.to_thread(CliRunner().invoke, cli, words)

    assert [each["lag"] for each in json.loads(listed.stdout)] == [4]


@pytest.mark.parametrize(
    "command", [("show",), ("parked",), ("release", "--topic", "orders", "--key", "k")]
)
async def test_a_group_is_missing_only_where_every_broker_was_asked(
    command: tuple[str, ...],
) -> None:
    """Law: a group counts as missing only if every broker group was asked."""
    empty = SubscriptionGroupTable({}).to_json()
    found = []
    for away in ("", ";broker-b:1"):
        declared = {"orders": f"broker-a:1{away}"}
        async with running(topics={"orders": 1}, declared=declared) as cluster:
            cluster.faults |= {
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: [says(empty)],
                RequestCode.ORDERLYMQ_PARKED_KEYS: [says(b'{"parkedKeys":[]}')],
                RequestCode.GET_CONSUMER_CONNECTION_LIST: [
                    refuse(ResponseCode.CONSUMER_NOT_ONLINE)
                ],
            }
            name, *options = command
            words = ["group", name, "biling", *options, "--name-server", cluster.address]
            found.append(await asyncio.to_thread(CliRunner().invoke, cli, words))

    assert [each.exit_code for each in found] == [ExitCode.NOT_FOUND, ExitCode.UNREACHABLE]
    assert "there is no consumer group biling" in found[0].output
    assert "broker-b, which is not registered now" in found[1].output


async def test_a_key_is_not_parked_only_where_every_broker_was_asked() -> None:
    """Law: "no parked key" is said only if every broker group was asked."""
    known, found = SubscriptionGroupTable({"billing": SubscriptionGroupConfig("billing")}), []
    for away in ("", ";broker-b:1"):
        declared = {"orders": f"broker-a:1{away}"}
        async with running(topics={"orders": 1}, declared=declared) as cluster:
            cluster.faults |= {
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: [says(known.to_json())],
                RequestCode.ORDERLYMQ_RELEASE_KEY: [says(b'{"parkedKeys":[]}')],
            }
            words = ["group", "release", "billing", "--topic", "orders", "--key", "k"]
            words += ["--name-server", cluster.address]
            found.append(await asyncio.to_thread(CliRunner().invoke, cli, words))

    assert [each.exit_code for each in found] == [ExitCode.NOT_FOUND, ExitCode.UNREACHABLE]
    assert "group billing has not parked key k of topic orders" in found[0].output
    assert "broker-b, which is not registered now" in found[1].output


async def delete_group(known: str, *answers: Fault, words: tuple[str, ...] = ("--yes",)) -> Any:
    """Return what `group delete billing` did with a known group, and the codes of its requests."""
    table = SubscriptionGroupTable({known: SubscriptionGroupConfig(known)}).to_json()
    async with running(topics={"orders": 1}) as cluster:
        cluster.faults |= {
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: [says(table)],
            RequestCode.GET_CONSUMER_CONNECTION_LIST: [refuse(ResponseCode.CONSUMER_NOT_ONLINE)],
            RequestCode.ORDERLYMQ_LOCK_TABLE: [says(b'{"locks":[]}')],
            RequestCode.DELETE_SUBSCRIPTIONGROUP: list(answers),
        }
        run = ["group", "delete", "billing", *words, "--name-server", cluster.address]
        done = await asyncio.to_thread(CliRunner().invoke, cli, run, input="n\n")
        return done, cluster.codes()


async def test_a_group_is_deleted_like_a_topic() -> None:
    """Law: a deletion of a group prints its result, as text and as JSON."""
    text, _ = await delete_group("billing", says(b""))
    as_json, _ = await delete_group("billing", says(b""), words=("--yes", "--output", "json"))

    assert (text.exit_code, text.stdout) == (0, "Deleted billing.\n"), text.output
    assert json.loads(as_json.stdout) == {"group": "billing", "deleted": True}


async def test_the_deletion_of_a_group_is_confirmed() -> None:
    """Law: a deletion is confirmed first; a "no" changes nothing."""
    done, codes = await delete_group("billing", words=())

    assert done.exit_code == ExitCode.FAILED
    assert "Delete the consumer group billing with its offsets?" in done.stderr
    assert RequestCode.DELETE_SUBSCRIPTIONGROUP not in codes


async def test_no_other_group_than_one_that_is_there_is_deleted() -> None:
    """Law: an unknown group is not deleted; the nearest name is shown."""
    done, codes = await delete_group("biling")

    assert done.exit_code == ExitCode.NOT_FOUND
    assert "there is no consumer group billing; did you mean biling?" in done.stderr
    assert RequestCode.DELETE_SUBSCRIPTIONGROUP not in codes


async def test_a_group_that_is_in_use_says_what_to_do() -> None:
    """Law: a group in use is refused with the broker's advice."""
    done, _ = await delete_group(
        "billing", refuse(ResponseCode.ORDERLYMQ_GROUP_IN_USE, "in use: stop its consumers")
    )

    assert done.exit_code == ExitCode.FAILED
    assert "code 20517" in done.stderr
    assert "stop its consumers" in done.stderr


def says(body: bytes) -> Fault:
    """Answer a request with this body."""

    def answer(command: RemotingCommand, _: Connection) -> RemotingCommand:
        return command.reply(body=body)

    return answer
