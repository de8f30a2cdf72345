"""Help without imports, completion, nearest names, `tail`, `explain` and `--json`."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from orderlymq.blocking import AdminClient, Consumer, Producer
from orderlymq.cli import cli, table
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.message import Message, ReceivedMessage
from orderlymq.settings import ClientSettings
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_testing.cluster import Cluster
from orderlymq_testing.plugin import orderlymq_cluster

__all__ = ["orderlymq_cluster"]

HEAVY = (
    "aiohttp",
    "rich",
    "pydantic",
    "rocksdict",
    "orderlymq_broker.doctor.command",
    "orderlymq.admin",
    "asyncio",
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_help_and_completion_import_no_command() -> None:
    """Law: `--help` and completion import no command, so that they take less than 0.3 s."""
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from orderlymq.cli import cli\n"
        "text = CliRunner().invoke(cli, ['--help']).output\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
        "print(text)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout

    imported, _, text = found.partition("\n")
    assert imported == "[]"
    for name, words in (
        ("status", "broker groups"),
        ("up", "Start the cluster"),
        ("tail", "last N"),
    ):
        assert any(name in line and words in line for line in text.splitlines()), name


def test_completion_prints_a_script_and_completes_commands() -> None:
    """Law: completion prints a script for each shell and completes commands with their help."""
    for shell, word in (("bash", "complete"), ("zsh", "compdef"), ("fish", "complete")):
        assert word in run("completion", shell).output
    answer = CliRunner().invoke(
        cli,
        prog_name="orderlymq",
        env={
            "_ORDERLYMQ_COMPLETE": "bash_complete",
            "COMP_WORDS": "orderlymq st",
            "COMP_CWORD": "1",
        },
    )
    assert "status" in answer.output


def test_an_unknown_command_is_answered_with_the_nearest() -> None:
    """Law: an unknown command is answered with the nearest one and code 2."""
    answer = run("statsu")

    assert answer.exit_code == 2
    assert "there is no command statsu; did you mean status?" in answer.output


def test_a_command_of_another_distribution_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a command of another package is answered with the package to install and code 2."""
    monkeypatch.setattr(table, "_plugins", dict)

    answer = run("console")

    assert answer.exit_code == 2
    assert "the command console comes with orderlymq-console; install it" in answer.output


def test_the_help_of_subcommands_has_whole_sentences() -> None:
    """Law: the help of each group of commands shows whole sentences, none cut with an ellipsis."""
    for name in ("backup", "group", "message", "pipeline", "topic"):
        answer = run(name, "--help")

        assert answer.exit_code == 0
        assert "..." not in answer.output.partition("Commands:")[2], name


def send_orders(count: int = 6) -> None:
    with Producer() as producer:
        for number in range(count):
            producer.send("orders", f"m{number}", key=f"k{number % 2}")


def test_names_that_do_not_exist_are_answered_with_the_nearest(orderlymq_cluster: Cluster) -> None:
    """Law: an unknown topic or group is answered with the nearest name and code 3."""
    orderlymq_cluster.create_topic("orders")
    at = ["--name-server", orderlymq_cluster.name_server]

    topic = run("topic", "show", "order", *at)
    far = run("topic", "show", "zzz", *at)

    assert topic.exit_code == far.exit_code == 3
    assert "topic order does not exist; did you mean orders?" in topic.output
    assert "`orderlymq topic list` shows what exists" in far.output


def test_tail_shows_the_last_messages_and_takes_nothing_from_consumers(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: `tail` shows the last messages, also by key, and takes nothing from consumers; JSON is line by line."""
    orderlymq_cluster.create_topic("orders", queues=1)
    send_orders()
    at = ["--name-server", orderlymq_cluster.name_server]

    text = run("tail", "orders", "-n", "2", "--no-follow", *at)
    keyed = run("tail", "orders", "--key", "k1", "--for", "300ms", "--json", *at)
    group = run("group", "list", "--json", *at)
    missed = run("message", "find", "--topic", "orders", "--key", "k1", *at)

    assert [line.split()[-1] for line in text.output.splitlines()] == ["m4", "m5"]
    assert [json.loads(line)["body"] for line in keyed.output.splitlines()] == ["m1", "m3", "m5"]
    assert json.loads(group.output) == []
    assert "`orderlymq tail orders --key k1` shows its messages" in missed.stderr


def test_json_of_all_commands_names_a_place_alike(orderlymq_cluster: Cluster) -> None:
    """Law: the JSON of all commands names places with the same fields; `group` is a consumer group."""
    orderlymq_cluster.create_topic("orders", queues=1)
    at = ["--name-server", orderlymq_cluster.name_server, "--json"]

    def data(*arguments: str) -> Any:
        return json.loads(run(*arguments, *at).stdout)

    sent = data("send", "orders", "hi", "--key", "k")
    data("group", "set", "billing")
    place = {"topic": "orders", "brokerGroup": sent["brokerGroup"], "queue": 0, "offset": 0}
    (moved,) = data("group", "reset", "billing", "--topic", "orders", "--to", "earliest")
    found = [
        sent,
        moved,
        data("tail", "orders", "--no-follow"),
        data("message", "show", sent["messageId"], "--topic", "orders"),
    ]
    of_queue = [
        data("topic", "show", "orders")["queues"][0],
        data("group", "show", "billing")["queues"][0],
        data("explain", "orders", "k"),
    ]

    assert [{name: each.get(name) for name in place} for each in found] == [place] * 4
    assert all("group" not in each for each in found)
    assert {(each["brokerGroup"], each["queue"]) for each in of_queue} == {
        (place["brokerGroup"], 0)
    }
    assert data("topic", "list")[0]["brokerGroups"] == [place["brokerGroup"]]


def test_explain_shows_queue_holder_and_what_is_ahead(orderlymq_cluster: Cluster) -> None:
    """Law: `explain` shows queue, holder and the messages ahead, while a listener holds the queue."""
    orderlymq_cluster.create_topic("orders", queues=1)
    send_orders()
    at = ["--name-server", orderlymq_cluster.name_server]

    soon = ClientSettings(persist_consumer_offset_interval=0.05)
    with Consumer(
        "billing", topics="orders", ordered=True, consume_from="first", client_settings=soon
    ) as consumer:
        messages = iter(consumer)
        seen: list[ReceivedMessage] = [next(messages), next(messages)]
        deadline = time.monotonic() + 30
        data: dict[str, Any] = {"groups": []}
        while not any(each["committed"] for each in data["groups"]):
            assert time.monotonic() < deadline
            data = json.loads(run("explain", "orders", "k1", "--json", *at).output)
        text = run("explain", "orders", "k1", *at).output
        listed, shown = (
            run("group", "list", *at).output,
            run("group", "show", "billing", *at).output,
        )
        limit = ["group", "set", "billing", "--retry-max-times", "2", *at]
        noted, noted_json = run(*limit).output, run(*limit, "--json").output
        holder = consumer.client_id
    made = run("group", "set", "biling", "--concurrency", "key", *limit[3:])
    by_key, wrong = made.output, run("group", "set", "bil ling", *at)

    assert "Note: the group consumes in order by queue, where retryMaxTimes has no effect" in noted
    assert "max_reconsume_times" in json.loads(noted_json)["note"]
    assert "has no effect" not in by_key
    assert "Note: this created the group biling; did you mean billing?" in made.stderr
    assert "this created" not in noted
    assert (wrong.exit_code, "the group name 'bil ling'" in wrong.stderr) == (2, True)
    assert [message.text for message in seen] == ["m0", "m1"]
    assert listed.splitlines()[-1].split()[:3] == ["billing", "ordered", "1"]
    assert shown.startswith("billing: ordered, 1 member, lag ")
    assert (data["queue"], data["queues"], data["ordered"], data["maxOffset"]) == (0, 1, True, 6)
    assert "one of 1; the queue stores 6 messages, offsets 0 to 5." in text
    assert holder in text
    assert "BROKER GROUP" in shown
    assert "CONSUMER GROUP" in text
    (group,) = data["groups"]
    assert (group["group"], group["holder"], group["parked"]) == ("billing", holder, "no")
    assert [group[name] for name in ("committed", "nextOfKey", "ahead", "waiting")] == [1, 1, 0, 5]


def test_a_group_that_took_locks_is_consumed_without_order_once_it_is_declared(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a group that took locks may be declared concurrent only while no queue is locked;
    later edits by tools do not undo that.
    """
    orderlymq_cluster.create_topic("orders", queues=1)
    send_orders()
    at = ["--name-server", orderlymq_cluster.name_server]
    declare = ("group", "set", "billing", "--ordering", "concurrent", "--json", *at)

    with Consumer("billing", topics="orders", ordered=True, consume_from="first") as consumer:
        assert next(iter(consumer)).queue_offset == 0
        assert "hold queue locks (" in run(*declare).output
    assert json.loads(run(*declare).output)["declaredConcurrent"]
    assert "declared concurrent" in run("group", "set", "billing", *at).output

    with Consumer("billing", topics="orders", ordered=False) as consumer:
        assert next(iter(consumer)).queue_offset <= 1
    changed = run("group", "set", "billing", "--concurrency", "key", *at)
    assert (changed.exit_code, "declared" in changed.output) == (0, False), changed.output


def test_two_administrators_who_set_one_group_together_undo_nothing(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: two administrators who change different fields of a group at the same time do not undo each other."""
    at = ["--name-server", orderlymq_cluster.name_server]
    run("group", "set", "billing", *at)
    with AdminClient() as admin:
        before = admin.groups()["billing"]
        run("group", "set", "billing", "--concurrency", "key", "--on-dead-letter", "hold-key", *at)
        admin.set_group(replace(before, retry_max_times=2), only=["retry_max_times"])
        run("group", "set", "billing", "--retry-max-times", "3", *at)
        admin.set_group(replace(before, consume_timeout_minute=7), only=["consume_timeout_minute"])
        found = admin.groups()["billing"]

    assert (found.concurrency, found.on_dead_letter) == ("Key", "HoldKey")
    assert (found.retry_max_times, found.consume_timeout_minute) == (3, 7)


def test_a_group_gets_pauses_between_the_tries_of_a_message(orderlymq_cluster: Cluster) -> None:
    """Law: a group's pauses between tries are set with time units; without effect a note is printed,
    and a wrong one is refused.
    """
    at = ["--name-server", orderlymq_cluster.name_server]
    key = run("group", "set", "billing", "--concurrency", "key", "--retry-pause", "250ms", *at)
    most = run("group", "set", "billing", "--retry-pause-max", "10m", *at)
    queue = run("group", "set", "audit", "--retry-pause", "2s", *at)
    wrong = run("group", "set", "billing", "--retry-pause", "11m", *at)

    assert (key.exit_code, most.exit_code, queue.exit_code) == (0, 0, 0)
    assert "pauses between tries 0.25 to 600 s" in most.output
    assert "where each consumer sets its own pauses between tries" in queue.output
    assert (wrong.exit_code, "not valid: choose 1 to 86400000" in wrong.output) == (1, True)


def test_explain_shows_the_lane_of_a_key(orderlymq_cluster: Cluster) -> None:
    """Law: for a group by key, `explain` shows the lane: who has it in hand, whether it is idle, or not looked at yet."""
    orderlymq_cluster.create_topic("orders", queues=1)
    send_orders()
    at = ["--name-server", orderlymq_cluster.name_server]
    assert run("group", "set", "billing", "--concurrency", "key", *at).exit_code == 0

    with Consumer("billing", topics="orders", ordered="key", consume_from="first") as consumer:
        first = next(iter(consumer))
        key, offset = first.key, first.queue_offset
        (group,) = json.loads(run("explain", "orders", str(key), "--json", *at).output)["groups"]
        text = run("explain", "orders", str(key), *at).output
        (other,) = json.loads(run("explain", "orders", "none", "--json", *at).output)["groups"]
        holder = consumer.client_id

    assert (group["concurrency"], group["holder"], group["lane"]["state"]) == (
        "Key",
        holder,
        "inHand",
    )
    assert (group["nextOfKey"], group["ahead"], group["parked"]) == (offset, 0, "no")
    assert f"in hand of {holder}" in text
    assert (other["lane"], other["nextOfKey"]) == (None, None)


def test_a_lane_is_released_at_its_offset_however_its_broker_names_it(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a lane is released at its offset, also if its key is shown shortened or empty; another offset is refused."""
    orderlymq_cluster.create_topic("orders", queues=2)
    at = ["--topic", "orders", "--name-server", orderlymq_cluster.name_server]
    key = "k" * 2_000

    def listener(_: Sequence[ReceivedMessage], context: OrderedContext) -> None:
        context.suspend_current_queue_time = 600
        raise ValueError("no such account")

    with AdminClient() as admin, Producer() as producer:
        admin.set_group(SubscriptionGroupConfig("billing", concurrency="Key"))
        producer.send(Message(topic="orders", body=b"1", key=key))
        with Consumer(
            "billing", topics="orders", ordered="key", consume_from="first", listener=listener
        ):
            while not any(each.parked for each in admin.lanes("billing").queues):
                time.sleep(0.05)
    release = ["group", "release", "billing", "--key", key, *at, "--offset"]
    other, found = run(*release, "1"), run(*release, "0")

    assert (other.exit_code, found.exit_code) == (3, 0), found.output
    assert "the lane continues at offset 0" in found.output


def test_explain_says_nothing_of_lanes_that_go_by_another_property(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: if lanes go by another property, `explain` says nothing about the key's lane."""
    orderlymq_cluster.create_topic("orders", queues=1)
    at = ["--name-server", orderlymq_cluster.name_server]
    group = SubscriptionGroupConfig("billing", concurrency="Key", lane_key_property="order")
    with AdminClient() as admin, Producer() as producer:
        admin.set_group(group)
        producer.send(Message(topic="orders", body=b"1", key="alice", properties={"order": "o1"}))
        with Consumer("billing", topics="orders", ordered="key", consume_from="first") as consumer:
            next(iter(consumer))
            (found,) = json.loads(run("explain", "orders", "alice", "--json", *at).output)["groups"]
            text = run("explain", "orders", "alice", *at).output

    known = {name: found[name] for name in ("concurrency", "committed", "waiting", "laneProperty")}
    assert known == {"concurrency": "Key", "committed": 0, "waiting": 1, "laneProperty": "order"}
    assert {found[name] for name in ("nextOfKey", "ahead", "parked", "holder", "lane")} == {None}
    assert "billing consumes by key: its lanes are assigned by the message property order" in text


@pytest.mark.parametrize(
    ("text", "ok"), [("250ms", True), ("5", True), ("1h", True), ("5x", False)]
)
def test_times_are_read_with_their_unit(text: str, ok: bool) -> None:
    """Law: times need a unit; wrong ones are refused before anything is asked."""
    answer = run("send", "T", "x", "--timeout", text, "--name-server", "127.0.0.1:1")

    assert (answer.exit_code == 2) is not ok
    assert ("write 5s, 250ms" in answer.output) is not ok
