"""Statistics (315), the broker's summary (28), and the entries of a queue (321)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orderlymq_broker.processors.observe.rates import (
    ANSWERS_STEP_MAX,
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    TOPICS_STEP_MAX,
    Series,
)
from orderlymq_broker.state.records import Commit as OffsetCommit
from orderlymq_broker.state.records import (
    GroupDeleted,
    GroupSet,
    OffsetsCommitted,
    OffsetsReset,
    TopicSet,
)
from orderlymq_protocol.message.tags import tags_code
from tests.broker.processors.adminshell import AdminShell, create_topic
from tests.broker.processors.driver import START_MS
from tests.broker.processors.requests import create, heartbeat, pull, send, send_ext


def stats(admin: AdminShell, name: str, key: str) -> dict[str, Any]:
    body: dict[str, Any] = admin.read(315, statsName=name, statsKey=key)
    return body


def commit(admin: AdminShell, offset: int) -> None:
    create(admin, OffsetsCommitted((OffsetCommit("billing", "orders", 0, offset),)))


def test_sends_are_counted_per_minute_hour_and_day(admin: AdminShell) -> None:
    """Law: TOPIC_PUT_NUMS counts sends of the last minute, hour and day."""
    create_topic(admin)
    for _ in range(6):
        send(admin, e=0)
    admin.pass_time(10_000)

    fresh = stats(admin, "TOPIC_PUT_NUMS", "orders")
    admin.pass_time(2 * MINUTE_MS, step=1_000)
    later = stats(admin, "TOPIC_PUT_NUMS", "orders")

    assert [fresh[span]["sum"] for span in ("statsMinute", "statsHour", "statsDay")] == [6, 6, 6]
    assert fresh["statsMinute"]["avgpt"] == 1.0
    assert [later[span]["sum"] for span in ("statsMinute", "statsHour", "statsDay")] == [0, 6, 6]
    assert later["statsMinute"] == {"avgpt": 0.0, "sum": 0, "tps": 0.0}


def test_sizes_report_the_average_of_a_message(admin: AdminShell) -> None:
    """Law: TOPIC_PUT_SIZE counts stored bytes and their average per message."""
    create_topic(admin)
    for _ in range(4):
        send(admin, e=0, body=b"x" * 100)
    admin.pass_time(1_000)

    minute = stats(admin, "TOPIC_PUT_SIZE", "orders")["statsMinute"]

    assert minute["sum"] == admin.state.physical_end
    assert minute["avgpt"] == admin.state.physical_end / 4


def test_what_a_group_has_committed_counts_as_got(admin: AdminShell) -> None:
    """Law: GROUP_GET_NUMS (topic@group) counts committed messages; consumeTps of 208 is its rate."""
    create_topic(admin)
    create(admin, GroupSet("billing"))
    commit(admin, 0)
    for _ in range(60):
        send(admin, e=0)
    admin.pass_time(10_000)
    commit(admin, 60)
    admin.pass_time(MINUTE_MS - 20_000, step=1_000)

    body = stats(admin, "GROUP_GET_NUMS", "orders@billing")

    assert body["statsMinute"]["sum"] == 60
    assert admin.read(208, consumerGroup="billing")["consumeTps"] == body["statsMinute"]["tps"] > 0


def test_where_a_group_begins_it_has_consumed_nothing(admin: AdminShell) -> None:
    """Law: a group's first commit in a queue counts nothing; later commits count."""
    create_topic(admin)
    create(admin, GroupSet("billing"))
    admin.pass_time(10_000)
    for queue, offset in ((1, 1_000), (1, 1_010), (0, 5_000), (1, 1_013), (0, 5_002)):
        create(admin, OffsetsCommitted((OffsetCommit("billing", "orders", queue, offset),)))
        admin.pass_time(10_000 if queue else 0)
    admin.pass_time(10_000)

    assert stats(admin, "GROUP_GET_NUMS", "orders@billing")["statsHour"]["sum"] == 15


def test_what_a_group_was_sent_is_reported_in_bytes(admin: AdminShell) -> None:
    """Law: GROUP_GET_SIZE (topic@group) counts the bytes of pulled bodies and their average."""
    create_topic(admin)
    create(admin, GroupSet("billing"))
    for _ in range(3):
        send(admin, e=0)
    first, again = (len(pull(admin, offset=offset).body) for offset in (0, 2))
    pull(admin, offset=3)
    admin.pass_time(1_000)

    minute = stats(admin, "GROUP_GET_SIZE", "orders@billing")["statsMinute"]

    assert (first, minute["sum"]) == (admin.state.physical_end, first + again)
    assert minute["avgpt"] == (first + again) / 2
    create(admin, GroupDeleted("billing", clean_offsets=True))
    admin.pass_time(11_000)
    assert admin.tool(315, statsName="GROUP_GET_SIZE", statsKey="orders@billing").code == 1


def test_what_many_groups_were_sent_is_counted_in_steps(admin: AdminShell) -> None:
    """Law: pulls of many groups are counted at most a thousand per tick, because a silent leader is replaced;
    in the end all count.
    """
    create_topic(admin)
    send(admin, e=0)
    groups = [f"g{number}" for number in range(ANSWERS_STEP_MAX + 3)]
    create(admin, *map(GroupSet, groups))
    for group in groups:
        assert pull(admin, group=group).code == 0
    figures = admin.core.administration.figures

    def counted() -> int:
        return sum(figures.get("GROUP_GET_SIZE", f"orders@{group}") is not None for group in groups)

    admin.pass_time(1_000, step=1_000)
    first = counted()
    admin.pass_time(100)

    assert (first, counted()) == (ANSWERS_STEP_MAX, len(groups))


def test_what_many_topics_got_is_counted_in_steps(admin: AdminShell) -> None:
    """Law: sends to many topics are counted some hundred per tick; in the end all count, also later ones."""
    names = [f"t{number}" for number in range(TOPICS_STEP_MAX + 3)]
    create(admin, *(TopicSet(name, 1, 1) for name in names))
    figures = admin.core.administration.figures

    def counted() -> list[int]:
        found = [figures.get("TOPIC_PUT_NUMS", name) for name in names]
        return [series.total for series in found if series is not None]

    for name in names:
        send(admin, topic=name, e=0)
    admin.pass_time(1_000, step=1_000)
    assert counted() == [1] * TOPICS_STEP_MAX
    send(admin, topic=names[0], e=0)
    admin.pass_time(100)
    assert counted() == [1] * len(names)

    admin.pass_time(1_000, step=1_000)
    assert counted() == [2] + [1] * (len(names) - 1)


def test_a_reset_does_not_make_figures_negative(admin: AdminShell) -> None:
    """Law: after a reset, messages consumed again count again, and nothing becomes negative."""
    create_topic(admin)
    commit(admin, 0)
    for _ in range(10):
        send(admin, e=0)
    admin.pass_time(10_000)
    commit(admin, 10)
    admin.pass_time(10_000)
    create(admin, OffsetsReset((OffsetCommit("billing", "orders", 0, 5),)))
    admin.pass_time(10_000)
    commit(admin, 10)
    admin.pass_time(10_000)

    assert stats(admin, "GROUP_GET_NUMS", "orders@billing")["statsHour"]["sum"] == 15


def test_the_work_of_another_leader_is_not_ours(admin: AdminShell) -> None:
    """Law: offsets that moved while this replica followed do not count as its own."""
    create_topic(admin)
    for _ in range(10):
        send(admin, e=0)
    admin.pass_time(10_000)
    admin.follow()
    commit(admin, 10)
    admin.lead()
    admin.pass_time(20_000)

    assert admin.tool(315, statsName="GROUP_GET_NUMS", statsKey="orders@billing").code == 1


def test_the_broker_itself_has_figures(admin: AdminShell) -> None:
    """Law: BROKER_* statistics exist under the cluster's and the broker's name."""
    create_topic(admin)
    for _ in range(2):
        send(admin, e=0)
    pull(admin)
    admin.pass_time(1_000)

    assert stats(admin, "BROKER_PUT_NUMS", "shop")["statsDay"]["sum"] == 2
    assert stats(admin, "BROKER_GET_NUMS", "broker-a")["statsDay"]["sum"] == 2


def test_what_a_group_sends_back_counts_for_the_topic_that_it_came_from(admin: AdminShell) -> None:
    """Law: SNDBCK_PUT_NUMS counts returned messages for the topic from which they came, retries and dead letters alike."""
    create(admin, GroupSet("billing"))
    for name, levels in (("orders", (0, -1)), ("returns", (0,)), ("quiet", ())):
        create_topic(admin, name)
        for level in levels:
            physical = admin.state.physical_end
            send(admin, name, e=0)
            reply = admin.tool(36, offset=physical, group="billing", delayLevel=level)
            assert reply.code == 0
    admin.pass_time(1_000)

    assert stats(admin, "SNDBCK_PUT_NUMS", "orders@billing")["statsDay"]["sum"] == 2
    assert stats(admin, "SNDBCK_PUT_NUMS", "returns@billing")["statsDay"]["sum"] == 1
    assert admin.tool(315, statsName="SNDBCK_PUT_NUMS", statsKey="quiet@billing").code == 1


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "orders"),
        ("NO_SUCH", "x"),
        ("BROKER_PUT_NUMS", "x"),
        ("TOPIC_PUT_NUMS", ""),
    ],
)
def test_a_figure_that_never_moved_answers_1(admin: AdminShell, name: str, key: str) -> None:
    """Law: a statistic without values answers 1 with RocketMQ's remark."""
    reply = admin.tool(315, statsName=name, statsKey=key)

    assert (reply.code, reply.remark) == (1, f"The stats <{name}> <{key}> not exist")


def test_the_figures_of_a_deleted_topic_go(admin: AdminShell) -> None:
    """Law: the statistics of a deleted topic are removed, so that memory stays bounded."""
    create_topic(admin)
    send(admin, e=0)
    admin.pass_time(1_000)
    admin.tool(215, topic="orders")
    admin.pass_time(20_000)

    assert admin.tool(315, statsName="TOPIC_PUT_NUMS", statsKey="orders").code == 1


@given(
    st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 50)), max_size=60),
    st.sampled_from([10_000, MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, DAY_MS]),
)
@hypothesis_settings(max_examples=200, deadline=None)
def test_growth_agrees_with_a_list_of_all_events(
    steps: list[tuple[int, int]], span_ms: int
) -> None:
    """Law: growth over a span equals the sum of its events, apart from one bucket."""
    series, now_ms, events = Series(0), 0, []
    for passed_ms, count in steps:
        now_ms += passed_ms
        series.add(now_ms, count)
        events.append((now_ms, count))

    width_ms = {True: 2_000}.get(span_ms <= MINUTE_MS, 120_000 if span_ms <= HOUR_MS else HOUR_MS)
    grown = series.grown(now_ms, span_ms)

    assert grown <= sum(count for at, count in events if at >= now_ms - span_ms)
    assert grown >= sum(count for at, count in events if at >= now_ms - span_ms + width_ms)


# -- 28 ----------------------------------------------------------------------------------------------


def test_the_broker_at_a_glance(admin: AdminShell) -> None:
    """Law: 28 returns texts only; rates are three numbers under both spellings; the shell's values are included."""
    create_topic(admin)
    admin.core.set_environment(0.25, {"uptime_ms": 90_061_000, "waiting": 3, "disk": {"bytes": 7}})
    admin.pass_time(1_000)
    for _ in range(20):
        send(admin, e=0)
        admin.pass_time(1_000)

    table = admin.read(28)["table"]

    assert all(type(value) is str for value in table.values())
    rates = [float(part) for part in table["putTps"].split(" ")]
    assert rates == [pytest.approx(1.0, abs=0.15)] * 3
    assert len(table["getTransferedTps"].split(" ")) == 3
    assert table["getTransferredTps"] == table["getTransferedTps"]
    assert table["msgPutTotalTodayNow"] == table["putMessageTimesTotal"] == "20"
    assert table["putMessageSizeTotal"] == str(admin.state.physical_end)
    assert table["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert table["sendThreadPoolQueueSize"] == "3"
    assert table["commitLogDiskRatio"] == "0.25"
    assert table["earliestMessageTimeStamp"] == str(START_MS + 1_000)
    assert table["brokerActive"] == "true"


@pytest.mark.parametrize(
    ("total", "ratio", "said"),
    [
        (33_178_697_728, 0.91, "Total : 30.9 GiB, Free : 2.8 GiB."),
        (1_048_576, 0.9995, "Total : 1.0 MiB, Free : 524 B."),
        (0, 0.0, "Total : 0 B, Free : 0 B."),
    ],
)
def test_the_disk_is_reported_as_rocketmqs_exporter_reads_it(
    admin: AdminShell, total: int, ratio: float, said: str
) -> None:
    """Law: the disk text of 28 has the words that RocketMQ's exporter parses (3, 4, 7, 8); all other values are numbers."""
    create_topic(admin)
    admin.core.set_environment(ratio, {"disk": {"bytes": 7, "total": total}})

    table = admin.read(28)["table"]

    assert table["commitLogDirCapacity"] == said
    words = said.split(" ")
    assert [words[0], words[4]] == ["Total", "Free"]
    assert [float(words[2]) >= 0, float(words[6]) >= 0] == [True, True]
    assert [words[3][-1], words[7][-1]] == [",", "."]
    # Values that BrokerRuntimeStats reads as numbers.
    whole = [name for name in table if name.startswith("msg")]
    whole += ["bootTimestamp", "brokerVersion", "commitLogMinOffset", "commitLogMaxOffset"]
    whole += ["putMessageTimesTotal", "putMessageSizeTotal", "earliestMessageTimeStamp"]
    assert all(int(table[name]) >= -1 for name in whole)
    ratios = ("consumeQueueDiskRatio", "commitLogDiskRatio", "putMessageAverageSize")
    assert all(float(table[name]) >= 0 for name in ratios)


def test_midnight_begins_a_new_day(admin: AdminShell) -> None:
    """Law: at midnight the totals of this and of yesterday's morning are kept."""
    create_topic(admin)
    send(admin, e=0)
    admin.pass_time(1_000)
    for _ in range(2):
        admin.wall_ms += DAY_MS
        admin.pass_time(1_000)
        send(admin, e=0)

    table = admin.read(28)["table"]

    names = ("YesterdayMorning", "TodayMorning", "TodayNow")
    assert [table[f"msgPutTotal{name}"] for name in names] == ["1", "2", "3"]


def test_delay_levels_show_how_far_they_are(admin: AdminShell) -> None:
    """Law: scheduleMessageOffset_N is "current,max" of a delay level; unused levels are missing."""
    create_topic(admin)
    admin.call(310, send_ext("orders", "DELAY\x012"), b"late")

    table = admin.read(28)["table"]

    assert {name: table[name] for name in table if name.startswith("schedule")} == {
        "scheduleMessageOffset_2": "0,1"
    }


# -- 321 ---------------------------------------------------------------------------------------------


def test_the_entries_of_a_queue_show_where_messages_are(admin: AdminShell) -> None:
    """Law: 321 shows physical offset, size and tags code of a queue's entries from an index,
    or the newest for a negative one.
    """
    create_topic(admin)
    for tag in ("a", "b", "c"):
        send(admin, "orders", b"x", f"TAGS\x01{tag}", e=0)
    size = admin.state.physical_end // 3

    def entry(number: int, tag: str) -> dict[str, Any]:
        return {
            "eval": False,
            "physicOffset": number * size,
            "physicSize": size,
            "tagsCode": tags_code(tag),
        }

    view = admin.read(321, topic="orders", queueId=0, index=1, count=5)

    assert view == {
        "maxQueueIndex": 3,
        "minQueueIndex": 0,
        "queueData": [entry(1, "b"), entry(2, "c")],
    }
    newest = admin.read(321, topic="orders", queueId=0, index=-1, count=5)
    assert newest["queueData"] == [entry(2, "c")]
    assert admin.read(321, topic="orders", queueId=1, index=0, count=5)["queueData"] == []
    assert admin.read(321, topic="orders", queueId=0, index=9, count=-5)["queueData"] == []
    assert admin.tool(321, topic="orders", queueId=9, index=0, count=1).code == 1


def test_the_entries_of_a_queue_show_what_a_group_wants_of_them(admin: AdminShell) -> None:
    """Law: with a group, 321 also shows its subscription and whether it matches each entry, or that it is not online."""
    create_topic(admin)
    for tag in ("a", "b"):
        send(admin, "orders", b"x", f"TAGS\x01{tag}", e=0)
    ask: dict[str, Any] = {"topic": "orders", "queueId": 0, "index": 0, "count": 5}

    offline = admin.read(321, **ask, consumerGroup="billing")
    heartbeat(admin, "c1", tags="b", sub_version=7)
    online = admin.read(321, **ask, consumerGroup="billing")
    heartbeat(admin, "c1", tags="n > 1", kind="SQL92", sub_version=8)
    by_sql = admin.read(321, **ask, consumerGroup="billing")

    assert ("subscriptionData" in offline, offline["filterData"]) == (
        False,
        "billing@orders is not online!",
    )
    assert online["filterData"] == "null"
    assert online["subscriptionData"] == {
        "classFilterMode": False,
        "codeSet": [tags_code("b")],
        "expressionType": "TAG",
        "subString": "b",
        "subVersion": 7,
        "tagsSet": [],
        "topic": "orders",
    }
    assert [entry["eval"] for entry in online["queueData"]] == [False, True]
    assert by_sql["filterData"] == "n > 1"
    assert [entry["eval"] for entry in by_sql["queueData"]] == [True, True]


def test_the_figures_of_a_deleted_group_go(admin: AdminShell) -> None:
    """Law: the statistics of a deleted group are removed."""
    create_topic(admin, "orders")
    create(admin, GroupSet("billing"))
    commit(admin, 0)
    send(admin)
    admin.pass_time(11_000)
    commit(admin, 1)
    admin.pass_time(11_000)
    assert stats(admin, "GROUP_GET_NUMS", "orders@billing")["statsHour"]["sum"] == 1

    create(admin, GroupDeleted("billing", clean_offsets=True))
    admin.pass_time(11_000)

    assert admin.tool(315, statsName="GROUP_GET_NUMS", statsKey="orders@billing").code == 1


def test_many_groups_are_sampled_in_several_ticks(admin: AdminShell) -> None:
    """Law: many groups are sampled over several ticks; each counts completely."""
    create_topic(admin, "orders")
    for _ in range(3):
        send(admin, e=0)
    groups = [f"group-{number:05}" for number in range(9_000)]
    for begin in range(0, len(groups), 500):
        some = groups[begin : begin + 500]
        create(admin, *(GroupSet(each) for each in some))
        create(admin, OffsetsReset(tuple(OffsetCommit(each, "orders", 0, 0) for each in some)))
    admin.pass_time(21_000)
    for begin in range(0, len(groups), 500):
        commits = tuple(OffsetCommit(each, "orders", 0, 2) for each in groups[begin : begin + 500])
        create(admin, OffsetsCommitted(commits))
    admin.pass_time(21_000)

    for group in (groups[0], groups[-1]):
        key = f"orders@{group}"
        assert stats(admin, "GROUP_GET_NUMS", key)["statsHour"]["sum"] == 2
    figures = admin.core.administration.figures
    while figures._sampling is None:
        admin.pass_time(100)
    admin.pass_time(1_000)
    assert figures._sampling is None
