"""Subscriptions by SQL92: checks, pulls and held pulls."""

import tracemalloc
from typing import Any

import pytest

from orderlymq_broker.processors.fetch.filter import memory_of
from orderlymq_broker.processors.fetch.read import (
    SCAN_SIZE_MAX,
    SCAN_WORK_MAX,
    PropertyTest,
    read_queue,
)
from orderlymq_broker.settings import StorageSettings
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.message.tags import tags_code
from tests.broker.processors.driver import Shell, settings
from tests.broker.processors.requests import (
    bodies,
    create,
    heartbeat,
    properties,
    pull,
    pull_ext,
    send,
)

ORDERS = TopicSet("orders", 2, 2)
SQL: dict[str, Any] = {"expressionType": "SQL92"}


@pytest.fixture(params=["tail", "store"])
def orders(request: pytest.FixtureRequest) -> Shell:
    """Ten messages that have their number as a property, read from memory or from the store."""
    storage = StorageSettings(tail_cache_size=64 << 20 if request.param == "tail" else 0)
    shell = Shell(settings(storage=storage)).lead()
    create(shell, ORDERS, GroupSet("billing"))
    for number in range(10):
        send(shell, body=str(number).encode(), props=properties(TAGS="t", number=str(number)))
    return shell


def ask(shell: Shell, kind: str, expression: str) -> tuple[int, str | None]:
    subscription = {"topic": "orders", "subString": expression, "expressionType": kind}
    body = {"clientId": "c", "group": "billing", "subscriptionData": subscription}
    reply = shell.call(46, {}, fastjson.dumps(body))
    return reply.code, reply.remark


@pytest.mark.parametrize("code", [11, 361])
def test_a_pull_with_sql_gives_what_matches(orders: Shell, code: int) -> None:
    """Law: pull and lite pull return the messages that match; the next offset follows the last one looked at."""
    some = pull(orders, code=code, subscription="number BETWEEN 3 AND 5", **SQL)
    few = pull(orders, code=code, subscription="number > 2", maxMsgNums=2, **SQL)
    none = pull(orders, code=code, subscription="nothing IS NOT NULL", **SQL)

    assert (bodies(some), some.ext["nextBeginOffset"]) == ([b"3", b"4", b"5"], "10")
    assert (bodies(few), few.ext["nextBeginOffset"]) == ([b"3", b"4"], "5")
    assert (none.code, none.remark, none.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "10")


def test_sql_and_size_end_a_pull_at_the_same_place(orders: Shell) -> None:
    """Law: with SQL92 the size limit ends a pull before the first message that does not fit;
    one message is always returned.
    """
    reply = pull(orders, subscription="number >= 4", maxMsgBytes=1, **SQL)

    assert (bodies(reply), reply.ext["nextBeginOffset"]) == ([b"4"], "5")


def test_a_search_among_large_messages_ends_early() -> None:
    """Law: a filtered pull reads a bounded number of bytes from the store; the next one goes on."""
    shell = Shell(settings(storage=StorageSettings(tail_cache_size=0))).lead()
    create(shell, ORDERS, GroupSet("billing"))
    for _ in range(12):
        send(shell, body=bytes(SCAN_SIZE_MAX // 4))

    first = pull(shell, subscription="rare IS NOT NULL", **SQL)

    assert (first.code, first.ext["nextBeginOffset"]) == (20, "4")


@pytest.mark.parametrize("cost", [1, 400])
@pytest.mark.parametrize("size", [0, 20_000])
def test_a_pull_looks_at_fewer_messages_the_more_each_costs(
    orders: Shell, cost: int, size: int
) -> None:
    """Law: the comparisons and property bytes of a pull are bounded, because they are work on raft's event loop."""
    for _ in range(80):
        send(orders, props=properties(filler="x" * size))
    looked: list[int] = []

    def wants(raw: bytes) -> bool:
        looked.append(cost + len(raw) // 32)
        return False

    queue = orders.state.topics.by_name["orders"].queues[0]
    found = read_queue(orders.store, queue, 0, matches=PropertyTest(wants, cost))

    assert found.next_offset == len(looked)
    assert 0 < sum(looked) < SCAN_WORK_MAX + cost + size // 32 + 10
    assert len(looked) == 90 or sum(looked) >= SCAN_WORK_MAX


def test_a_client_may_not_have_more_sql_than_one_expression(shell: Shell) -> None:
    """Law: the SQL of one heartbeat is limited to about one long expression, so that it does not compile a thousand."""
    expression = " OR ".join(f"a = {number}" for number in range(300))

    one = heartbeat(shell, "c1", kind="SQL92", tags=expression[:2_000].rpartition(" OR ")[0])
    both = heartbeat(shell, "c2", kind="SQL92", tags=expression)

    assert (one.code, both.code) == (0, 23)
    assert "divide them over several clients" in (both.remark or "")


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        (" || ".join(map(str, range(1_024))), True),
        (" || ".join(map(str, range(1_025))), False),
        ("x" * 16_384, True),
        ("x" * 16_385, False),
    ],
)
def test_a_subscription_has_a_limited_number_of_tags(
    shell: Shell, expression: str, fits: bool
) -> None:
    """Law: the number and length of tags in a subscription are limited, because filters are kept in memory."""
    create(shell, ORDERS, GroupSet("billing"))
    code, remark = ask(shell, "TAG", expression)
    beat = heartbeat(shell, "c1", tags=expression)
    pulled = pull(shell, subscription=expression)

    assert [code, beat.code, pulled.code] == ([0, 0, 19] if fits else [23] * 3)
    assert fits or "the limits are 1024 and 16384" in (remark or "")


def test_equal_expressions_are_compiled_once(orders: Shell) -> None:
    """Law: equal expressions share one compiled filter."""
    for queue in range(2):
        orders.submit(
            11,
            pull_ext(
                queue=queue, offset=10 * (queue == 0), sysFlag=6, subscription="a = 4711", **SQL
            ),
        )

    first, second = (held for pulls in orders.core.pulls._held.values() for held in pulls.values())

    assert first.matches is second.matches


def test_what_is_kept_of_filters_has_a_limit_together(shell: Shell) -> None:
    """Law: the memory of all kept filters together is bounded, for any expressions."""
    tracemalloc.start()
    for number in range(700):
        assert ask(shell, "TAG", f"{number}\U0001f600".ljust(16_000)) == (0, None)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept < 36 << 20


@pytest.mark.parametrize(
    ("kind", "expression"),
    [
        ("TAG", "||".join(map(str, range(1_024)))),
        ("SQL92", " OR ".join(f"a{number} = {number}" for number in range(499))),
        ("SQL92", " OR ".join(["NOT " * 45 + "a"] * 42)),
        ("SQL92", " OR ".join(["- " * 90 + "a > 1"] * 20)),
        ("SQL92", "a IN (" + ", ".join(f"'{number}'" for number in range(990)) + ")"),
        ("SQL92", " OR ".join(["a IN ('1')"] * 330)),
    ],
)
def test_the_memory_of_a_filter_is_not_underestimated(
    shell: Shell, kind: str, expression: str
) -> None:
    """Law: the estimated memory of a filter is not below the real one, also for expressions with many parts."""
    create(shell, ORDERS, GroupSet("billing"))
    ask(shell, "SQL92", "a IS NULL")  # This loads the parser first.
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    opaque = shell.submit(11, pull_ext(sysFlag=6, subscription=expression, expressionType=kind))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert shell.reply_to(opaque) is None
    (held,) = shell.core.pulls._held[shell.state.topics.by_name["orders"].id, 0].values()
    assert after - before < 1.2 * memory_of(held.matches) + 20_000


@pytest.mark.parametrize("expression", [" ", "||"])
def test_a_blank_subscription_is_no_subscription_to_everything(
    shell: Shell, expression: str
) -> None:
    """Law: a blank subscription is refused everywhere; an empty configuration value must not subscribe to everything."""
    create(shell, ORDERS, GroupSet("billing"))
    send(shell, props=properties(TAGS="a"))
    heartbeat(shell, "c1", tags=expression)

    registered = pull(shell, sysFlag=2, subVersion=1)
    brought = pull(shell, subscription=expression)

    assert (registered.code, brought.code) == (23, 23)
    heartbeat(shell, "c1", tags="*")
    assert pull(shell, sysFlag=2, subVersion=1).code == 0


def test_lists_of_tags_are_limited_too(shell: Shell) -> None:
    """Law: the lists of tags and codes in a heartbeat are limited as well."""
    wish = {"topic": "orders", "subString": "a", "codeSet": list(range(1_025))}
    consumer = {"groupName": "billing", "subscriptionDataSet": [wish]}

    reply = shell.call(34, {}, fastjson.dumps({"clientID": "c", "consumerDataSet": [consumer]}))

    assert (reply.code, shell.state.members.get("billing", "c")) == (23, None)


def test_the_registered_expression_counts_when_the_pull_brings_none(orders: Shell) -> None:
    """Law: a pull without an expression uses the registered one, as Java's push consumer expects."""
    assert heartbeat(orders, "c1", kind="SQL92", tags="number = 7").code == 0

    reply = pull(orders, sysFlag=0, subVersion=1, expressionType="SQL92")

    assert bodies(reply) == [b"7"]


def test_a_subscription_without_a_type_is_one_by_tags(orders: Shell) -> None:
    """Law: an empty expression type means tags, because Apache's Go client writes it."""
    send(orders, body=b"A", props=properties(TAGS="TagA"))
    assert heartbeat(orders, "c1", kind="", tags="TagA || TagB").code == 0

    reply = pull(orders, sysFlag=0, subVersion=1)

    assert bodies(reply) == [b"A"]
    assert ask(orders, "", "TagA || TagB") == (0, None)


def test_a_tag_that_is_not_ascii_is_found_whatever_hash_its_subscriber_gives(shell: Shell) -> None:
    """Law: a tag that is not ASCII is found whatever hash its subscriber sends; Go hashes UTF-8, Java UTF-16."""
    create(shell, ORDERS, GroupSet("billing"))
    for tag in ("für", "plain", "other"):
        send(shell, body=tag.encode(), props=properties(TAGS=tag))
    of_utf8 = 0
    for byte in "für".encode():
        of_utf8 = (31 * of_utf8 + byte) & 0x7FFFFFFF
    wish = {"topic": "orders", "subString": "für || plain", "subVersion": 1}
    wish |= {"expressionType": "", "codeSet": [of_utf8, tags_code("plain")]}
    consumer = {"groupName": "billing", "subscriptionDataSet": [wish]}
    body = fastjson.dumps({"clientID": "c", "consumerDataSet": [consumer]})
    assert shell.call(34, {}, body).code == 0

    reply = pull(shell, sysFlag=0, subVersion=1)

    assert bodies(reply) == ["für".encode(), b"plain"]


def test_only_a_message_that_matches_wakes(orders: Shell) -> None:
    """Law: a held SQL92 pull is answered only by a message that matches."""
    ext = pull_ext(sysFlag=6, offset=10, subscription="number > 100", **SQL)
    opaque = orders.submit(11, ext)

    send(orders, props=properties(number="50"))
    assert orders.reply_to(opaque) is None
    send(orders, body=b"yes", props=properties(number="101"))

    reply = orders.reply_to(opaque)
    assert reply is not None
    assert bodies(reply) == [b"yes"]


def test_a_client_learns_immediately_what_is_wrong(shell: Shell) -> None:
    """Law: 46 and 34 answer 23 for a wrong expression and say where the mistake is."""
    assert ask(shell, "TAG", "a || b") == (0, None)
    assert ask(shell, "SQL92", "a > 1") == (0, None)
    code, remark = ask(shell, "SQL92", "a > 'x'")
    assert (code, "'x' cannot be compared" in (remark or "")) == (23, True)
    assert ask(shell, "GROOVY", "x")[0] == 23

    reply = heartbeat(shell, "c1", kind="SQL92", tags="a >")

    assert (reply.code, "is incomplete" in (reply.remark or "")) == (23, True)
    assert shell.state.members.get("billing", "c1") is None


def test_where_sql_is_switched_off_rocketmqs_refusal_is_given() -> None:
    """Law: where SQL92 is switched off, it is refused with 1 and RocketMQ's text."""
    shell = Shell(settings(enable_property_filter=False)).lead()
    create(shell, ORDERS, GroupSet("billing"))
    refusal = (1, "The broker does not support consumer to filter message by SQL92")

    reply = pull(shell, subscription="a > 1", **SQL)

    assert ask(shell, "SQL92", "a > 1") == refusal
    assert (reply.code, reply.remark) == refusal


def test_class_filters_are_refused(orders: Shell) -> None:
    """Law: class filters are refused; the text names the alternatives."""
    reply = pull(orders, sysFlag=8)

    assert (reply.code, "subscribe by tags or SQL92" in (reply.remark or "")) == (23, True)


def test_system_properties_can_be_asked_for(orders: Shell) -> None:
    """Law: SQL92 can use tags and keys as properties."""
    send(orders, body=b"more", props=properties(number="3", KEYS="k"), e=1)

    reply = pull(orders, queue=1, subscription="number = 3 AND KEYS = 'k'", **SQL)

    assert bodies(reply) == [b"more"]
