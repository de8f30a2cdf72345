"""Changes of a consumer group or account are checked one after the other, not against a state that another change replaces."""

import pytest

from orderlymq_broker.state.admin.accessrecords import AccountSet
from orderlymq_broker.state.records import GroupSet
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.driver import TOOL, Shell
from tests.broker.processors.requests import create, heartbeat_body

KEY = {"accessKey": "newone"}
SECRET = "newone-secret"


@pytest.fixture
def shell() -> Shell:
    return Shell().lead()


def together(shell: Shell, *requests: tuple[int, dict[str, str], bytes]) -> list[RemotingCommand]:
    """Hand in requests before any of them is applied; return the answers."""
    asked = [shell.submit(code, ext, body, caller=TOOL) for code, ext, body in requests]
    shell.settle()
    replies = [shell.reply_to(opaque) for opaque in asked]
    return [reply for reply in replies if reply is not None]


def test_a_deleted_account_does_not_come_back_by_a_change_behind_it(shell: Shell) -> None:
    """Law: a change of an account behind its deletion is refused; else it would create the account again with the old
    secret.
    """
    create(shell, AccountSet("newone", SECRET))

    deleted, changed = together(shell, (51, KEY, b""), (50, {**KEY, "topicPerms": "a=PUB"}, b""))

    assert deleted.code == 0
    assert (changed.code, changed.remark) == (1, "account[newone] is being changed; send it again")
    assert not shell.state.access.accounts
    assert shell.call(50, KEY, caller=TOOL).code == 209


def test_no_change_of_an_account_undoes_another_one(shell: Shell) -> None:
    """Law: while a change of an account is uncommitted, another one is refused, because each replaces the whole account.

    Other accounts may change.
    """
    create(shell, AccountSet("newone", SECRET, admin=True))

    replies = together(
        shell,
        (50, {**KEY, "admin": "false"}, b""),
        (50, {**KEY, "topicPerms": "a=PUB"}, b""),
        (50, {"accessKey": "another", "secretKey": SECRET}, b""),
    )

    assert [reply.code for reply in replies] == [0, 1, 0]
    assert shell.state.access.accounts["newone"] == AccountSet("newone", SECRET)
    assert shell.call(50, {**KEY, "topicPerms": "a=PUB"}, caller=TOOL).code == 0


def test_an_account_that_is_being_made_is_not_said_to_be_missing(shell: Shell) -> None:
    """Law: a deletion behind an uncommitted creation is refused as "being changed", not as missing."""
    _, refused = together(shell, (50, {**KEY, "secretKey": SECRET}, b""), (51, KEY, b""))

    assert (refused.code, refused.remark) == (1, "account[newone] is being changed; send it again")


def group(**members: object) -> bytes:
    return fastjson.dumps({"groupName": "billing", **members})


@pytest.mark.parametrize("there", [False, True])
def test_no_change_of_a_group_undoes_another_one(shell: Shell, there: bool) -> None:
    """Law: while a change of a group is uncommitted, another one is refused; a tool of 4.9 would write former values back."""
    create(shell, *[GroupSet("billing")] * there)

    changed, refused = together(shell, (200, {}, group(concurrency="Key")), (200, {}, group()))

    assert changed.code == 0
    assert (refused.code, refused.remark) == (1, "group[billing] is being changed; send it again")
    assert shell.state.groups.by_name["billing"].by_key
    assert shell.call(200, {}, group(), caller=TOOL).code == 0
    assert shell.state.groups.by_name["billing"].by_key


def test_a_group_stays_as_the_heartbeat_makes_it_that_is_under_way(shell: Shell) -> None:
    """Law: while a heartbeat creates a group, a tool's change is refused; it would take the mode by key away."""
    body = fastjson.loads(heartbeat_body("c1"))
    body["consumerDataSet"][0]["concurrency"] = "Key"

    _, refused = together(shell, (34, {}, fastjson.dumps(body)), (200, {}, group()))

    assert refused.code == 1
    assert shell.state.groups.by_name["billing"].by_key


def test_a_group_that_is_deleted_does_not_come_back_as_it_was(shell: Shell) -> None:
    """Law: a change behind a deletion of a group is refused; a group created afterwards has default values."""
    create(shell, GroupSet("billing", on_dead_letter="HoldKey"))

    deleted, refused = together(shell, (207, {"groupName": "billing"}, b""), (200, {}, group()))

    assert (deleted.code, refused.code) == (0, 1)
    assert shell.call(200, {}, group(), caller=TOOL).code == 0
    assert shell.state.groups.by_name["billing"].on_dead_letter == "Continue"


def test_a_list_names_a_group_once(shell: Shell) -> None:
    """Law: a list that names a group twice is refused, because the second entry would undo the first."""
    listed = [{"groupName": "billing", "concurrency": "Key"}, {"groupName": "billing"}]

    refused = shell.call(225, {}, fastjson.dumps({"groupConfigList": listed}), caller=TOOL)

    assert (refused.code, refused.remark) == (1, "the list names a group twice; name each once")


def test_a_setting_is_set_back_behind_a_change_that_is_under_way(shell: Shell) -> None:
    """Law: setting a key back works even if its change is still uncommitted."""
    before = shell.core.context.settings.storage.body_size_max
    changes = [f"maxMessageSize={size}".encode() for size in (65_536, before)]

    replies = together(shell, *((25, {}, change) for change in changes))

    assert [reply.code for reply in replies] == [0, 0]
    assert shell.core.context.settings.storage.body_size_max == before
