"""The requests of a consumer by key and how it reads the answers, with a broker whose answers the test chooses."""

from collections.abc import AsyncIterator, Callable

import pytest

from orderlymq import ClientInstance, Consumer, ConsumerSettings, SettingError
from orderlymq.consumer.group.subscriptions import make_subscription
from orderlymq.consumer.lanes import calls as lanecalls
from orderlymq.consumer.lanes.calls import LaneCalls
from orderlymq.consumer.lanes.events import (
    Answered,
    Complete,
    CompleteFailed,
    Fetch,
    Fetched,
    FetchEmpty,
    FetchFailed,
    Place,
)
from orderlymq.consumer.stats import ConsumerStats
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.lanes import (
    KEY_LENGTH_SHOWN,
    Lane,
    LaneReport,
    LaneReports,
    LanesFetched,
    LaneVerdict,
    LaneVerdicts,
)
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.properties import SHARDING_KEY, encode_properties
from tests.client.fakecluster import BROKER, FakeCluster, Fault, reset, running
from tests.protocol.records import encode_record

PLACE = Place("T", BROKER)
ASK = Fetch(PLACE, 17, 4)
FETCH = RequestCode.ORDERLYMQ_FETCH_LANES
COMPLETE = RequestCode.ORDERLYMQ_COMPLETE_LANES
CONFIG = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with running(topics={"T": 1}) as found:
        yield found


@pytest.fixture
async def calls(cluster: FakeCluster) -> AsyncIterator[LaneCalls]:
    instance = ClientInstance(cluster.address)
    await instance.start()
    await instance.route("T")
    # A client without anything to report sends no heartbeats.
    instance.heartbeats.add_producer("P")
    yield LaneCalls(
        instance,
        "G",
        ConsumerSettings(lock_lease=12, lane_messages_max=3, consume_timeout=7),
        subscriptions={"T": make_subscription("T", "*", "TAG", 99)},
        filtered=lambda messages, _: messages,
        now_ms=lambda: 1_000,
        stats=ConsumerStats(),
    )
    await instance.close()


def answer(code: int, body: bytes = b"", remark: str = "why") -> Fault:
    return lambda command, _conn: command.reply(code, remark=remark, body=body)


def records(cluster: FakeCluster, *texts: str) -> list[bytes]:
    for text in texts:
        cluster.append("T", 0, text.encode())
    return [encode_record(each) for each in cluster.logs["T", 0]]


def lane(number: int, *offsets: int, tries: int = 0) -> Lane:
    return Lane(0, number, number, f"k{number}", offsets, tries)


async def test_a_fetch_says_who_asks_for_what(cluster: FakeCluster, calls: LaneCalls) -> None:
    """Law: a fetch sends number, lanes, messages, lease and wait; the wait is at most a third of the lease."""
    cluster.faults[FETCH] = [answer(ResponseCode.PULL_NOT_FOUND)]

    assert await calls.fetch(ASK) == FetchEmpty(PLACE, 17, "why")

    ext = cluster.seen[-1].ext
    assert {name: ext[name] for name in ("consumerGroup", "topic", "sequence", "maxLanes")} == {
        "consumerGroup": "G",
        "topic": "T",
        "sequence": "17",
        "maxLanes": "4",
    }
    assert (ext["maxPerLane"], ext["leaseMillis"]) == ("3", "12000")
    assert (ext["suspendTimeoutMillis"], ext["subVersion"]) == ("4000", "99")


async def test_what_a_fetch_brings(cluster: FakeCluster, calls: LaneCalls) -> None:
    """Law: an answer's messages are read by lane; missing ones are omitted, and the tries belong to the first message."""
    stored = records(cluster, "a", "b", "c", "d")
    lanes = (lane(1, 0, 2), lane(2, 1, 7, tries=3))
    body = LanesFetched(lanes, 9_000, "full").encode([stored[0], stored[2], stored[1]])
    cluster.faults[FETCH] = [answer(0, body)]

    found = await calls.fetch(ASK)

    assert isinstance(found, Fetched)
    assert (found.sequence, found.lease_ms, found.asked_at_ms) == (17, 9_000, 1_000)
    assert found.limited == "full"
    assert [[m.text for m in each.messages] for each in found.lanes] == [["a", "c"], ["b"]]
    assert [each.readable for each in found.lanes] == [None, None]
    assert found.lanes[1].messages[0].reconsume_times == 3


async def test_a_record_that_is_cut_off_fails_its_message_and_gives_the_rest_back(
    cluster: FakeCluster, calls: LaneCalls
) -> None:
    """Law: a cut-off record fails its own message; unread messages are given back and not lost."""
    stored = records(cluster, "a", "b", "c", "d")
    lanes = (lane(1, 0, 2), lane(2, 1), lane(3, 3))
    body = LanesFetched(lanes, 9_000).encode([stored[0], stored[2][:-5]])
    cluster.faults[FETCH] = [answer(0, body)]

    found = await calls.fetch(ASK)

    assert isinstance(found, Fetched)
    assert [([m.text for m in each.messages], each.readable) for each in found.lanes] == [
        (["a"], 2),
        ([], 1),
        ([], 3),
    ]
    assert [bool(each.reason) for each in found.lanes] == [True, False, False]


async def test_a_fetch_brings_no_more_than_may_be_inflated_and_gives_the_rest_back(
    cluster: FakeCluster, calls: LaneCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a fetch decompresses no more than a limit, but at least one message; the rest is given back."""
    monkeypatch.setattr(lanecalls, "INFLATED_SIZE_MAX", 100)
    stored = records(cluster, *(letter * 60 for letter in "abcd"))
    lanes = (lane(1, 0), lane(2, 1, 2), lane(3, 3))
    large = records(cluster, "e" * 200)[4]
    cluster.faults[FETCH] = [
        answer(0, LanesFetched(lanes, 9_000).encode(stored)),
        answer(0, LanesFetched((lane(1, 4),), 9_000).encode([large])),
    ]

    several, one = await calls.fetch(ASK), await calls.fetch(ASK)

    assert isinstance(several, Fetched)
    assert [([m.text[0] for m in e.messages], e.readable, e.reason) for e in several.lanes] == [
        (["a"], None, ""),
        (["b"], 2, ""),
        ([], 3, ""),
    ]
    assert isinstance(one, Fetched)
    assert [len(each.messages) for each in one.lanes] == [1]


@pytest.mark.parametrize(
    ("code", "refused", "final", "says"),
    [
        (ResponseCode.PULL_RETRY_IMMEDIATELY, False, False, "why"),
        (ResponseCode.SUBSCRIPTION_NOT_EXIST, False, False, "why"),
        (ResponseCode.SYSTEM_ERROR, False, False, "why"),
        (ResponseCode.NO_PERMISSION, True, False, "why"),
        (ResponseCode.TOPIC_NOT_EXIST, True, False, "why"),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, True, False, "group set G --concurrency key"),
        (ResponseCode.ORDERLYMQ_NOT_BY_KEY, True, True, "group set G --concurrency key"),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, True, True, "does not support lanes"),
    ],
)
async def test_what_a_refusal_means(
    cluster: FakeCluster, calls: LaneCalls, code: int, refused: bool, final: bool, says: str
) -> None:
    """Law: refusals differ: some pass by themselves, some need a person, some are final."""
    cluster.faults[FETCH] = [answer(code)]

    found = await calls.fetch(ASK)

    assert isinstance(found, FetchFailed)
    assert (found.sequence, found.refused, found.final) == (17, refused, final)
    assert says in found.reason


@pytest.mark.parametrize("code", [24, 25, 26])
async def test_a_broker_that_does_not_know_the_member_hears_from_it(
    cluster: FakeCluster, calls: LaneCalls, code: int
) -> None:
    """Law: if the broker does not know the member, a heartbeat is sent and the fetch repeated."""
    cluster.faults[FETCH] = [answer(code)]

    await calls.fetch(ASK)

    assert cluster.codes()[-2:] == [FETCH, RequestCode.HEART_BEAT]


@pytest.mark.parametrize("body", [b"", b"\0\0\0\x09{}", b"\0\0\0\x02[]"])
async def test_an_answer_that_cannot_be_read_is_trouble_like_any_other(
    cluster: FakeCluster, calls: LaneCalls, body: bytes
) -> None:
    """Law: an unreadable answer repeats the fetch with its number, so that its lanes are not lost."""
    cluster.faults[FETCH] = [answer(0, body)]

    found = await calls.fetch(ASK)

    assert isinstance(found, FetchFailed)
    assert not found.refused


async def test_completions_get_their_verdicts(cluster: FakeCluster, calls: LaneCalls) -> None:
    """Law: each report gets its own verdict; an answer about other reports fails."""
    reports = (LaneReport(0, 1, 8, "done", 5), LaneReport(0, 2, 9, "renew"))
    verdicts = (LaneVerdict(0, 1, 8, "done"), LaneVerdict(0, 2, 9, "stale"))
    ask = Complete(PLACE, reports)
    cluster.faults[COMPLETE] = [
        answer(0, LaneVerdicts(verdicts).to_json()),
        answer(0, LaneVerdicts(verdicts[::-1]).to_json()),
        answer(0, b"nothing"),
        reset,
        answer(ResponseCode.ORDERLYMQ_NOT_BY_KEY),
    ]

    assert await calls.complete(ask) == Answered(PLACE, reports, verdicts, 1_000)
    assert LaneReports.from_json(cluster.seen[-1].body).lanes == reports
    for refused in (False, False, False, True):
        found = await calls.complete(ask)
        assert isinstance(found, CompleteFailed)
        assert (found.reports, found.refused) == (reports, refused)


def told(config: SubscriptionGroupConfig) -> Callable[[RemotingCommand, object], RemotingCommand]:
    return lambda command, _conn: command.reply(body=config.to_json())


@pytest.mark.parametrize(("minutes", "limit_s"), [(15, 900.0), (60, 3_600.0), (0, 7.0)])
async def test_how_long_a_message_may_be_in_work_is_said_by_the_group(
    cluster: FakeCluster, calls: LaneCalls, minutes: int, limit_s: float
) -> None:
    """Law: the group's consume time-out counts; without one, the consumer's setting does."""
    assert calls.consume_timeout_s == 7.0
    config = SubscriptionGroupConfig("G", concurrency="Key", consume_timeout_minute=minutes)
    cluster.faults[CONFIG] = [told(config)]

    await calls.check_group(["T"])

    assert calls.consume_timeout_s == limit_s


@pytest.mark.parametrize("key_property", [SHARDING_KEY, "customer"])
async def test_the_whole_of_a_long_key_is_that_of_the_message(
    cluster: FakeCluster, calls: LaneCalls, key_property: str
) -> None:
    """Law: the full text of a long key is read from the message's key property and must begin as the broker says."""
    config = SubscriptionGroupConfig("G", concurrency="Key", lane_key_property=key_property)
    cluster.faults[CONFIG] = [told(config)]
    await calls.check_group(["T"])
    shown = "k" * KEY_LENGTH_SHOWN
    for text in (f"{shown}-1", "another", "short"):
        cluster.append("T", 0, b"x", encode_properties({key_property: text, "other": f"{shown}-2"}))
    lanes = [Lane(0, n, n, key, (n,)) for n, key in enumerate((shown, shown, "short"))]
    body = LanesFetched(tuple(lanes)).encode(map(encode_record, cluster.logs["T", 0]))
    cluster.faults[FETCH] = [answer(0, body)]

    found = await calls.fetch(ASK)

    assert isinstance(found, Fetched)
    assert [each.key for each in found.lanes] == [f"{shown}-1", "", "short"]


async def test_a_group_is_looked_at_before_it_is_joined(
    cluster: FakeCluster, calls: LaneCalls
) -> None:
    """Law: before joining, the group's mode is checked: by key, absent, silent, by queue, or a broker without lanes."""
    cluster.faults[CONFIG] = [
        told(SubscriptionGroupConfig("G", concurrency="Key")),
        answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        reset,
        told(SubscriptionGroupConfig("G")),
        answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
    ]

    assert [await calls.check_group(["T"]) for _ in range(3)] == [True, False, True]
    with pytest.raises(SettingError, match="orderlymq group set G --concurrency key"):
        await calls.check_group(["T"])
    with pytest.raises(SettingError, match="does not support lanes"):
        await calls.check_group(["T"])


@pytest.mark.parametrize("heard", [True, False])
async def test_a_start_during_a_fail_over_blames_no_settings(
    cluster: FakeCluster, heard: bool
) -> None:
    """Law: during a change of leader, a missing group is no error, because brokers create it with the first heartbeat."""
    cluster.faults[CONFIG] = [answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)] * 2
    cluster.faults[RequestCode.HEART_BEAT] = [] if heard else [reset]
    consumer = Consumer(
        "G", cluster.address, topics="T", ordered="key", listener=lambda messages, context: None
    )

    if heard:
        with pytest.raises(SettingError, match="there is no group G"):
            await consumer.start()
    else:
        await consumer.start()
    await consumer.close()
