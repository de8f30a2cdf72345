"""Dead letters: their origins, their report, and a redrive that keeps the order and repeats nothing."""

import json
import shutil
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import randbytes
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq.admin.messages import redriven, redrives_of
from orderlymq.blocking import AdminClient, Consumer, PullConsumer
from orderlymq.consumer.core.events import OrderedResult
from orderlymq.consumer.settings import ConsumeFrom, ConsumerSettings
from orderlymq.message import Message, ReceivedMessage
from orderlymq_console.pages.letters import Letter
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.message.sysflag import COMPRESSED
from orderlymq_spark.cluster.access import ClusterAccess, access_to
from orderlymq_spark.errors import CheckpointInUse, OptionError
from orderlymq_spark.jobs import deadletters, redrive
from orderlymq_spark.jobs.deadletters import (
    Consumed,
    DeadLetter,
    add_copies,
    is_overtaken,
    redriven_to,
    take_first_origins,
)
from orderlymq_spark.jobs.redrive import Plan, make_plan
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.options import Connect
from orderlymq_spark.run.outcome import Outcome
from orderlymq_spark.specs import DeadLetterSpec, RedriveSpec
from tests.broker.processors.requests import send_ext
from tests.cluster.processes import Group
from tests.spark.s3 import BUCKET, S3
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUE = MessageQueue("%DLQ%g", "b", 0)
ORIGIN = MessageQueue("orders", "b", 0)


def letter(
    offset: int,
    key: str,
    origin: int,
    *,
    overtaken: bool = False,
    times: int | str = 0,
    unique_key: str = "",
) -> DeadLetter:
    host = ("127.0.0.1", 1)
    message = ReceivedMessage(
        topic=QUEUE.topic,
        body=b"x",
        queue=QUEUE,
        queue_offset=offset,
        properties={"__SHARDINGKEY": key, "OMQ_REDRIVES": str(times), "UNIQ_KEY": unique_key},
        message_id=unique_key or f"id-{offset}",
        offset_message_id="",
        born_timestamp=0,
        store_timestamp=0,
        born_host=host,
        store_host=host,
        reconsume_times=3,
        flag=0,
        sys_flag=0,
        physical_offset=0,
        size_bytes=1,
    )
    return DeadLetter(message, "orders", (ORIGIN, origin), overtaken)


LETTERS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 99), st.booleans(), st.integers(0, 4)),
    max_size=20,
    unique_by=lambda each: each[1],
).map(
    lambda rows: [
        letter(n, key, origin, overtaken=overtaken, times=times)
        for n, (key, origin, overtaken, times) in enumerate(rows)
    ]
)


@pytest.mark.parametrize(
    ("how", "decided"), [("hold-key", "hold"), ("skip", "skip"), ("send", "send")]
)
def test_a_letter_whose_origin_has_aged_out_counts_as_overtaken(how: Any, decided: str) -> None:
    """It is unknown whether a later message of its key was consumed; a letter without a key has no such message."""
    aged, keyless = letter(0, "a", 5), letter(1, "", 6)
    aged.origin = aged.overtaken = None
    keyless.origin = keyless.overtaken = None
    del keyless.message.properties["__SHARDINGKEY"]

    plan = make_plan(*("p", "g", [aged, keyless]), target=None, on_overtaken=how, redrives_max=3)

    assert [(each.key, each.decision) for each in plan.items] == [("a", decided), (None, "send")]
    assert "aged out" in plan.items[0].reason or how == "send"


@given(LETTERS)
def test_a_plan_holds_a_key_from_its_first_held_letter_on(letters: list[DeadLetter]) -> None:
    """Per key, the first letters in the order of their origins are sent and the rest held; each letter is in the plan once."""
    plan = make_plan("p", "g", letters, target=None, on_overtaken="hold-key", redrives_max=3)

    origins = {each.message.queue_offset: each.origin[1] for each in letters if each.origin}
    assert sorted(item.offset for item in plan.items) == sorted(origins)
    assert len({item.identity for item in plan.items}) == len(letters)
    for key in "abc":
        mine = [item for item in plan.items if item.key == key]
        order = [origins[item.offset] for item in mine]
        decisions = [item.decision for item in mine]
        assert order == sorted(order)
        assert decisions == sorted(decisions, key=["send", "hold"].index)
    written = json.loads(json.dumps(plan.to_json()))
    assert Plan.from_json(written) == plan
    for each in written["items"]:
        each["identity"] = "../../elsewhere"
    if written["items"]:
        with pytest.raises(OptionError, match="not a plan of a redrive"):
            Plan.from_json(written)


def planned(letters: list[DeadLetter], plan_id: str = "p", target: str | None = None) -> Plan:
    """Return a plan that knows of all existing copies."""
    sent = {each.identity("orders") for each in letters if each.copy is not None}
    return make_plan(
        plan_id, "g", letters, target=target, on_overtaken="hold-key", redrives_max=3, sent=sent
    )


def test_a_letter_has_one_identity_in_a_topic_whatever_the_plan() -> None:
    """By this identity, the next plan knows that the letter was sent; a copy to another topic does not count."""
    letters = [letter(0, "a", 1), letter(1, "a", 2)]
    one, two, other = planned(letters), planned(letters, "q"), planned(letters, target="trial")

    assert one.items == two.items
    assert {item.identity for item in one.items}.isdisjoint(item.identity for item in other.items)


def test_the_console_and_the_pipeline_know_of_each_others_redrives() -> None:
    """Both search the brokers' index for one key, which differs for each place and each life of a topic."""
    mine = letter(7, "a", 1)
    shown = Letter(QUEUE, 7, "orders", "a", stored_ms=0, tries=3, message_id="id-7")

    assert mine.identity("orders") == shown.identity
    others = [letter(8, "a", 1, unique_key="id-7"), letter(7, "a", 1, unique_key="id-8")]
    assert shown.identity not in {each.identity("orders") for each in others}


@pytest.mark.cluster
def test_what_was_redriven_is_known(topics: Topics) -> None:
    topic = topics.make(queues=1)
    letters = [letter(n, "a", n) for n in range(2)]
    copy = letters[1].identity(topic)
    topics.fill(topic, [Message(topic=topic, body=b"x", key="a", unique_key=copy)])

    assert redriven_to(access_to(Connect(topics.bootstrap)), topic, letters) == {copy}


def test_a_letter_that_was_redriven_is_left_out_and_holds_nothing() -> None:
    """A redriven letter is skipped even if its copy was consumed, so that the letter itself counts as overtaken."""
    letters = [letter(0, "a", 1, overtaken=True), letter(1, "a", 2)]
    letters[0].copy = ORIGIN, 7

    plan = planned(letters)

    assert [(item.decision, item.reason) for item in plan.items] == [
        ("skip", "it was already redriven"),
        ("send", ""),
    ]


def failed_again() -> list[DeadLetter]:
    """Return two redriven letters, at 10 and 11, and the new letter of the first one's copy."""
    letters = [letter(0, "a", 1), letter(1, "a", 2)]
    letters[0].copy, letters[1].copy = (ORIGIN, 10), (ORIGIN, 11)
    letters.append(letter(2, "a", 10, unique_key=letters[0].identity("orders")))
    take_first_origins(letters)
    return letters


def test_a_copy_that_fails_again_goes_before_the_letters_that_wait_behind_it() -> None:
    """The new letter takes the place of the message that failed first."""
    first, second, again = failed_again()
    second.copy = None

    plan = planned([first, second, again])

    assert [(item.offset, item.decision) for item in plan.items] == [
        (0, "skip"),
        (2, "send"),
        (1, "send"),
    ]


def test_a_copy_whose_first_origin_has_aged_out_stands_where_it_is() -> None:
    """The place of the failed copy decides what has overtaken it."""
    first, again = letter(0, "a", 1), letter(2, "a", 10)
    first.origin = None
    again.message.properties["UNIQ_KEY"] = first.identity("orders")

    take_first_origins([first, again])

    assert again.origin == (ORIGIN, 10)


@pytest.mark.parametrize("gone", [1, 3])
def test_copies_that_failed_again_go_in_the_order_of_their_first_letters(gone: int) -> None:
    """Law: neither retention, which removes the first origins first, nor clocks of consumers change the order of a key."""
    firsts = [letter(number, "a", 499 + number) for number in range(3)]
    again = [letter(3 + number, "a", 900 + number) for number in range(3)]
    for number, (first, copy) in enumerate(zip(firsts, again, strict=True)):
        copy.message.properties["UNIQ_KEY"] = first.identity("orders")
        born_ms = 9_000 - number
        first.message = replace(first.message, born_timestamp=born_ms)
        copy.message = replace(copy.message, born_timestamp=born_ms)
    for first in firsts[:gone]:
        first.origin = None

    take_first_origins([*firsts, *again])
    ordered = deadletters.in_origin_order([*reversed(again), *firsts])

    assert [each.message.queue_offset for each in ordered] == [0, 3, 1, 4, 2, 5]


def test_a_consumed_copy_overtakes_what_came_behind_its_origin_and_nothing_else() -> None:
    """A copy of the first letter is not later than the second letter; a copy that failed overtakes nothing."""
    first, second, again = failed_again()

    consumed: deadletters.Newest = {}
    add_copies(consumed, Consumed({ORIGIN: 11}), [first, second])
    assert [is_overtaken(each, consumed, grown=False) for each in (first, second)] == [False, False]

    consumed = {}
    add_copies(consumed, Consumed({ORIGIN: 12}), [first, second, again])
    assert consumed == {(ORIGIN, "a"): (2, 0)}
    assert is_overtaken(again, consumed, grown=False)


def moved(offset: int, queue_id: int, origin: int, stored_ms: int) -> DeadLetter:
    """Return a letter of one key whose origin is in this queue."""
    found = letter(offset, "a", origin)
    queue = MessageQueue("orders", "b", queue_id)
    return DeadLetter(found.message, "orders", (queue, origin), False, stored_ms)


def test_letters_of_a_key_that_moved_go_in_the_order_of_the_lists() -> None:
    """After an expansion a key has low offsets in another queue; within a queue, offsets decide and not clocks."""
    letters = [
        moved(0, 0, 3, 900),
        moved(1, 9, 900, 100),
        moved(2, 9, 901, 90),
        moved(3, 0, 4, 950),
    ]

    plan = make_plan("p", "g", letters, target=None, on_overtaken="hold-key", redrives_max=3)

    assert [item.offset for item in plan.items] == [1, 2, 0, 3]


def test_a_letter_is_overtaken_in_any_queue_of_a_topic_that_grew() -> None:
    """In its own queue a later offset counts, in another queue a later time."""
    mine, own, other = moved(0, 9, 900, 100), *(MessageQueue("orders", "b", n) for n in (9, 0))

    assert not is_overtaken(mine, {(own, "a"): (899, 500), (other, "a"): (5000, 99)}, grown=True)
    assert not is_overtaken(mine, {(other, "b"): (3, 900)}, grown=True)
    assert is_overtaken(mine, {(own, "a"): (901, 90)}, grown=True)
    assert is_overtaken(mine, {(other, "a"): (3, 101)}, grown=True)


def test_a_letter_of_a_topic_that_never_grew_is_overtaken_in_its_own_queue_alone() -> None:
    """If a sender put a key into a second queue by hand, its messages there have no order to the others."""
    mine, own, other = moved(0, 9, 900, 100), *(MessageQueue("orders", "b", n) for n in (9, 0))

    assert not is_overtaken(mine, {(other, "a"): (901, 101)}, grown=False)
    assert is_overtaken(mine, {(own, "a"): (901, 90)}, grown=False)


def make_dead_letters(topics: Topics, topic: str, group: str, bad: set[str | None]) -> None:
    """Consume a topic in order; messages with these keys become dead letters at their first failure."""
    done: list[str] = []

    def listen(messages: list[ReceivedMessage], _context: object) -> OrderedResult:
        for message in messages:
            if message.key in bad:
                return OrderedResult.SUSPEND
            done.append(message.message_id)
        return OrderedResult.SUCCESS

    settings = ConsumerSettings(
        consume_from=ConsumeFrom.FIRST,
        max_reconsume_times=0,
        consume_message_batch_max_size=1,
        suspend_current_queue_time=0.01,
    )
    consumer = Consumer(
        group,
        topics.bootstrap,
        topics={topic: "*"},
        ordered=True,
        listener=listen,
        settings=settings,
    )
    with consumer, PullConsumer("tests-looker", topics.bootstrap) as looker:
        queues = topics.queues(topic)
        for _ in range(300):
            progress = topics.admin.progress(group)
            if all(
                queue in progress and progress[queue].consumer_offset == looker.max_offset(queue)
                for queue in queues
            ):
                return
            consumer.thread.run(_pause())
    raise AssertionError(f"{group} is not through {topic}")


async def _pause() -> None:
    import asyncio  # noqa: PLC0415 - real processes need real time

    await asyncio.sleep(0.1)


def carried_out(plan: Path, group: str, topics: Topics, written: object) -> Outcome:
    """Write a plan and carry it out."""
    plan.write_text(json.dumps(written))
    spec = RedriveSpec(
        type="redrive", plan=plan, send=True, bootstrap=topics.bootstrap, group=group
    )
    return redrive.run("r", spec, lambda: pytest.fail("the plan is there"))


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_a_letter_that_cannot_be_sent_is_named_and_the_others_go(
    topics: Topics, tmp_path: Path
) -> None:
    """If its topic is gone, or it names none, only its own key stops."""
    topic = topics.make()
    group = f"refused-{topic}"
    topics.numbered(topic, 9, keys=3)
    make_dead_letters(topics, topic, group, {"key-0", "key-1", "key-2"})
    letters = deadletters.dead_letters(access_to(Connect(topics.bootstrap)), group)
    told = {"key-0": "gone", "key-1": "", "key-2": topic}
    for each in letters:
        each.topic = told[each.message.key or ""]
    made = make_plan("p", group, letters, target=None, on_overtaken="send", redrives_max=3)

    outcome = carried_out(tmp_path / "plan.json", group, topics, made.to_json())

    copies = {
        each.message.key
        for each in deadletters.dead_letters(access_to(Connect(topics.bootstrap)), group)
        if each.copy is not None
    }
    counts = {word: outcome.data.get(word) for word in ("sent", "failed", "held")}
    assert copies == {"key-2"}
    assert (counts, outcome.passed) == ({"sent": 3, "failed": 1, "held": 2}, False)
    assert "gone key key-0: no broker has the topic" in outcome.text
    assert (
        outcome.text.count("key key-1")
        == outcome.text.count("the letter does not name its topic")
        == 3
    )


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_a_letter_that_is_gone_stops_its_key_alone(topics: Topics, tmp_path: Path) -> None:
    """Later letters of its key would overtake it unnoticed; a new plan leaves it out."""
    topic = topics.make()
    group = f"taken-{topic}"
    topics.numbered(topic, 6, keys=2)
    make_dead_letters(topics, topic, group, {"key-0", "key-1"})
    letters = deadletters.dead_letters(access_to(Connect(topics.bootstrap)), group)
    made = make_plan("p", group, letters, target=None, on_overtaken="send", redrives_max=3)
    written = made.to_json()
    first = next(item for item in written["items"] if item["key"] == "key-1")
    first["offset"] += 1000

    outcome = carried_out(tmp_path / "plan.json", group, topics, written)

    counts = {word: outcome.data.get(word) for word in ("sent", "failed", "held")}
    assert (counts, outcome.passed) == ({"sent": 3, "failed": 1, "held": 2}, False)
    assert f"{topic} key key-1: its dead letter g:" in outcome.text


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_a_redrive_holds_few_letters_at_once(topics: Topics, tmp_path: Path) -> None:
    """The letters of a plan may have gigabytes together."""
    topic, size, count = topics.make(queues=1), 1 << 18, 60
    group = f"large-{topic}"
    bodies = [randbytes(size) for _ in range(count)]
    topics.fill(topic, (Message(topic=topic, body=each, key="k") for each in bodies))
    make_dead_letters(topics, topic, group, {"k"})
    letters = deadletters.dead_letters(access_to(Connect(topics.bootstrap)), group)
    made = make_plan("p", group, letters, target=None, on_overtaken="send", redrives_max=3)

    tracemalloc.start()
    try:
        outcome = carried_out(tmp_path / "plan.json", group, topics, made.to_json())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert outcome.data["sent"] == count
    assert [m.body for m in next(iter(topics.read(topic).values()))] == bodies * 2
    assert peak < count * size // 2


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_a_plan_is_that_of_the_driver_that_began_last(topics: Topics, s3: S3) -> None:
    """Law: a driver that was replaced while it read does not overwrite the plan that users have seen."""
    topic = topics.make(queues=1)
    group = f"planned-twice-{topic}"
    topics.fill(topic, [Message(topic=topic, body=b"x")], queue=0)
    make_dead_letters(topics, topic, group, {None})
    spec = RedriveSpec(
        type="redrive",
        plan=f"s3a://{BUCKET}/{uuid4().hex}/plan.json",
        bootstrap=topics.bootstrap,
        group=group,
    )
    # Letters without keys are judged without Spark.
    no_spark = cast("SparkSession", None)

    def plan_beside() -> "SparkSession":
        redrive.run("second", spec, lambda: no_spark)
        return no_spark

    with pytest.raises(CheckpointInUse, match="another driver has begun"):
        redrive.run("first", spec, plan_beside)

    plan = Plan.from_json(json.loads(spec.plan.read_text()))
    assert (plan.plan_id.partition("-")[0], len(plan.items)) == ("second", 1)


def send_damaged(topics: Topics, topic: str, key: str) -> None:
    """Send a message whose body does not match its flags, as from a faulty client."""
    access = access_to(Connect(topics.bootstrap))
    access.queues([topic])
    address = access.instance.routes.address("g")
    assert address is not None
    letters = {"e": "0", "f": str(COMPRESSED), "i": f"__SHARDINGKEY\x01{key}"}
    ext = send_ext(topic, **letters)
    code = RequestCode.SEND_MESSAGE_V2
    access.wait(lambda: access.instance.call(address, code, ext, b"no zlib stream"))


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_a_letter_that_cannot_be_read_is_a_letter_and_stops_its_key_alone(
    topics: Topics, tmp_path: Path
) -> None:
    """The letter is reported but not sent, with the reason, because a redrive would send other bytes."""
    topic = topics.make(queues=1)
    group = f"damaged-{topic}"
    send_damaged(topics, topic, "key-0")
    topics.numbered(topic, 4, keys=2)
    make_dead_letters(topics, topic, group, {"key-0", "key-1"})

    letters = deadletters.dead_letters(access_to(Connect(topics.bootstrap)), group)

    assert [each.message.key for each in letters if each.message.unreadable] == ["key-0"]
    # A plan needs no bodies, and there may be many.
    assert [each.message.body for each in letters] == [b""] * 5
    made = make_plan("p", group, letters, target=None, on_overtaken="send", redrives_max=3)

    outcome = carried_out(tmp_path / "plan.json", group, topics, made.to_json())

    counts = {word: outcome.data.get(word) for word in ("sent", "failed", "held")}
    assert (counts, outcome.passed) == ({"sent": 2, "failed": 1, "held": 2}, False)
    assert f"{topic} key key-0: the body of the message at offset " in outcome.text


KEPT: list[ClusterAccess] = []  # a process keeps its connections, as `access_to` does


class Late(ClusterAccess):
    """Returns the first offsets from before retention removed messages."""

    def bounds(
        self, queues: Iterable[MessageQueue]
    ) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
        lows, highs = super().bounds(queues)
        return dict.fromkeys(lows, 0), highs


@pytest.mark.cluster
def test_letters_behind_what_retention_takes_are_read(tmp_path: Path) -> None:
    """Readers learn the queue's present first offset, and continue there."""
    settings = {"storage": {"retention_size": 20_000}, "timers": {"retention_scan_ms": 50}}
    with (
        Group(tmp_path, 1, overrides=settings) as group,
        AdminClient(group.name_server_address) as admin,
    ):
        topics = Topics(group.name_server_address, admin)
        topic = topics.make(queues=1)
        access = Late(Connect(topics.bootstrap))
        KEPT.append(access)
        (queue,) = access.queues([topic])
        while ClusterAccess.bounds(access, [queue])[0][queue] == 0:
            topics.fill(topic, [Message(topic=topic, body=b"x" * 2_000)] * 10)

        found = [message.queue_offset for message in deadletters.messages(access, topic)]

        assert found
        assert found == list(range(found[0], access.bounds([queue])[1][queue]))


def test_a_count_of_redrives_that_no_redrive_wrote_stops_nothing() -> None:
    """A sender can write any value into the property."""
    assert [redrives_of(letter(0, "a", 0, times=times).message) for times in (3, "9" * 5_000)] == [
        3,
        0,
    ]


def test_a_redriven_message_has_the_properties_of_its_program() -> None:
    """Properties that made it a letter are removed; names that only begin like theirs belong to the program."""
    said = letter(0, "a", 0, times=1, unique_key="AB").message
    said.properties |= {"DLQ_ORIGIN_TOPIC": "T", "DLQ_ORIGIN_MESSAGE_ID": "0A", "DLQ_BOUND": "yes"}

    sent = redriven(said, "orders", "CD")

    assert (sent.topic, sent.key, sent.unique_key) == ("orders", "a", "CD")
    assert sent.properties == {"DLQ_BOUND": "yes", "OMQ_REDRIVES": "2"}


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_dead_letters_go_back_in_order_and_only_once(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    """Report, dry run, run, and a second run: messages of two keys come back once, in the order of their origins."""
    topic = topics.make()
    group = f"redriven-{topic}"
    topics.numbered(topic, 25, keys=5)
    make_dead_letters(topics, topic, group, {"key-1", "key-3"})
    where = {"bootstrap": topics.bootstrap, "group": group}

    report = deadletters.run("d", DeadLetterSpec(type="dead-letters", **where), lambda: spark).data
    plan = RedriveSpec(
        type="redrive", plan=tmp_path / "plan.json", on_overtaken="send", rate=1000, **where
    )
    dry = redrive.run("r", plan, lambda: spark)
    nothing_yet = sum(map(len, topics.read(topic).values()))
    sent = redrive.run("r", plan.model_copy(update={"send": True}), lambda: spark)
    # As if the driver had died before its journal was written.
    shutil.rmtree(tmp_path / "plan.json.done")
    again = redrive.run("r", plan.model_copy(update={"send": True}), lambda: spark)

    # Another plan, after the copies were consumed: the letters count as overtaken by them.
    make_dead_letters(topics, topic, group, set())
    anew = {"plan": location(tmp_path / "other.json"), "send": True, "on_overtaken": "hold-key"}
    other = redrive.run("r", plan.model_copy(update=anew), lambda: spark)

    assert (report["deadLetters"], report["originGone"]) == (10, 0)
    assert "nothing to send" in other.text
    assert other.text.count("it was already redriven") == 10
    assert {each["key"]: each["count"] for each in report["byKey"]} == {"key-1": 5, "key-3": 5}
    assert (dry.data["send"], dry.data["sent"], nothing_yet) == (10, 0, 25)
    assert (sent.data.get("sent"), again.data.get("sent"), again.data.get("done")) == (10, None, 10)
    for key in ("key-1", "key-3"):
        mine = [
            (m.properties["n"], m.properties.get("OMQ_REDRIVES"))
            for messages in topics.read(topic).values()
            for m in messages
            if m.key == key
        ]
        assert mine == [(str(n), None) for n in range(5)] + [(str(n), "1") for n in range(5)]
