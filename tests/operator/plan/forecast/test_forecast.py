"""Forecasts and a world that does not know them: all that happens was forecast, and all that was forecast happens."""

from dataclasses import fields, replace
from random import Random
from typing import Any

import pytest

from orderlymq_operator.plan.actions import (
    Action,
    ConsumerGroupConfig,
    Observed,
    ObservedGroup,
    SwitchTopic,
    UpdateTopic,
    UserConfig,
)
from orderlymq_operator.plan.forecast.consequences import (
    GROUP_FIELDS,
    USER_FIELDS,
    consequences,
)
from orderlymq_operator.plan.forecast.effects import Forecast
from orderlymq_operator.plan.forecast.forecast import forecast
from orderlymq_operator.plan.guard import ANNOTATION_CONFIRM, dangerous
from orderlymq_operator.resources.kinds import ConsumerGroup, Desired, Topic, User
from orderlymq_protocol.plurals import counted
from tests.operator.examples import desired, group, topic
from tests.operator.plan.forecast.foretold import allows
from tests.operator.plan.forecast.restlessworld import RestlessWorld
from tests.operator.plan.test_expansion import LaterConfig

CHANGES = 200  # The number of random changes that the issue asks for, per law.


def _user(name: str, **spec: Any) -> User:
    facts = {"clusterRef": {"name": "demo"}, "accessKey": f"access-{name}", **spec}
    return User.model_validate({"metadata": {"name": name}, "spec": facts})


def _topic(name: str, kind: str, queues: int, permission: str, expands: bool) -> Topic:
    policy = {"queueChangePolicy": "DrainAndSwitch"} if expands and kind == "Ordered" else {}
    facts = {"type": kind, "queues": queues, "permission": permission, "deletionPolicy": "Delete"}
    return topic(name, **facts, **policy)


_KINDS = ("Ordered", "Ordered", "Normal")
Manifests = tuple[list[Topic], list[ConsumerGroup], list[User], dict[str, Any]]


def _first(chance: Random) -> Manifests:
    """Return random manifests."""
    topics = [
        _topic(
            name, chance.choice(_KINDS), chance.randint(1, 6), "ReadWrite", chance.random() < 0.5
        )
        for name in chance.sample("abc", chance.randrange(4))
    ]
    groups = [_consumers(name, chance) for name in chance.sample("xyz", chance.randrange(3))]
    users = [_account(name, chance) for name in chance.sample("uv", chance.randrange(3))]
    spec = {
        "groups": chance.randint(1, 2),
        "replicasPerGroup": chance.choice([1, 3, 5]),
        "nameServers": {"replicas": chance.randint(1, 2)},
        "lock": {"leaseSeconds": 32},
    }
    return topics, groups, users, spec


def _changed(was: Manifests, chance: Random) -> Manifests:
    """Return *was* with a few edits, most of which are allowed."""
    topics, groups, users, spec = was
    servers = spec["nameServers"]["replicas"]
    spec = {
        "groups": chance.choice([spec["groups"], chance.randint(1, 3)]),
        "replicasPerGroup": chance.choice([spec["replicasPerGroup"], chance.choice([1, 3, 5])]),
        "nameServers": {"replicas": chance.randint(servers, 2)},
        "lock": {"leaseSeconds": chance.choice([32, 32, 90])},
    }
    kept = [each for each in topics if chance.random() < 0.8]
    edited = [
        _topic(
            each.topic_name,
            each.spec.type,
            each.spec.queues + chance.choice([0, 0, 0, 1, 4, -1]),
            chance.choice(["ReadWrite", "ReadOnly"]),
            chance.random() < 0.7,
        )
        if each.spec.queues > 1
        else each
        for each in kept
    ]
    known = {each.topic_name for each in topics}
    new = [name for name in "abcd" if name not in known and chance.random() < 0.3]
    edited += [
        _topic(name, chance.choice(_KINDS), chance.randint(1, 6), "ReadWrite", False)
        for name in new
    ]
    named = {each.metadata.name for each in groups if chance.random() < 0.8} | {
        chance.choice("xyz")
    }
    keys = {each.metadata.name for each in users if chance.random() < 0.8} | {chance.choice("uv")}
    return (
        edited,
        [_consumers(name, chance) for name in sorted(named)],
        [_account(name, chance) for name in sorted(keys)],
        spec,
    )


def _consumers(name: str, chance: Random) -> ConsumerGroup:
    return group(name, enabled=chance.random() < 0.5, deletionPolicy="Delete")


def _account(name: str, chance: Random) -> User:
    return _user(name, admin=chance.random() < 0.5)


def _wanted(manifests: Manifests, before: Desired | None = None) -> Desired:
    topics, groups, users, spec = manifests
    found = replace(desired(*topics, *groups, **spec), users=tuple(users))
    if before is None:
        return found
    return replace(
        found,
        deleted_topics=frozenset(
            {t.topic_name for t in before.topics} - {t.topic_name for t in topics}
        ),
        deleted_consumer_groups=frozenset(
            {g.group_name for g in before.consumer_groups} - {g.group_name for g in groups}
        ),
        deleted_users=frozenset(
            {u.access_key for u in before.users} - {u.access_key for u in users}
        ),
    )


def confirmed(before: Desired, wanted: Desired) -> Desired:
    """Return the wanted manifests with a confirmation of each dangerous edit."""
    tokens = [act.token for act in dangerous(before.cluster, wanted.cluster)]
    meta = wanted.cluster.metadata.model_copy(
        update={"annotations": {ANNOTATION_CONFIRM: ",".join(tokens)}}
    )
    return replace(wanted, cluster=wanted.cluster.model_copy(update={"metadata": meta}))


def _world(manifests: Manifests, chance: Random) -> tuple[RestlessWorld, Desired]:
    """Return a world that already has *manifests*, with random leaders."""
    before = _wanted(manifests)
    world = RestlessWorld(secrets=dict.fromkeys("uv", "fingerprint"))
    world.settle(before)
    for item in world.groups.values():
        item.leader = chance.choice(item.voters())
    world.happened.clear()
    world.restarts.clear()
    world.history.clear()
    return world, before


def _change(seed: int) -> tuple[RestlessWorld, Desired, Forecast]:
    """Return a world, a change of it, and the change's forecast."""
    chance = Random(seed)
    was = _first(chance)
    world, before = _world(was, chance)
    wanted = confirmed(before, _wanted(_changed(was, chance), before))
    return world, wanted, forecast(wanted, world.observed())


def _of_anybody(step: Action) -> Action:
    """Return a step without the topic's readers, which brokers report only during an expansion."""
    return replace(step, readers=()) if isinstance(step, SwitchTopic) else step


@pytest.mark.parametrize("seed", range(CHANGES))
def test_what_is_forecast_happens_and_nothing_else(seed: int) -> None:
    """Law: without trouble a change does exactly the forecast steps and restarts, in that order, and nothing unsaid."""
    world, wanted, said = _change(seed)

    if said.refusals:
        assert not said.steps
        return
    done = world.settle(wanted)
    assert said.complete
    assert {_of_anybody(step) for step in done} == {_of_anybody(step) for step in said.steps}
    unsaid = {fact for fact in world.happened if not allows(said, wanted, fact)}
    assert not unsaid, said
    for name in world.groups:
        order = [each for each in world.restarts if each.startswith(f"{name}/")]
        assert order == [each for each in said.targets("Restarts") if each.startswith(f"{name}/")]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(CHANGES))
def test_trouble_adds_nothing_that_was_not_forecast(seed: int) -> None:
    """Law: silence, crashes, slow replicas and elections make a change slower, but add nothing to the forecast."""
    world, wanted, said = _change(seed)
    if said.refusals:
        return
    world.random, world.elections = Random(seed), seed % 2 == 0

    world.settle(wanted)

    unsaid = {fact for fact in world.happened if not allows(said, wanted, fact)}
    moved = {name for kind, name, _ in unsaid if kind == "lead"}
    assert all(kind == "lead" for kind, _, _ in unsaid), said
    # A leader from an election in between may delay a restart or a removal.
    touched = {
        each.partition("/")[0] for each in (*said.targets("Restarts"), *said.targets("Removes"))
    }
    assert moved <= (touched if world.elections else set())
    assert set(world.restarts) == set(said.targets("Restarts"))


def test_most_random_changes_are_allowed_and_change_something() -> None:
    """Law: most random changes are allowed and change something; otherwise the two laws above would prove little."""
    found = [_change(seed)[2] for seed in range(CHANGES)]

    kinds = {effect.kind for said in found for effect in said.effects}
    assert sum(bool(said.steps) for said in found) > CHANGES // 2
    assert kinds >= {
        "Restarts",
        "MovesLeadership",
        "MovesKeys",
        "PausesWrites",
        "DeletesData",
        "Removes",
    }


def _texts(said: Forecast, kind: str, name: str) -> list[str]:
    return [
        f"{effect.kind}: {effect.text}"
        for each in said.resources
        if (each.subject.kind, each.subject.name) == (kind, name)
        for effect in each.effects
    ]


def _after(was: Desired, wanted: Desired, **leaders: int) -> Forecast:
    world = RestlessWorld()
    world.settle(was)
    for name, leader in leaders.items():
        world.groups[name.replace("_", "-")].leader = leader
    return forecast(wanted, world.observed())


def test_a_changed_setting_restarts_followers_and_then_the_leader() -> None:
    """Law: the forecast names the order of restarts, followers first, and where the leadership goes."""
    said = _after(desired(), desired(lock={"leaseSeconds": 90}), demo_0=2)

    assert _texts(said, "Cluster", "demo") == [
        "MovesLeadership: the leadership of demo-0 goes from replica 2 to replica 1; sends to the group wait until the new "
        "leader serves, about one election timeout (200ms) if it has a free CPU",
        "Restarts: demo-0 restarts one replica at a time, each when the others are healthy: 1, then 3, then 2",
    ]


def test_a_pause_of_sends_has_a_length() -> None:
    """Law: the forecast pause of sends is computed from the settings with which replicas run now;
    a starting process takes seconds.
    """
    slow = {"raftElectionTimeout": "2s"}
    moved = _after(desired(), desired(config=slow), demo_0=2)
    alone = _after(desired(replicasPerGroup=1), desired(replicasPerGroup=1, config=slow))

    assert "(200ms)" in _texts(moved, "Cluster", "demo")[0]
    assert "it serves again within seconds if its node has the image and the volume" in str(
        alone.effects
    )


@pytest.mark.parametrize(
    ("field", "found"), [("queues", 4), ("permission", 4), ("order", False), ("compacted", True)]
)
def test_no_changed_field_of_a_topic_goes_unsaid(field: str, found: Any) -> None:
    """Law: each changed field of a topic has a sentence in the forecast, even if its step comes later."""
    wanted = LaterConfig(8, 6, order=True)
    before = {"demo-0": replace(wanted, **{field: found}), "demo-1": wanted}
    groups = {name: ObservedGroup(1, {}, {"orders": config}) for name, config in before.items()}
    step = UpdateTopic("orders", "demo-0", wanted)

    said = consequences(desired(topic(), groups=2), Observed(groups=groups), [step])

    (effects,) = (each.effects for each in said if each.subject.kind == "Topic")
    assert [(each.kind, each.targets) for each in effects] == [("Changes", ("demo-0",))]


def test_a_changed_consumer_group_is_described_by_the_fields_of_its_manifest() -> None:
    """Law: a changed consumer group is described once per field, in the manifest's words."""
    was = desired(topic(), group("billing"))
    changed = group(
        "billing", onDeadLetter="HoldKey", consumeTimeout="5m", retry={"maxTimes": 5, "pause": "2s"}
    )

    said = _after(was, desired(topic(), changed))

    assert _texts(said, "ConsumerGroup", "billing") == [
        "Changes: its settings change on demo-0: consumeTimeout, onDeadLetter, retry.maxTimes, retry.pause"
    ]
    assert {each.name for each in fields(ConsumerGroupConfig)} == GROUP_FIELDS.keys()


def test_a_changed_user_is_described_by_the_fields_of_its_manifest() -> None:
    """Law: a changed user is described once per field, in the manifest's words; a new user is created."""
    world, before = _world(([], [], [_user("u")], {}), Random(0))
    changed = _user(
        "u", quotas={"connections": 9}, topics=[{"name": "orders", "permission": "SUB"}]
    )
    wanted = replace(before, users=(changed, _user("v")))

    said = forecast(wanted, world.observed())

    assert _texts(said, "User", "u") == ["Changes: its settings change on demo-0: quotas, topics"]
    assert _texts(said, "User", "v") == ["Creates: is created on demo-0"]
    known = {each.name for each in fields(UserConfig) if each.compare}
    assert known == USER_FIELDS.keys()


def test_the_only_replica_of_a_group_pauses_it() -> None:
    """Law: the restart of a group's only replica pauses that group; groups follow one after the other."""
    one = {"replicasPerGroup": 1, "groups": 2}

    said = _after(desired(**one), desired(**one, lock={"leaseSeconds": 90}))

    assert said.targets("Restarts") == ("demo-0/1", "demo-1/1")
    assert said.targets("PausesWrites") == ("demo-0", "demo-1")


def test_the_growth_of_an_ordered_topic_says_how_long_writes_pause_and_that_keys_move() -> None:
    """Law: an ordered topic's growth says how long writes may pause (by the manifest's limits) and that keys move."""
    grown = topic(queues=12, queueChangePolicy="DrainAndSwitch", drainTimeout="20s")

    said = _after(desired(topic()), desired(grown))

    pause, keys = _texts(said, "Topic", "orders")
    assert "at most 20s (drainTimeout)" in pause
    assert "refused for another 40s (routePropagationTime)" in pause
    assert keys.startswith("MovesKeys: keys move when the queues grow from 8 to 12 (12 on demo-0)")


def test_a_refused_change_does_nothing() -> None:
    """Law: a refused change does nothing, and each refusal says what to do instead."""
    said = _after(desired(topic()), desired(topic(queues=9), groups=2))

    assert not said.steps
    assert not said.resources
    assert [str(refusal) for refusal in said.refusals] == [
        "Topic 'orders', spec.queues: an Ordered topic keeps its 8 queues: with 9, keys would move to other queues and their "
        "messages could overtake each other; keep 8; to grow, set queueChangePolicy to DrainAndSwitch"
    ]


def test_a_live_setting_is_reported_although_nothing_is_done_for_it() -> None:
    """Law: a changed live setting is reported although no step is needed, even if it was unset before."""
    was = desired(config={"maxMessageSize": "1Mi"})

    live = _after(was, desired(config={"maxMessageSize": "2Mi"}))
    new = _after(desired(), desired(config={"fileReservedTime": 96}))

    assert not live.steps
    assert _texts(live, "Cluster", "demo") == [
        "Changes: config.maxMessageSize changes from 1Mi to 2Mi, without a restart"
    ]
    assert _texts(new, "Cluster", "demo") == [
        "Changes: config.fileReservedTime changes from unset to 96, without a restart"
    ]


def test_a_confirmed_shorter_retention_still_says_what_it_deletes() -> None:
    """Law: a plan names the messages that a shorter retention deletes, also when the edit is confirmed."""
    was, wish = desired(), desired(retention={"time": "1h"})
    (act,) = dangerous(was.cluster, wish.cluster)
    meta = wish.cluster.metadata.model_copy(update={"annotations": {ANNOTATION_CONFIRM: act.token}})
    confirmed = replace(wish, cluster=wish.cluster.model_copy(update={"metadata": meta}))

    said = _after(was, confirmed)

    assert not said.refusals
    assert _texts(said, "Cluster", "demo") == [
        "Changes: retention.time changes from 72h to 1h, without a restart",
        "DeletesData: messages that are older than 1h are deleted, which were kept for 72h",
    ]


def test_a_refused_cluster_is_reported_once() -> None:
    """Law: the refusal of a Cluster is reported once, and nothing else is planned."""
    said = _after(desired(groups=2), desired(groups=1))

    assert [refusal.field for refusal in said.refusals] == ["spec.groups"]


def test_a_deleted_topic_takes_its_messages_along() -> None:
    """Law: a deleted topic is named with the loss of its messages, although no manifest has it any more."""
    gone = replace(desired(), deleted_topics=frozenset({"orders"}))

    said = _after(desired(topic()), gone)

    assert _texts(said, "Topic", "orders") == [
        "DeletesData: is deleted with its messages from demo-0"
    ]


def test_what_does_not_answer_is_not_guessed() -> None:
    """Law: a forecast says nothing about a silent raft group; it would promise to create what exists."""
    world = RestlessWorld()
    world.settle(desired(topic(), groups=2))
    world.groups["demo-1"].leader = None

    said = forecast(desired(topic(), topic("bills"), groups=2), world.observed())

    assert not said.steps
    assert _texts(said, "Topic", "bills") == [
        "Waits: demo-1 does not answer: its topics, consumer groups and users are not known, so nothing is forecast"
    ]


@pytest.mark.parametrize("count", [1, 3])
def test_from_nothing_everything_is_created(count: int) -> None:
    """Law: a first creation is forecast like any other change."""
    said = forecast(desired(topic(), group(), replicasPerGroup=count), Observed())

    assert _texts(said, "Cluster", "demo") == [
        "Adds: name servers start: 0",
        f"Adds: group demo-0 is added, with {counted(count, 'replica')}",
    ]
    assert _texts(said, "Topic", "orders") == ["Creates: is created with 8 queues: 8 on demo-0"]
    assert _texts(said, "ConsumerGroup", "billing") == ["Creates: is created on demo-0"]


def test_nothing_to_do_has_no_effects() -> None:
    """Law: manifests that are already effective have no effects."""
    said = _after(desired(topic(), group()), desired(topic(), group()))

    assert not said.steps
    assert not said.effects
