"""Identities of rows that are sent: the same row is the same message, another row is another one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta, timezone
from hashlib import blake2b
from math import isnan
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import OptionError
from orderlymq_spark.sink.messages import Load, check_columns, queue_messages
from orderlymq_spark.sink.writer import rows_of

QUEUES = {"T": [MessageQueue("T", "b", number) for number in range(2)]}
Row = dict[str, Any]

# Few values, so that ties in the order and equal rows are frequent.
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "sharding_key": st.sampled_from(["a", "b", None]),
            "body": st.sampled_from(["x", "y", "z"]),
            "tags": st.sampled_from([None, "t"]),
            "at": st.sampled_from([None, 1, 2]),
            "message_id": st.sampled_from([None, None, "m"]),
        }
    ),
    min_size=1,
    max_size=8,
)
NAN = float("nan")
ORDERS = st.sampled_from([(), ("at",)])
# Hashes, by orderBy and task, of the messages of a test's rows in version 0.1, before tasks sorted in files.
# Since then, rows with orderBy are sent in another order, as the same messages.
GOLDEN = {
    ((), None): "8202d0d25cee0c99",
    ((), 3): "53efce297d598b3e",
    (("at",), None): "e2d7d1d7e4ee345b",
    (("at",), 3): "858b5cbd0622158a",
}


def sent(
    rows: Sequence[Row], order_by: Sequence[str] = (), **how: Any
) -> dict[MessageQueue, list[tuple[str, bytes, str]]]:
    """Return identity, body and tag of the sent messages, by queue, in order."""
    with load(rows, order_by, **how) as found:
        return {
            run.queue: [(each.unique_key, each.body, each.tags) for each in run.messages]
            for run in found.parts
        }


def load(
    rows: Sequence[Row],
    order_by: Sequence[str] = (),
    *,
    batch: str = "7",
    task: int | None = None,
    held_max: int = 100,
) -> AbstractContextManager[Load]:
    return queue_messages(
        rows,
        QUEUES.__getitem__,
        topic="T",
        order_by=order_by,
        app_id="job",
        batch=batch,
        task=task,
        held_max=held_max,
    )


def shared_keys(rows: Sequence[Row]) -> set[int]:
    with load(rows) as found:
        assert len(set(found.keys)) == len(found.keys)
        return set(found.keys)


def flat(found: dict[MessageQueue, list[tuple[str, bytes, str]]]) -> list[tuple[str, bytes, str]]:
    return [each for messages in found.values() for each in messages]


def identities(rows: Sequence[Row], **how: Any) -> list[str]:
    return [identity for identity, _, _ in flat(sent(rows, **how))]


@given(ROWS, ORDERS, st.randoms())
def test_rows_in_another_order_are_the_same_messages(
    rows: list[Row], order_by: tuple[str, ...], chance: Random
) -> None:
    """No two rows share an identity; with orderBy, the messages are also sent in the same order, including ties."""
    other = chance.sample(rows, len(rows))

    first, second = sent(rows, order_by), sent(other, order_by)

    assert Counter(flat(first)) == Counter(flat(second))
    assert len({identity for identity, _, _ in flat(first)}) == len(rows)
    if order_by:
        assert first == second


@given(ROWS, ORDERS, st.sampled_from([None, 3]), st.integers(1, 4))
def test_how_many_rows_a_task_holds_changes_nothing(
    rows: list[Row], order_by: tuple[str, ...], task: int | None, held_max: int
) -> None:
    """Rows that are sorted in files have the same identities, queues and order."""
    assert sent(rows, order_by, task=task, held_max=held_max) == sent(rows, order_by, task=task)


@given(st.lists(st.sampled_from([None, NAN, -1.0, 0.0, 2.0, 3.5]), max_size=12), st.integers(1, 4))
def test_numbers_leave_in_their_order_whatever_stands_among_them(
    prices: list[float | None], held_max: int
) -> None:
    """As in Spark, nulls are first and NaN is last, even if a task sorts in files."""
    rows = [{"sharding_key": "a", "body": str(each), "price": each} for each in prices]

    found = [body.decode() for _, body, _ in flat(sent(rows, ("price",), held_max=held_max))]

    numbers = sorted(each for each in prices if each is not None and not isnan(each))
    assert found == [
        *["None"] * prices.count(None),
        *map(str, numbers),
        *["nan"] * sum(each is not None and isnan(each) for each in prices),
    ]


@given(st.randoms(), st.integers(1, 4))
def test_rows_that_order_by_leaves_alike_keep_the_order_of_their_queue(
    chance: Random, held_max: int
) -> None:
    """A producer's batch has one store time, so a copy ordered by it must not change the order of a key's messages."""
    place = {"topic": "orders", "broker": "b", "queue_id": 3, "sharding_key": "a", "at": 1}
    rows = [
        {**place, "queue_offset": offset, "body": f"b{offset}", "message_id": f"m{offset}"}
        for offset in range(8, 12)
    ]

    found = flat(sent(chance.sample(rows, len(rows)), ("at",), held_max=held_max))

    assert [body for _, body, _ in found] == [b"b8", b"b9", b"b10", b"b11"]


@pytest.mark.parametrize("kind", ["array<int>", "struct<a:int>", "map<string,int>", "variant"])
def test_a_column_without_an_order_gives_none(kind: str) -> None:
    with pytest.raises(OptionError, match="orderBy names at"):
        check_columns({"body": "string", "at": kind}, "T", ["at"])
    check_columns({"body": "string", "at": kind}, "T", [])


@pytest.mark.parametrize("kind", ["binary", "double", "decimal(10,2)", "boolean", "interval day"])
def test_a_key_whose_text_is_not_that_of_other_producers_is_refused(kind: str) -> None:
    """The bytes 42 would be the key "b'42'", which has another queue than the key 42 of other producers."""
    with pytest.raises(OptionError, match="cast it to string"):
        check_columns({"body": "string", "sharding_key": kind}, "T", [])
    for good in ("string", "bigint", "int", "varchar(10)", "string collate UTF8_LCASE", "void"):
        check_columns({"body": "string", "sharding_key": good}, "T", [])


def test_a_column_that_would_become_another_message_is_refused() -> None:
    """Once, a body of the number 5 became five zero bytes."""
    bad = {
        "body": ("int", "boolean", "decimal(10,2)", "array<int>", "struct<a:string>"),
        "topic": ("int",),
        "tags": ("int", "array<string>"),
        "keys": ("int", "array<int>", "map<string,string>"),
        "properties": ("string", "map<string,int>", "struct<a:string>"),
        "flag": ("double", "string", "boolean"),
        "message_id": ("bigint",),
        "target_queue": ("string", "double"),
    }
    good = {
        "body": ("string", "binary", "char(3)", "string collate UTF8_LCASE"),
        "keys": ("string", "array<string>", "array<void>"),
        "properties": ("map<string,string>", "map<void,void>"),
        "flag": ("tinyint", "bigint"),
    }
    for name, kinds in bad.items():
        for kind in kinds:
            with pytest.raises(OptionError, match=f"^{name} is"):
                check_columns({"body": "binary", name: kind}, "T", [])
    for name in bad:
        for kind in (*good.get(name, ()), "void"):
            check_columns({"body": "binary", name: kind}, "T", [])


def test_a_column_that_spark_would_find_and_the_sink_does_not_is_refused() -> None:
    """Once, rows with the key in SHARDING_KEY were sent without a key and lost their order."""
    for name in ("SHARDING_KEY", "Topic", "queue_Offset"):
        with pytest.raises(OptionError, match=f"rename it to {name.lower()}"):
            check_columns({"body": "string", name: "string"}, "T", [])
    check_columns({"body": "string", "sharding_key": "string", "Customer": "string"}, "T", [])


def test_a_null_among_index_keys_is_left_out() -> None:
    rows: list[Row] = [{"body": "x", "keys": keys} for keys in (["a", None, "b"], [None], [], None)]
    with load(rows) as found:
        keys = [each.keys for run in found.parts for each in run.messages]
    assert sorted(keys, key=len) == ["", "", "", ("a", "b")]


@pytest.mark.parametrize(
    "at", [datetime(9999, 12, 31, 23, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)]
)
def test_a_row_is_the_same_in_whatever_zone_a_session_has_its_times(at: datetime) -> None:
    """The last moment of the year 9999, which means no end, is in the year 10000 in Shanghai."""
    found: list[Mapping[str, Any]] = []
    for zone in ("UTC", "Asia/Shanghai", "America/New_York"):
        kind = pa.timestamp("us", zone)
        inner = pa.map_(pa.string(), pa.list_(pa.struct([("at", kind)])))
        columns = [pa.array([at], kind), pa.array([[("k", [{"at": at}, None])]], inner)]
        batch = pa.record_batch(columns, ["store_ts", "value"])
        found += rows_of([batch], None)

    assert found == [{"store_ts": at, "value": [("k", [{"at": at}, None])]}] * 3
    assert {str(each["store_ts"].tzinfo) for each in found} == {"UTC"}


def test_identities_are_those_of_the_loads_before() -> None:
    """A job that continues with a newer version recognises the messages of the former version."""
    place = {"topic": "orders", "broker": "b", "queue_id": 3, "queue_offset": 17}
    stored = datetime(2026, 1, 1, tzinfo=UTC)
    rows: list[Row] = [
        {**place, "sharding_key": "a", "body": "x", "message_id": "m"},
        {**place, "sharding_key": "b", "body": "x", "store_ts": stored},
        {**place, "sharding_key": "b", "body": "y", "store_ts": stored},
        {"message_id": "n", "sharding_key": None, "body": "x"},
        {"sharding_key": "a", "body": "x", "at": 2, "tags": "t"},
        {"sharding_key": "a", "body": "x", "at": 1, "tags": "t"},
        {"sharding_key": None, "body": "x"},
        {"sharding_key": None, "body": "z", "target_queue": 1},
    ]
    found = {
        (order_by, task): blake2b(
            repr(sent([{"at": None, **row} for row in rows], order_by, task=task)).encode(),
            digest_size=8,
        ).hexdigest()
        for order_by in ((), ("at",))
        for task in (None, 3)
    }

    assert found == GOLDEN


def test_an_empty_key_is_refused() -> None:
    """RocketMQ would not store it, so the rows would get a separate queue and no order."""
    with pytest.raises(OptionError, match="empty sharding_key"):
        sent([{"sharding_key": "", "body": "x"}])


@given(ROWS, st.lists(st.integers(0, 2), min_size=3, max_size=3))
def test_rows_divided_among_other_tasks_are_the_same_messages(
    rows: list[Row], division: list[int]
) -> None:
    """Identities stay the same as long as a key, and all rows without one, are in one task; the sink refuses other divisions."""
    tasks: dict[int, list[Row]] = {}
    for row in rows:
        tasks.setdefault(division["ab".find(row["sharding_key"] or "b")], []).append(row)

    divided = [each for part in tasks.values() for each in flat(sent(part, ("at",)))]

    assert Counter(divided) == Counter(flat(sent(rows, ("at",))))


@given(ROWS, ORDERS, st.randoms(), st.integers(0, 8))
def test_a_try_that_died_and_one_in_another_order_send_each_row_once(
    rows: list[Row], order_by: tuple[str, ...], chance: Random, died_after: int
) -> None:
    """The stored bodies equal the rows, and with orderBy the messages of a key are in order."""
    stored: dict[str, tuple[bytes, str]] = {}
    for count in (died_after, len(rows)):
        tried = flat(sent(chance.sample(rows, len(rows)), order_by))
        for identity, body, tag in tried[:count]:
            stored.setdefault(identity, (body, tag))

    said = Counter((row["body"].encode(), row["tags"] or "") for row in rows)
    assert Counter(stored.values()) == said
    if order_by:
        assert set(stored) == set(identities(rows, order_by=order_by))


@given(ROWS, ROWS)
def test_another_load_of_the_same_job_has_messages_of_its_own(
    one: list[Row], other: list[Row]
) -> None:
    """A nightly job may send the same rows as the night before, as new messages."""
    plain, same = ([{**row, "message_id": None} for row in rows] for rows in (one, other))

    assert set(identities(plain, batch="1")).isdisjoint(identities(same, batch="2"))


@given(ROWS)
def test_tasks_that_may_share_keys_share_no_identity(rows: list[Row]) -> None:
    """With checkOrder=false a key may be in several tasks, and none of its rows may be lost."""
    plain = [{**row, "message_id": None} for row in rows]

    assert set(identities(plain, task=0)).isdisjoint(identities(plain, task=1))
    # Without it, the second task's rows would be taken for repeats, so the sink refuses to share identities.
    assert shared_keys(plain) == shared_keys([*plain, *plain]) != set()


def test_a_message_that_says_something_else_this_time_is_still_the_same_one() -> None:
    """A copy may note the time of copying: source and key identify it, as long as they occur once in its task."""
    place = {"topic": "orders", "broker": "b", "queue_id": 3, "queue_offset": 17}
    one, other = ({**place, "sharding_key": "a", "body": body} for body in ("x", "y"))

    assert identities([one]) == identities([other])
    # Another task may have a second row with this source, so the content must decide.
    assert identities([one], task=0) != identities([other], task=0)


def test_a_row_without_a_key_is_the_same_message_whatever_queues_its_target_has_by_now() -> None:
    """Law: a replay that is repeated after its target has grown sends nothing twice."""
    row = {"topic": "orders", "broker": "b", "queue_id": 5, "queue_offset": 17, "body": "x"}
    before, after = ({**row, "sharding_key": None, "target_queue": 5 % n} for n in (4, 5))

    assert identities([before]) == identities([after])
    # Without a position, only the queue distinguishes them.
    plain = [{"sharding_key": None, "body": "x", "target_queue": n} for n in (0, 1)]
    assert identities(plain[:1]) != identities(plain[1:])


def test_rows_at_one_place_of_two_lives_of_a_topic_are_two_messages() -> None:
    """A topic that was created again has other messages at its offsets, which must not be taken for repeats."""
    place = {"topic": "orders", "broker": "b", "queue_id": 3, "queue_offset": 17}
    row = {**place, "sharding_key": "a", "body": "x"}
    stored = datetime(2026, 1, 1, tzinfo=UTC)
    ids = [{**row, "message_id": name, "store_ts": stored} for name in "AB"]
    times = [{**row, "store_ts": stored + timedelta(days=day)} for day in (0, 1)]

    assert len({*identities(ids[:1]), *identities(ids[1:])}) == 2
    assert len({*identities(times[:1]), *identities(times[1:])}) == 2
    # The same message, read by a session with another time zone.
    there = {**times[0], "store_ts": stored.astimezone(timezone(timedelta(hours=3)))}
    assert identities([there]) == identities(times[:1])


@pytest.mark.parametrize("lacking", ["topic", "broker", "queue_id", "queue_offset"])
def test_a_place_without_one_of_its_parts_names_no_row(lacking: str) -> None:
    """Rows of two queues, or of two topics that are read together, may agree in the remaining parts."""
    place = {"topic": "orders", "broker": "b", "queue_id": 3, "queue_offset": 17, lacking: None}
    rows = [{**place, "sharding_key": "a", "body": body} for body in "xy"]

    assert identities(rows[:1]) != identities(rows[1:])
    assert identities(rows[:1], batch="7") != identities(rows[:1], batch="8")


def test_rows_that_were_made_of_one_message_are_distinguished() -> None:
    """An order may become a row for each item: each row is a message, under its own key or the same one."""
    place = {"topic": "orders", "broker": "b", "queue_id": 3, "queue_offset": 17}
    rows = [{**place, "sharding_key": key, "body": "x"} for key in ("a", "a", "b", None, None)]

    assert len(set(identities(rows))) == 5
    # Another task has the rows of another key.
    assert set(identities(rows[:2])) | set(identities(rows[2:])) == set(identities(rows))
    other = [{**row, "broker": None, "message_id": "m"} for row in rows]
    assert len(set(identities(other))) == 5


def test_a_body_that_could_not_be_read_is_not_sent_as_one() -> None:
    """The body's bytes are compressed, but nothing would mark them as such; the error gives the reason and says what to do."""
    row = {"sharding_key": "a", "body": b"(\xb5/\xfd", "body_error": "install orderlymq[zstd]"}

    with pytest.raises(OptionError, match=r"orderlymq\[zstd\].*body_error is null"):
        sent([row])
    assert flat(sent([{**row, "body_error": None}]))
