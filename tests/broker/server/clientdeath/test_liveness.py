"""A client is dead when its processes are: a closed connection alone proves nothing."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator

import pytest

from orderlymq_broker.server.clientdeath.liveness import (
    GUESSES_MAX,
    Liveness,
    LookBudget,
    _timed,
    is_local,
    is_of_another_machine,
    pid_of,
)
from tests.broker.server.clientdeath.children import Broker, client, killed_during_a_look, listening

NAME = "192.0.2.2@orders"
NOBODY = 2**22 + 1


@pytest.mark.parametrize(
    ("client_id", "said", "pid"),
    [
        ("192.0.2.2@23913#1266485203808", "", 23913),
        ("192.0.2.2@23913", "", 23913),
        ("192.0.2.2@23913@unit", "", 23913),
        ("192.0.2.2@DEFAULT", "", None),
        ("192.0.2.2@host12", "", None),
        ("23913", "", None),
        ("", "", None),
        ("192.0.2.2@orders", "17", 17),
        ("192.0.2.2@orders", "-1", None),
        ("192.0.2.2@orders", "9" * 30, None),
        ("192.0.2.2@orders", "\u0663", None),
    ],
)
def test_the_process_id_is_read_from_a_field_or_a_client_id(
    client_id: str, said: str, pid: int | None
) -> None:
    """RocketMQ writes ip@PID#nanos, older clients ip@PID, our SDK a field; others name none."""
    assert pid_of(client_id, said) == pid


def test_only_its_own_addresses_are_this_machine() -> None:
    """Nobody looks for the process of a remote client."""
    hosts = ("127.0.0.1", "::1", "::ffff:127.0.0.1", "192.0.2.1", "192.0.2.2", "?")

    assert [host for host in hosts if is_local(host, frozenset({"192.0.2.1"}))] == [*hosts[:4]]


def test_a_forwarded_loopback_address_means_the_machine_of_the_replica_that_forwards() -> None:
    """Law: nobody is looked for here whose address was seen on another machine."""
    asked = [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "localhost"),
        ("192.0.2.1", "broker-1.example"),
        ("127.0.0.1", "broker-1.example"),
        ("127.0.0.1", "192.0.2.2"),
        ("::ffff:127.0.0.1", None),
    ]

    found = [is_of_another_machine(host, replica) for host, replica in asked]

    assert found == [False, False, False, True, True, True]


@contextlib.asynccontextmanager
async def watching() -> AsyncIterator[tuple[Liveness, list[str]]]:
    """Watch clients; the list has those that were proven dead."""
    dead: list[str] = []
    liveness = Liveness(lambda client_id, proof, ends: dead.append(client_id))
    yield liveness, dead
    await liveness.close()


async def settled(liveness: Liveness) -> None:
    """Wait until nothing is being looked up."""
    while liveness._tasks:
        await asyncio.gather(*liveness._tasks)


async def identified(liveness: Liveness, broker: Broker, *client_ids: str) -> None:
    """Let a client speak on each connection, and wait until it is known."""
    for number, (end, client_id) in enumerate(zip(broker.ends, client_ids, strict=True)):
        liveness.seen(number, [client_id], end, ours=broker.ours)
    await settled(liveness)


@pytest.mark.parametrize("named", [False, True], ids=["any name", "named"])
async def test_a_killed_client_is_proven_dead(named: bool) -> None:
    """Whatever its instance name is."""
    with listening() as broker, client(broker) as process:
        async with watching() as (liveness, dead):
            name = f"127.0.0.1@{process.pid}#1" if named else NAME
            await identified(liveness, broker, name)
            assert liveness.identified == 1

            process.kill()
            process.wait()
            liveness.lost(0)
            await settled(liveness)

            assert dead == [name]
            assert liveness.identified == 0


@pytest.mark.parametrize("named", [False, True], ids=["any name", "named"])
async def test_a_client_that_is_killed_while_it_is_looked_for_is_proven_dead(named: bool) -> None:
    """It has just joined: its connection is lost before the look has an answer."""
    with listening() as broker, client(broker) as process:
        async with watching() as (liveness, dead):
            name = f"127.0.0.1@{process.pid}#1" if named else NAME
            call_soon = asyncio.get_running_loop().call_soon_threadsafe

            with killed_during_a_look(process, lambda: call_soon(liveness.lost, 0)):
                await identified(liveness, broker, name)

            assert dead == [name]


async def test_what_is_seen_after_a_connection_was_lost_proves_nothing() -> None:
    """The end of the connection may belong to another program by then."""
    with listening() as broker, client(broker) as process:
        async with watching() as (liveness, dead):
            liveness.seen(0, [NAME], broker.ends[0])
            liveness.lost(0)
            process.kill()
            process.wait()
            await settled(liveness)

            assert dead == []


async def test_a_living_client_that_closed_its_connection_is_not() -> None:
    """We look for a while and give up without proof."""
    with listening() as broker, client(broker) as process:
        async with watching() as (liveness, dead):
            await identified(liveness, broker, NAME)

            process.send_signal(signal.SIGSTOP)
            liveness.lost(0)
            await asyncio.sleep(0.1)

            assert dead == []


async def test_a_client_whose_child_has_its_connection_is_not() -> None:
    """The program may go on there."""
    with listening() as broker, client(broker, "fork()") as process:
        async with watching() as (liveness, dead):
            await identified(liveness, broker, f"127.0.0.1@{process.pid}#1")

            process.kill()
            process.wait()
            liveness.lost(0)
            await asyncio.sleep(0.1)

            assert dead == []


async def test_of_the_members_that_may_be_meant_only_the_owner_of_the_connection_counts() -> None:
    """After a change of leader a client pulls before it says who it is; its process identifies it."""
    with listening() as broker, client(broker) as process:
        async with watching() as (liveness, dead):
            mine, other = f"127.0.0.1@{process.pid}#1", f"127.0.0.1@{NOBODY}#2"
            assert not liveness.knows(0)
            liveness.guess(0, lambda: [other, mine, NAME], broker.ends[0])
            await settled(liveness)
            assert liveness.knows(0)

            process.kill()
            process.wait()
            liveness.lost(0)
            await settled(liveness)

            assert dead == [mine]
            assert not liveness.knows(0)


async def test_for_a_client_of_another_machine_no_member_is_looked_at() -> None:
    """Law: one pull of a stranger costs no object and no step per member of the group that it names."""
    asked: list[str] = []

    def members() -> list[str]:
        asked.append("members")
        return [f"192.0.2.{number % 250}@{number}#1" for number in range(1_000)]

    async with watching() as (liveness, _):
        for connection in range(100):
            liveness.guess(connection, members, ("192.0.2.200", 40_000 + connection))
        await settled(liveness)

        assert (asked, liveness.looks) == ([], 0)
        assert not any(known.clients for known in liveness._known.values())
        assert all(map(liveness.knows, range(100)))


async def test_an_unnamed_client_of_this_machine_is_taken_for_some_members_at_most() -> None:
    """Law: what a connection costs has a limit, however large its group is."""
    async with watching() as (liveness, _):
        liveness.guess(
            0, lambda: (f"127.0.0.1@{NOBODY}#{n}" for n in range(1_000)), ("127.0.0.1", 1)
        )
        await settled(liveness)

        assert len(liveness._known[0].clients) == GUESSES_MAX


async def test_a_client_that_names_itself_before_the_guess_needs_none() -> None:
    """Its members may be many."""
    with listening() as broker, client(broker) as process:
        async with watching() as (liveness, dead):
            mine = f"127.0.0.1@{process.pid}#1"
            liveness.guess(0, lambda: [f"127.0.0.1@{NOBODY}#2"], broker.ends[0])
            liveness.seen(0, [mine], broker.ends[0], ours=broker.ours)
            await settled(liveness)
            assert list(liveness._known[0].clients) == [mine]

            process.kill()
            process.wait()
            liveness.lost(0)
            await settled(liveness)

            assert dead == [mine]


async def test_one_look_answers_for_all_clients() -> None:
    """Thousands of clients of one process, each with its socket, would cost the square of that otherwise."""
    with listening() as broker, client(broker, connections=100):
        async with watching() as (liveness, _):
            await identified(liveness, broker, *(f"{NAME}-{number}" for number in range(100)))

            assert liveness.looks == 1
            assert liveness._connected.total() == 100


async def test_every_client_of_a_dead_process_is_proven_dead_once() -> None:
    """Also the one whose connection was seen to break while another of the process still seemed to live."""
    with listening() as broker, client(broker, connections=3) as process:
        async with watching() as (liveness, dead):
            names = [f"{NAME}-{number}" for number in range(3)]
            await identified(liveness, broker, *names)

            process.kill()
            process.wait()
            liveness.lost(0)
            await asyncio.sleep(0.05)
            before = list(dead)
            liveness.lost(1)
            liveness.lost(2)
            await settled(liveness)

            assert before == []
            assert sorted(dead) == names


def test_looks_take_a_tenth_of_a_cpu_and_the_first_ones_do_not_wait() -> None:
    """Only what they compute counts: on a busy machine clients would die before the pauses between looks end."""
    budget = LookBudget()
    now_s, pauses = 100.0, []

    for _ in range(20):
        pauses.append(round(budget.pause_s(now_s), 3))
        now_s += pauses[-1] + 0.02
        budget.spend(0.02, now_s)

    assert pauses == [*[0] * 12, *[0.18] * 8]


def test_time_in_which_a_look_waits_is_not_its_own() -> None:
    """On a busy machine a look takes long and computes little; the next client must not wait for that."""
    _, cpu_s = _timed(time.sleep, 0.2)

    assert cpu_s < 0.1


async def test_who_speaks_for_several_clients_is_none_of_them() -> None:
    """RocketMQ's proxy has one connection for many: its death is not theirs, which it names."""
    with listening() as broker, client(broker) as process:
        async with watching() as (liveness, dead):
            named = f"127.0.0.1@{process.pid}#1"
            liveness.seen(0, [NAME], broker.ends[0])
            await settled(liveness)
            liveness.seen(0, [NAME, f"{NAME}-2", named], broker.ends[0])
            await settled(liveness)

            process.kill()
            process.wait()
            liveness.lost(0)
            await settled(liveness)

            assert dead == [named]


async def test_of_two_programs_with_one_client_id_the_end_of_one_is_not_that_of_the_other() -> None:
    """Their instance names are the same: as long as one of them speaks, the client lives."""
    with listening() as broker, client(broker) as first, client(broker):
        async with watching() as (liveness, dead):
            await identified(liveness, broker, NAME, NAME)

            first.kill()
            first.wait()
            liveness.lost(0)
            await asyncio.sleep(0.1)

            assert dead == []


@pytest.mark.parametrize("has_number", [False, True], ids=["any id", "with its number"])
async def test_the_end_of_a_program_that_uses_the_id_of_another_is_not_that_of_the_other(
    has_number: bool,
) -> None:
    """It may say any process of its own in a field of its heartbeat: the one in the id counts."""
    with listening() as broker, client(broker) as thief, client(broker) as victim:
        async with watching() as (liveness, dead):
            name = f"127.0.0.1@{victim.pid}#1" if has_number else NAME
            liveness.seen(0, [name], broker.ends[0], str(thief.pid))
            liveness.seen(1, [name], broker.ends[1], "" if has_number else str(victim.pid))
            await settled(liveness)

            thief.kill()
            thief.wait()
            liveness.lost(0)
            await asyncio.sleep(0.1)

            assert dead == []


async def test_a_client_that_was_never_identified_is_not_judged() -> None:
    """Nor looked for without end."""
    with listening() as broker, client(broker, "one, two = socket.socketpair()") as process:
        async with watching() as (liveness, dead):
            for _ in range(5):
                liveness.seen(0, [f"127.0.0.1@{NOBODY}#1"], broker.ends[0])
                await settled(liveness)
            assert liveness.looks == 3

            process.kill()
            process.wait()
            liveness.lost(0)
            await settled(liveness)

            assert dead == []


@pytest.mark.parametrize("said", ["", str(NOBODY)], ids=["any name", "named"])
@pytest.mark.parametrize("end", [("", 0), ("127.0.0.1", -1)])
async def test_a_client_that_cannot_be_looked_for_keeps_no_other_from_it(
    end: tuple[str, int], said: str
) -> None:
    """Law: whatever the end of one connection is, the others are looked for at their next heartbeat."""
    with listening() as broker, client(broker) as process:
        async with watching() as (liveness, dead):
            liveness.seen(1, ["192.0.2.2@other"], end, said, ours=broker.ours)
            for _ in range(2):
                liveness.seen(0, [NAME], broker.ends[0], ours=broker.ours)
                await settled(liveness)

            process.kill()
            process.wait()
            liveness.lost(0)
            await settled(liveness)

            assert dead == [NAME]


async def test_a_remote_client_is_not_looked_for() -> None:
    """No process of this machine can be its own."""
    async with watching() as (liveness, dead):
        liveness.seen(0, [NAME], ("192.0.2.200", 40_000))
        await settled(liveness)
        liveness.lost(0)
        await settled(liveness)

        assert (liveness.looks, dead) == (0, [])
