"""Expansions of ordered topics: each step, and whole expansions in worlds where anything may happen."""

from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlymq_broker.core import bodylimits
from orderlymq_operator.brokers.admin import expansion_request
from orderlymq_operator.plan.actions import (
    AbortExpansion,
    FenceTopic,
    ObservedBlocker,
    ObservedExpansion,
    PublishTopic,
    PutOrderConfig,
    SwitchTopic,
    TopicConfig,
)
from orderlymq_operator.plan.expansion import (
    LAG_MAX,
    ExpansionPlan,
    ExpansionRequest,
    ExpansionState,
    plan_expansion,
)
from tests.operator.plan.expandingworld import LIMIT_MS, PROPAGATION_MS, Broker, ExpandingWorld

A, B = "broker-a", "broker-b"
OLD, NEW = {A: 2, B: 2}, {A: 4, B: 4}


def config(queues: int) -> TopicConfig:
    return TopicConfig(queues, 6, order=True)


REQUEST = ExpansionRequest("orders", config(8), LIMIT_MS, PROPAGATION_MS)
LAG = ObservedBlocker(
    "billing", 1, 3, "group billing has 3 messages of queue 1 left to consume, 1 member online"
)


def expansion(phase: str = "open", **more: object) -> ObservedExpansion:
    fields: dict[str, object] = {"write_queues": 2, "age_ms": 1_000, "readers": ("billing",)}
    if phase == "fenced":
        fields |= {"next_total": 8, "queues": 4, "attempt": 1}
    if phase in ("switched", "settling"):
        fields |= {"total": 8, "write_queues": 4, "attempt": 1}
    return ObservedExpansion(phase, **{**fields, **more})  # type: ignore[arg-type]  # made of names


def world(
    a: ObservedExpansion | None,
    b: ObservedExpansion | None,
    *lists: dict[str, int] | None,
    route: dict[str, int] | None = None,
) -> ExpansionState:
    return ExpansionState({A: a, B: b}, lists or (OLD,), (route or OLD,) * max(1, len(lists)))


def test_nothing_is_done_while_the_topic_has_as_many_queues_as_are_wanted() -> None:
    """Law: nothing happens if the topic has as many queues as wanted, or more; an ordered topic never shrinks."""
    for queues in (1, 4):
        request = ExpansionRequest("orders", config(queues), LIMIT_MS, PROPAGATION_MS)
        assert plan_expansion(request, world(expansion(), expansion())).status is None


def test_a_growth_begins_with_a_fence_on_every_raft_group() -> None:
    """Law: a growth begins with a fence in every raft group, with one attempt number and each group's future queue count."""
    plan = plan_expansion(REQUEST, world(expansion(attempt=3), expansion()))

    assert plan.actions == (
        FenceTopic("orders", A, 4, 8, 4, LIMIT_MS),
        FenceTopic("orders", B, 4, 8, 4, LIMIT_MS),
    )
    assert plan.holds


def test_a_fence_that_would_be_in_vain_is_not_raised() -> None:
    """Law: no fence is raised if it could not drain (no member online, or too much to consume); the status says why."""
    away = ObservedBlocker(
        "audit", 0, 1, "group audit has 1 message of queue 0 left to consume, nobody online"
    )
    far = ObservedBlocker("billing", 0, LAG_MAX + 1, "group billing lacks many, 1 member online")
    for blocker, part in (
        (away, "no member is online"),
        (far, f"more than {LAG_MAX} messages behind"),
    ):
        plan = plan_expansion(REQUEST, world(expansion(blockers=(blocker,)), expansion()))
        assert (plan.actions, plan.holds) == ((), False)
        assert plan.status is not None
        assert plan.status.phase == "Waiting"
        assert part in plan.message


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "group audit holds 2 keys: release with orderlymq group release",
            "group audit holds keys",
        ),
        (
            "group audit holds 2 lanes: release with orderlymq group release",
            "group audit holds keys",
        ),
        (
            "2 transactions were given up: ask again with orderlymq message check-transaction",
            "transactions were given up",
        ),
    ],
)
def test_no_fence_waits_for_what_only_a_person_ends(words: str, told: str) -> None:
    """Law: no fence is raised that only a person could end; it would be raised again and again, and refuse many writes."""
    group = "" if "transactions" in words else "audit"
    said = set()
    for count in (2, 3):
        blocker = ObservedBlocker(group, -1, count, words.replace("2", str(count)))
        plan = plan_expansion(REQUEST, world(expansion(blockers=(blocker,)), expansion()))
        assert (plan.actions, plan.holds) == ((), False)
        assert plan.status is not None
        assert plan.status.phase == "Waiting"
        said.add(plan.message)

    (message,) = said
    assert told in message


def test_what_waits_is_no_news_at_each_look() -> None:
    """Law: a waiting expansion's message stays the same; otherwise it would be written, and looked at, each second."""
    said: set[str] = set()
    for step in range(10):
        words = f"group audit has {step + 1} messages of queue 0 left to consume, nobody online"
        away = ObservedBlocker("audit", 0, step + 1, words)
        far = ObservedBlocker("billing", 0, LAG_MAX + 1 + step, "group billing, 1 member online")
        for blocker in (away, far):
            waits = world(expansion(blockers=(blocker,)), expansion())
            said.add(plan_expansion(REQUEST, waits).message)
        lifted = expansion(attempt=1, reason="after 20000 ms: late", age_ms=1_000 * step)
        said.add(plan_expansion(REQUEST, world(lifted, lifted)).message)

    assert len(said) == 3


def test_the_rest_is_fenced_when_the_operator_died_in_between() -> None:
    """Law: after an operator's crash the other raft groups are fenced under the same attempt."""
    plan = plan_expansion(REQUEST, world(expansion("fenced"), expansion()))

    assert plan.actions == (FenceTopic("orders", B, 1, 8, 4, LIMIT_MS),)


def test_who_is_in_the_way_is_waited_for_and_named() -> None:
    """Law: while messages are not drained nothing is done, and message and status name the blocking consumer group."""
    plan = plan_expansion(REQUEST, world(expansion("fenced", blockers=(LAG,)), expansion("fenced")))

    assert plan.actions == ()
    assert "has 3 messages" in plan.message
    assert plan.status is not None
    assert [each.consumer_group for each in plan.status.blockers] == ["billing"]


def test_all_switch_when_all_are_drained() -> None:
    """Law: when all raft groups are drained all switch, and each learns the readers of all."""
    plan = plan_expansion(
        REQUEST, world(expansion("fenced", readers=("audit",)), expansion("fenced"))
    )

    assert plan.actions == (
        SwitchTopic("orders", A, 1, 8, config(4), ("audit", "billing")),
        SwitchTopic("orders", B, 1, 8, config(4), ("audit", "billing")),
    )


@dataclass(frozen=True, slots=True)
class LaterConfig(TopicConfig):
    """A topic's settings with a field of a later version."""

    compacted: bool = False


def test_a_switch_has_the_topic_whole() -> None:
    """Law: a raft group that gets the topic by an expansion gets all of its settings, not defaults."""
    wanted = LaterConfig(8, 4, order=True, compacted=True)
    request = ExpansionRequest("orders", wanted, LIMIT_MS, PROPAGATION_MS)

    plan = plan_expansion(request, world(expansion("fenced"), expansion("fenced")))

    assert [action.config for action in plan.actions if isinstance(action, SwitchTopic)] == [
        replace(wanted, queues=4),
        replace(wanted, queues=4),
    ]


def test_a_fence_lifted_by_one_leader_is_lifted_everywhere() -> None:
    """Law: if one leader lifts its fence, all are lifted: the expansion is given up,
    and writes pass before the next attempt.
    """
    lifted = expansion(attempt=1, reason="after 20000 ms: group billing has 3 messages")
    plan = plan_expansion(REQUEST, world(expansion("fenced"), lifted))
    assert plan.actions == (AbortExpansion("orders", A, 1, lifted.reason),)

    after = plan_expansion(REQUEST, world(lifted, lifted))
    assert after.actions == ()
    assert "tried again within 1 minute" in after.message
    assert after.status is not None
    assert after.status.phase == "Aborted"


@pytest.mark.parametrize("blockers", [(), (LAG,)])
def test_a_fence_ends_by_the_limit_that_the_manifest_has_now(
    blockers: tuple[ObservedBlocker, ...],
) -> None:
    """Law: a fence ends by the manifest's present limit, even if its leader knows a longer one."""
    fence = expansion("fenced", age_ms=LIMIT_MS + 1_001, blockers=blockers)
    plan = plan_expansion(REQUEST, world(fence, fence))

    why = LAG.reason if blockers else "the switch did not happen in time"
    reason = f"after {LIMIT_MS} ms: {why}"
    assert plan.actions == tuple(AbortExpansion("orders", name, 1, reason) for name in (A, B))

    soon = expansion("fenced", age_ms=LIMIT_MS)
    assert plan_expansion(REQUEST, world(soon, soon)).actions == (), "its leader says who it was"


def test_once_a_raft_group_has_switched_there_is_only_forward() -> None:
    """Law: after one raft group has switched, the rest must follow; one whose fence was lifted is fenced,
    drained and switched again.
    """
    open_again = expansion(attempt=1, reason="late")
    plan = plan_expansion(REQUEST, world(expansion("switched"), open_again))
    assert plan.actions == (FenceTopic("orders", B, 2, 8, 4, LIMIT_MS),)

    fenced = plan_expansion(REQUEST, world(expansion("switched"), expansion("fenced", attempt=2)))
    assert fenced.actions == (SwitchTopic("orders", B, 2, 8, config(4), ("billing",)),)


def test_the_list_is_published_on_every_name_server_before_it_settles() -> None:
    """Law: the list is published on every name server, and brokers have registered their queues there,
    before the expansion ends.
    """
    both = (expansion("switched"), expansion("switched"))
    assert plan_expansion(REQUEST, world(*both)).actions == (
        PutOrderConfig("orders", "broker-a:4;broker-b:4"),
    )
    assert plan_expansion(REQUEST, world(*both, NEW, OLD)).actions == (
        PutOrderConfig("orders", "broker-a:4;broker-b:4"),
    )
    assert len(plan_expansion(REQUEST, world(*both, OLD, None)).actions) == 1
    waits = plan_expansion(REQUEST, world(*both, NEW, None))
    assert (waits.actions, waits.holds) == ((), True)
    assert "name server 1 does not answer" in waits.message
    assert plan_expansion(REQUEST, world(*both, NEW, NEW)).actions == ()
    assert plan_expansion(REQUEST, world(*both, NEW, NEW, route=NEW)).actions == (
        PublishTopic("orders", A, 8, PROPAGATION_MS),
        PublishTopic("orders", B, 8, PROPAGATION_MS),
    )


def test_a_raft_group_beside_the_list_has_no_part_in_any_growth() -> None:
    """Law: a raft group whose topic a tool made outside the list never takes part: no fence, no queues,
    no place in the list.
    """
    grown = expansion(total=8, write_queues=4, attempt=1)
    beside = expansion(write_queues=4)

    def plan(queues: int, old: dict[str, int], a: ObservedExpansion) -> ExpansionPlan:
        state = ExpansionState({A: a, B: a, "beside": beside}, (old, old), (old, old))
        return plan_expansion(replace(REQUEST, config=config(queues)), state)

    assert plan(8, NEW, grown) == ExpansionPlan()
    assert [(step.group, step.total, step.queues) for step in plan(10, NEW, grown).actions] == [  # type: ignore[union-attr]  # fences
        (A, 10, 5),
        (B, 10, 5),
    ]
    assert plan(8, OLD, expansion()).actions == (
        FenceTopic("orders", A, 1, 8, 4, LIMIT_MS),
        FenceTopic("orders", B, 1, 8, 4, LIMIT_MS),
    )
    assert plan(8, OLD, expansion("switched")).actions == (
        PutOrderConfig("orders", "broker-a:4;broker-b:4"),
    )


@pytest.mark.parametrize(("count", "length"), [(17_000, 120), (8_000, 255), (1, 9)])
def test_a_fence_begins_only_where_brokers_read_the_switch(count: int, length: int) -> None:
    """Law: a fence is raised only if all brokers understand the switch;
    otherwise it would be refused and repeated forever.
    """
    readers = tuple(f"{number:0{length}}" for number in range(count))
    open_, fenced = (expansion(phase, readers=readers) for phase in ("open", "fenced"))

    (switch, _) = plan_expansion(REQUEST, world(fenced, fenced)).actions
    assert isinstance(switch, SwitchTopic)
    assert not bodylimits.excess(expansion_request(switch))
    assert plan_expansion(REQUEST, world(open_, open_)).actions

    many = expansion(readers=(*readers, *(f"{number:0255}" for number in range(8_200))))
    plan = plan_expansion(REQUEST, world(many, open_))
    assert (plan.actions, plan.holds) == ((), False)
    assert "consumer groups read the topic, too many for one switch" in plan.message


def test_nothing_is_done_for_a_list_that_would_not_have_as_many_queues_as_its_total() -> None:
    """Law: nothing is done if the new list's sum would differ from its total; brokers and SDK name a list by the total."""
    many = expansion(write_queues=6)
    plan = plan_expansion(REQUEST, world(many, many))
    assert (plan.actions, plan.holds) == ((), False)
    assert plan.message == "raft groups have 12 queues, which cannot become 8"

    switched = expansion("switched", write_queues=6)
    plan = plan_expansion(REQUEST, world(switched, switched))
    assert (plan.actions, plan.holds) == ((), True)


@pytest.mark.parametrize("when", ["before", "behind"])
def test_keys_keep_their_order_when_a_tool_makes_a_grown_topic_beside_its_list(when: str) -> None:
    """Law: if a tool makes the expanded topic outside its list, writes go on and each key stays in order."""
    world = ExpandingWorld(Random(1), 2, 8)
    world.slow = True
    beside = Broker()
    beside.grow(6)
    if when == "before":
        world.brokers["broker-2"] = beside
    request = ExpansionRequest("orders", config(12), LIMIT_MS, PROPAGATION_MS)

    def go_on(steps: int, pace: int) -> None:
        for _ in range(steps):
            for producer in world.producers:
                world.send(producer)
            for _ in range(pace):
                world.consume()
            world.look(request)
            world.pass_time(250)
            world.check()

    go_on(600, 8)
    assert world.lists == [{"broker-0": 6, "broker-1": 6}] * 2
    world.brokers["broker-2"] = beside
    go_on(20, 0)
    sent = [producer.sent for producer in world.producers]
    go_on(200, 5)

    assert world.lists == [{"broker-0": 6, "broker-1": 6}] * 2
    assert [producer.sent for producer in world.producers] == [count + 200 for count in sent]


def test_a_fence_is_lifted_when_another_number_is_wanted_by_now() -> None:
    """Law: if another number of queues is wanted before any switch, the fences are lifted."""
    request = ExpansionRequest("orders", config(16), LIMIT_MS, PROPAGATION_MS)
    plan = plan_expansion(request, world(expansion("fenced"), expansion("fenced")))

    assert [type(action) for action in plan.actions] == [AbortExpansion, AbortExpansion]


def run(
    seed: int, groups: int, old: int, new: int, *, trouble: bool, leaves_at: int = -1
) -> ExpandingWorld:
    """Let a topic expand while producers send, a group consumes and trouble happens; afterwards without trouble.

    Raft groups without the topic are marked for removal from step *leaves_at* on.
    """
    random = Random(seed)
    world = ExpandingWorld(random, groups, old)
    request = ExpansionRequest("orders", config(new), LIMIT_MS, PROPAGATION_MS)
    for step in range(1_200):
        peace = step > 700
        if step == leaves_at:
            empty = {name for name, broker in world.brokers.items() if not broker.writes}
            world.leaving = frozenset(empty)
        if peace:
            world.online, world.slow, world.down = True, False, set()
        elif trouble and random.random() < 0.03:
            world.online = random.random() < 0.7
            world.slow = random.random() < 0.5
            world.down = {random.randrange(2)} if random.random() < 0.3 else set()
        for _ in range(random.randrange(3)):
            world.send(random.choice(world.producers))
        for _ in range(random.randrange(4) + 2 * peace):
            world.consume()
        if random.random() < 0.5:
            world.look(request, dies=trouble and not peace and random.random() < 0.3)
        world.pass_time(random.choice((10, 100, 1_000) if not peace else (500, 1_000)))
        world.check()
    return world


def test_a_group_that_is_to_go_and_has_nothing_of_a_topic_gets_nothing() -> None:
    """Law: a raft group to be removed gets no part of an expansion, unless the expansion began before."""
    old, leaving = {A: 2}, frozenset({B})

    def steps(a: ObservedExpansion) -> tuple[object, ...]:
        state = ExpansionState({A: a, B: None}, (old,), (old,), leaving)
        return plan_expansion(REQUEST, state).actions

    assert steps(expansion()) == (FenceTopic("orders", A, 1, 8, 8, LIMIT_MS),)
    assert steps(expansion("fenced", queues=8)) == (
        SwitchTopic("orders", A, 1, 8, config(8), ("billing",)),
    )
    assert steps(expansion("switched")) == (
        SwitchTopic("orders", B, 1, 8, config(4), ("billing",)),
    )


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 8),
    st.integers(0, 700),
)
def test_keys_keep_their_order_through_any_growth(
    seed: int, groups: int, old: int, more: int, leaves_at: int
) -> None:
    """Law: through any expansion with crashes and delays each key stays in order, only one list is valid, and it ends."""
    world = run(seed, groups, old, old + more, trouble=True, leaves_at=leaves_at)

    layout = world.lists[0]
    assert all(found == layout for found in world.lists), world.trace
    assert sum(layout.values()) == old + more, world.trace
    assert {world.brokers[name].phase for name in layout} == {"open"}, world.trace
    assert all(world.brokers[name].writes == count for name, count in layout.items())


def test_a_growth_in_peace_refuses_senders_who_know_the_list_only_while_it_drains() -> None:
    """Law: without trouble senders that know the list are refused only while it drains;
    after its publication they are served.
    """
    world = ExpandingWorld(Random(1), 2, 4)
    request = ExpansionRequest("orders", config(8), LIMIT_MS, PROPAGATION_MS)
    phases: list[str | None] = []
    waits: dict[bool, int] = {True: 0, False: 0}
    for producer in world.producers * 10:
        world.send(producer)
    for step in range(6_000):
        phases.append(world.look(request))
        world.pass_time(10)
        if step % 4 == 0:
            world.consume()
        for producer in world.producers[:2]:
            if not world.send(producer):
                waits[producer.says] += 10
    assert [p for n, p in enumerate(phases) if n == 0 or p != phases[n - 1]] == [
        "Fencing",
        "Draining",
        "Switching",
        "Propagating",
        None,
    ]
    assert waits[True] < 1_000
    assert PROPAGATION_MS <= waits[False] < PROPAGATION_MS + 2_000


@pytest.mark.parametrize("forgotten", ["drain", "settle"])
def test_the_worlds_oracle_notices_a_growth_that_forgets_to_wait(forgotten: str) -> None:
    """Law: the check of the property test fails if any one of the rules is removed."""
    broken = 0
    for seed in range(12):
        world = ExpandingWorld(Random(seed), 2, 3)
        if forgotten == "drain":
            for broker in world.brokers.values():
                broker.lag = list  # type: ignore[method-assign]  # on purpose: nobody ever lags
        request = ExpansionRequest(
            "orders", config(7), LIMIT_MS, 0 if forgotten == "settle" else PROPAGATION_MS
        )
        consumer = ExpandingWorld.consume
        for producer in world.producers * 20:
            world.send(producer)
        try:
            for _ in range(1_200):
                world.send(world.random.choice(world.producers))
                if world.random.random() < 0.2:
                    lag = [b.__dict__.pop("lag", None) for b in world.brokers.values()]
                    consumer(world)
                    for broker, found in zip(world.brokers.values(), lag, strict=True):
                        if found is not None:
                            broker.lag = found  # type: ignore[method-assign]  # as above
                world.look(request)
                world.pass_time(world.random.choice((10, 50, 200)))
                world.check()
        except AssertionError:
            broken += 1
    assert broken > 0
