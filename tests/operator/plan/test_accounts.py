"""Accounts come before queues in a raft group that joins, so it serves the same users as the others."""

from dataclasses import replace

from orderlymq_operator.plan.actions import (
    Action,
    CreateTopic,
    FenceTopic,
    ObservedExpansion,
    PutOrderConfig,
    ReportCondition,
    SetUser,
    Subject,
    TopicConfig,
)
from orderlymq_operator.plan.planner import plan, user_config
from orderlymq_operator.resources.kinds import Desired, Topic, User
from tests.operator.examples import desired, topic
from tests.operator.world import World

WRITER = User.model_validate(
    {"metadata": {"name": "shop-writer"}, "spec": {"clusterRef": {"name": "demo"}}}
)
SECRET = "f" * 16


def _wanted(*topics: Topic, acl: bool = True) -> Desired:
    found = desired(*topics, groups=2, config={"aclEnable": acl})
    return replace(found, users=(WRITER,))


def _world(**topics: TopicConfig) -> World:
    """Return a cluster whose second raft group has just joined; the first one has *topics*."""
    world = World()
    world.settle(desired(groups=2, config={"aclEnable": True}))
    for name, config in topics.items():
        if config.order:
            world.order_config[name] = f"demo-0:{config.queues}"
        world.perform(CreateTopic(name, "demo-0", config), desired(groups=2))
    return world


def _planned(
    wanted: Desired,
    world: World,
    *known: str,
    secret: str | None = SECRET,
    **more: ObservedExpansion,
) -> list[Action]:
    """Plan, if the raft groups *known* have the account and the first one has the topics' expansion *more*."""
    observed = world.observed()
    groups = {
        name: replace(
            group,
            users={"shop-writer": user_config(WRITER, SECRET)} if name in known else {},
            expansion=more if name == "demo-0" else {},
        )
        for name, group in observed.groups.items()
    }
    secrets = {"shop-writer": secret}
    return plan(wanted, replace(observed, groups=groups, secrets=secrets, accepted=None))


def _of(kind: type[Action], actions: list[Action]) -> list[Action]:
    return [each for each in actions if isinstance(each, kind)]


def test_a_raft_group_that_joins_gets_its_accounts_before_queues() -> None:
    """Law: a raft group that joins gets no queues before it has the accounts; otherwise it would refuse their users."""
    world = _world(orders=TopicConfig(8, 6, order=False))
    wanted = _wanted(topic(type="Normal", queues=16))

    first = _planned(wanted, world, "demo-0")
    then = _planned(wanted, world, "demo-0", "demo-1")

    config = user_config(WRITER, SECRET)
    assert _of(SetUser, first) == [SetUser("shop-writer", "shop-writer", "demo-1", config)]
    assert _of(CreateTopic, first) == []
    assert _of(CreateTopic, then) == [
        CreateTopic("orders", "demo-1", TopicConfig(8, 6, order=False))
    ]


def test_a_topic_says_which_account_it_waits_for() -> None:
    """Law: an unreadable Secret keeps a new raft group without queues, and the topic's condition names the account."""
    world = _world(orders=TopicConfig(8, 6, order=False))

    actions = _planned(_wanted(topic(type="Normal", queues=16)), world, "demo-0", secret=None)

    assert _of(CreateTopic, actions) == []
    (report,) = [
        each.condition
        for each in actions
        if isinstance(each, ReportCondition) and each.subject == Subject("Topic", "orders")
    ]
    assert report.status == "False"
    assert report.message == "demo-1 gets queues when it has the account shop-writer"


def test_an_ordered_topic_is_made_whole_or_not_yet() -> None:
    """Law: the list of an ordered topic is published only when all raft groups in it may get their queues."""
    wanted = _wanted(topic(type="Ordered", queues=16))

    actions = _planned(wanted, _world(), "demo-0", secret=None)

    assert _of(PutOrderConfig, actions) + _of(CreateTopic, actions) == []


def test_an_ordered_topic_does_not_grow_into_a_raft_group_without_accounts() -> None:
    """Law: an ordered topic does not expand (not even a fence) into a raft group without accounts."""
    world = _world(orders=TopicConfig(8, 6, order=True))
    wanted = _wanted(topic(type="Ordered", queues=16, queueChangePolicy="DrainAndSwitch"))
    still = ObservedExpansion(total=8, write_queues=8)

    waiting = _planned(wanted, world, "demo-0", secret=None, orders=still)
    ready = _planned(wanted, world, "demo-0", "demo-1", orders=still)

    assert _of(FenceTopic, waiting) == []
    assert _of(FenceTopic, ready) != []


def test_a_raft_group_that_joins_under_a_rotation_gets_no_queues_before_its_end() -> None:
    """Law: during a change of a User's secret a new raft group gets no queues; it would know only the new secret."""
    world = _world(orders=TopicConfig(8, 6, order=False))
    wanted = _wanted(topic(type="Normal", queues=16))
    known = user_config(WRITER, SECRET)
    rotation = WRITER.spec.secret_rotation.model_copy(update={"overlap_seconds": 0})
    spec = WRITER.spec.model_copy(update={"secret_rotation": rotation})
    at_once = replace(wanted, users=(WRITER.model_copy(update={"spec": spec}),))

    def planned(*former_until_ms: int, wanted: Desired = wanted) -> list[Action]:
        observed = world.observed()
        groups = {
            name: replace(group, users={"shop-writer": replace(known, former_until_ms=until_ms)})
            for (name, group), until_ms in zip(
                observed.groups.items(), former_until_ms, strict=True
            )
        }
        secrets: dict[str, str | None] = {"shop-writer": SECRET}
        return plan(wanted, replace(observed, groups=groups, secrets=secrets, accepted=None))

    waiting, whole, ended = planned(9_000, 0), planned(9_000, 9_500), planned(0, 0)

    assert [_of(CreateTopic, each) for each in (waiting, whole, ended)] == [
        [],
        [CreateTopic("orders", "demo-1", TopicConfig(8, 6, order=False))],
        [CreateTopic("orders", "demo-1", TopicConfig(8, 6, order=False))],
    ]
    assert (
        "demo-1 gets queues when the former secret of account shop-writer, which it does not know, has ended; set "
        "spec.secretRotation.overlapSeconds of its User to 0 to end it now"
        in {each.condition.message for each in waiting if isinstance(each, ReportCondition)}
    )
    ends = _of(SetUser, planned(9_000, 0, wanted=at_once))
    assert "demo-0" in {each.group for each in ends if isinstance(each, SetUser)}


def test_nothing_waits_for_accounts_that_nobody_has() -> None:
    """Law: a new cluster, and one without access control, makes its topics at once."""
    wanted = topic(type="Normal", queues=16)

    for actions in (
        _planned(_wanted(wanted), _world(), secret=None),
        _planned(_wanted(wanted, acl=False), _world(), "demo-0"),
    ):
        assert len(_of(CreateTopic, actions)) >= 2
