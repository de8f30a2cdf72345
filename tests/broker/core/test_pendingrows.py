"""The limits of tables count uncommitted requests, so that concurrent requests do not pass a limit together."""

from collections.abc import Callable

import pytest

from orderlymq_broker.processors.admin.accounts import ACCOUNTS_MAX
from orderlymq_broker.processors.groups.locks import LOCKS_MAX
from orderlymq_broker.processors.groups.offsets import OFFSETS_MAX
from orderlymq_broker.state.admin.accessrecords import AccountSet
from orderlymq_broker.state.groups.members import MEMBERS_SIZE_MAX
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_broker.state.transactions.halves import OPEN_MAX, OPEN_OF_GROUP_MAX
from tests.broker.processors.driver import Shell
from tests.broker.processors.groups.test_memberlimits import large_heartbeat
from tests.broker.processors.halves import GROUP, half_properties
from tests.broker.processors.requests import commit_ext, create, lock_body, send_ext


def commit(shell: Shell, number: int) -> int:
    return shell.submit(15, commit_ext(0, queue=number))


def lock(shell: Shell, number: int) -> int:
    return shell.submit(41, {}, lock_body("alice", number))


def make_account(shell: Shell, number: int) -> int:
    return shell.submit(50, {"accessKey": f"account-{number}", "secretKey": "12345678"})


def open_half(shell: Shell, number: int) -> int:
    ext = send_ext("orders", half_properties(f"U{number}"), a=GROUP, f=4)
    return shell.submit(310, ext, b"half")


def join(shell: Shell, number: int) -> int:
    return shell.submit(34, {}, large_heartbeat(f"c{number}", 300))


def leave_offset(shell: Shell) -> None:
    shell.state.offsets.count = OFFSETS_MAX - 1


def leave_lock(shell: Shell) -> None:
    shell.state.locks.count = LOCKS_MAX - 1


def leave_account(shell: Shell) -> None:
    account = AccountSet("present", "12345678")
    shell.state.access.accounts.update({str(n): account for n in range(ACCOUNTS_MAX - 1)})


def leave_half_of_group(shell: Shell) -> None:
    shell.state.transactions._by_source[GROUP, "orders"] = OPEN_OF_GROUP_MAX - 1


def leave_half(shell: Shell) -> None:
    shell.state.transactions.room.take("others", OPEN_MAX - 3)


def leave_member(shell: Shell) -> None:
    shell.state.members.large_room.take("others", MEMBERS_SIZE_MAX - 200_000)


@pytest.mark.parametrize(
    ("leave", "ask"),
    [
        (leave_offset, commit),
        (leave_lock, lock),
        (leave_account, make_account),
        (leave_half_of_group, open_half),
        (leave_half, open_half),
        (leave_member, join),
    ],
)
def test_requests_of_one_round_trip_find_room_for_one(
    leave: Callable[[Shell], None], ask: Callable[[Shell, int], int]
) -> None:
    """Law: of two concurrent requests for one free row, one is refused; rows that were lost or applied do not count twice."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 4, 4), GroupSet("billing"))
    open_half(shell, 9)
    shell.settle()
    leave(shell)
    ask(shell, 0)
    shell.lose_proposals()

    asked = [ask(shell, number) for number in (1, 2)]
    shell.settle()

    first, second = [reply.code for each in asked if (reply := shell.reply_to(each))]
    assert first == 0
    assert second != 0
    assert not shell.core.context.entries.pending_rows
