"""Members: when the others are notified, and what the table answers."""

import pytest

from orderlymq_broker.state.groups.members import since_ms, size_of, subscription_data
from orderlymq_broker.state.records import (
    MemberLeft,
    MembersChanged,
    MemberSeen,
    Subscription,
)
from orderlymq_protocol.body.clients import SubscriptionData
from tests.broker.state.entries import Replica


def member(client: str, *topics: str, group: str = "g", **more: str) -> MemberSeen:
    subscriptions = tuple(Subscription(topic) for topic in topics)
    return MemberSeen(
        group,
        client,
        more.pop("address", "h:1"),
        subscriptions=subscriptions,
        **more,  # type: ignore[arg-type]  # texts
    )


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (member("a", "t"), False),
        (member("a", "t", address="h:2"), False),
        (member("a", "u"), True),
        (member("a", "t", "u"), True),
        (member("a"), True),
        (member("b", "t"), True),
    ],
)
def test_the_others_are_notified_of_a_new_member_and_of_other_topics(
    replica: Replica, seen: MemberSeen, told: bool
) -> None:
    """Law: other members are notified of a new member and of changed topics; a new address is stored without notice."""
    replica.take(member("a", "t"))

    assert replica.take(seen) == [MembersChanged(("g",) if told else ())]
    assert replica.state.members.get("g", seen.client_id) == seen


def test_who_leaves_is_gone_and_its_group_with_the_last(replica: Replica) -> None:
    """Law: a member that leaves is removed from that consumer group only;
    with its last member the group is no longer listed.
    """
    replica.take(member("a", "t"), member("b", "t"), member("a", "t", group="h"))
    members, seen = replica.state.members, []
    for client in ("a", "b"):
        replica.take(MemberLeft("g", client))
        seen.append((list(members.groups()), members.groups_of(client)))

    assert seen == [(["g", "h"], ["h"]), (["h"], [])]
    assert (members.get("g", "a"), members.get("h", "b")) == (None, None)
    assert replica.take(MemberLeft("nobody", "a")) == [MembersChanged(())]


def test_of_equal_versions_the_first_client_decides(replica: Replica) -> None:
    """Law: of equal subscription versions that of the first client by name counts, so that all replicas agree."""
    for client in ("b", "a"):
        subscription = Subscription("t", client, version=1)
        replica.take(MemberSeen("g", client, "h:1", subscriptions=(subscription,)))

    assert replica.state.members.subscriptions("g") == {"t": Subscription("t", "a", version=1)}


def test_a_member_that_broadcasts_says_nothing_about_the_others(replica: Replica) -> None:
    """Law: is_broadcasting is True if any member broadcasts, all_broadcast only if all do."""
    replica.take(member("a", "t"), member("b", "t", group="h"))
    replica.take(member("b", "t", message_model="BROADCASTING"))
    replica.take(member("c", "t", group="i", message_model="BROADCASTING"))
    members, groups = replica.state.members, ("g", "h", "i", "nobody")

    assert [members.is_broadcasting(group) for group in groups] == [True, False, True, False]
    assert [members.all_broadcast(group) for group in groups] == [False, False, True, False]


def test_a_member_is_as_old_as_its_newest_subscription() -> None:
    """Law: a member is as old as its newest subscription; without a version its age is 0."""
    subscriptions = (Subscription("t", version=5), Subscription("u", version=9), Subscription("v"))

    assert since_ms(MemberSeen("g", "a", "h:1", subscriptions=subscriptions)) == 9
    assert since_ms(MemberSeen("g", "a", "h:1")) == 0


def test_a_subscription_goes_out_as_it_came_in() -> None:
    """Law: a subscription is sent as it was received, field by field."""
    subscription = Subscription("t", "a > 1", "SQL92", 7, (3, 4), ("x", "y"))

    assert subscription_data(subscription) == SubscriptionData(
        topic="t",
        sub_string="a > 1",
        tags_set=("x", "y"),
        code_set=(3, 4),
        sub_version=7,
        expression_type="SQL92",
    )


def test_a_new_subscription_counts_whichever_member_has_asked_before(replica: Replica) -> None:
    """Law: a new subscription counts immediately, even if the subscriptions were asked for just before."""

    def wanted() -> dict[str, str]:
        found = replica.state.members.subscriptions("g")
        return {topic: subscription.expression for topic, subscription in found.items()}

    seen = []
    for version, expression in enumerate(("x", "y")):
        subscription = Subscription("t", expression, version=version)
        replica.take(MemberSeen("g", "a", "h:1", subscriptions=(subscription,)))
        seen += [wanted(), wanted()]

    assert seen == [{"t": "x"}, {"t": "x"}, {"t": "y"}, {"t": "y"}]


def test_what_a_group_wants_is_what_its_members_say(replica: Replica) -> None:
    """Law: without subscriptions a consumer group may want any topic; else its members' topics and its retry topic."""
    members = replica.state.members
    before = [members.may_want("g", topic) for topic in ("t", "u", "%RETRY%g")]
    replica.take(member("a", "t"), member("b", "v"))

    assert before == [True, True, True]
    wanted = [members.may_want("g", topic) for topic in ("t", "v", "u", "%RETRY%g", "%RETRY%h")]
    assert wanted == [True, True, False, True, False]
    assert members.subscriptions("g") is members.subscriptions("g")
    assert list(members._subscriptions) == ["g"]


def test_all_that_a_member_says_counts_for_its_size() -> None:
    """Law: a member's size counts each subscription, code, tag and character, because all take memory on every replica."""

    def size(*wishes: Subscription) -> int:
        return size_of(MemberSeen("g", "a", "h:1", subscriptions=wishes))

    least = size(Subscription("t"))
    code, tag = size(Subscription("t", codes=(1,))), size(Subscription("t", tags=("x",)))

    assert 0 < size() < least < min(code, tag)
    assert size(Subscription("t" * 11)) == size(Subscription("t", "*" * 11)) == least + 10
    assert size(Subscription("t", tags=("x" * 11,))) == tag + 10
    assert size(Subscription("t", codes=(1,), tags=("x",))) == code + tag - least
    assert size(Subscription("t"), Subscription("t")) == 2 * least - size()
