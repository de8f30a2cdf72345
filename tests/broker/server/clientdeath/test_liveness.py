"""A client is dead when its processes are dead; a closed connection alone is no proof."""

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
    """Law: the process id is read from a field (our SDK) or the client id (ip@PID#nanos, ip@PID); other ids name none."""
    assert pid_of(client_id, said) == pid


def test_only_its_own_addresses_are_this_machine() -> None:
    """Law: only addresses of this machine are looked up, never those of remote clients."""
    hosts = ("127.0.0.1", "::1", "::ffff:127.0.0.1", "192.0.2.1", "192.0.2.2", "?")

    assert [host for host in hosts if is_local(host, frozenset({"192.0.2.1"}))] == [*hosts[:4]]


def test_a_forwarded_loopback_address_means_the_machine_of_the_replica_that_forwards() -> None:
    """Law: a loopback address that another replica forwards belongs to that replica's machine and is not looked up here."""
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
    """Watch clients; the list collects those that were proven dead."""
    dead: list[str] = []
    liveness = Liveness(lambda client_id, proof, ends: dead.append(client_id))
    yield liveness, dead
    await liveness.close()


async def settled(liveness: Liveness) -> None:
    """Wait until no look is under way."""
    while liveness._tasks:
        await asyncio.gather(*liveness._tasks)


async def identified(liveness: Liveness, broker: Broker, *client_ids: str) -> None:
    """Let a client speak on each connection, and wait until its process is known."""
    for number, (end, client_id) in enumerate(zip(broker.ends, client_ids, strict=True)):
        liveness.seen(number, [client_id], end, ours=broker.ours)
    await settled(liveness)


@pytest.mark.parametrize("named", [False, True], ids=["any name", "named"])
async def test_a_killed_client_is_proven_dead(named: bool) -> None:
    """Law: a client whose process was killed is proven dead, whatever its instance name."""
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
    """Law: a client killed during its first look is proven dead, although its connection ends before the look."""
    with listening() as broker, client(broker) as process:
        async with watching() as (liveness, dead):
            name = f"127.0.0.1@{process.pid}#1" if named else NAME
            call_soon = asyncio.get_running_loop().call_soon_threadsafe

            with killed_during_a_look(process, lambda: call_soon(liveness.lost, 0)):
                await identified(liveness, broker, name)

            assert dead == [name]


async def test_what_is_seen_after_a_connection_was_lost_proves_nothing() -> None:
    """Law: a look that comes after the connection's end proves nothing, because the port may belong to another program."""
    with listening() as broker, client(broker) as process:
        async with watching() as (liveness, dead):
            liveness.seen(0, [NAME], broker.ends[0])
            liveness.lost(0)
            process.kill()
            process.wait()
            await settled(liveness)

            assert dead == []


async def test_a_living_client_that_closed_its_connection_is_not() -> None:
    """Law: a client that closed its connection but lives is not declared dead; after some looks we give up."""
    with listening() as broker, client(broker) as process:
        async with watching() as (liveness, dead):
            await identified(liveness, broker, NAME)

            process.send_signal(signal.SIGSTOP)
            liveness.lost(0)
            await asyncio.sleep(0.1)

            assert dead == []


async def test_a_client_whose_child_has_its_connection_is_not() -> None:
    """Law: a client whose child process still has the connection is not dead."""
    with listening() as broker, client(broker, "fork()") as process:
        async with watching() as (liveness, dead):
            await identified(liveness, broker, f"127.0.0.1@{process.pid}#1")

            process.kill()
            process.wait()
            liveness.lost(0)
            await asyncio.sleep(0.1)

            assert dead == []


async def test_of_the_members_that_may_be_meant_only_the_owner_of_the_connection_counts() -> None:
    """Law: among possible members, only the one whose process owns the connection is proven dead;
    after a change of leader a client may pull before it names itself.
    """
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
    """Law: for a client of another machine no member is examined, so that a stranger's pull costs nothing."""
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
    """Law: an unnamed client of this machine is matched with a limited number of members."""
    async with watching() as (liveness, _):
        liveness.guess(
            0, lambda: (f"127.0.0.1@{NOBODY}#{n}" for n in range(1_000)), ("127.0.0.1", 1)
        )
        await settled(liveness)

        assert len(liveness._known[0].clients) == GUESSES_MAX


async def test_a_client_that_names_itself_before_the_guess_needs_none() -> None:
    """Law: a client that names itself first needs no match with members."""
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
    """Law: one look identifies all connections of a process; else thousands of clients would cost quadratic work."""
    with listening() as broker, client(broker, connections=100):
        async with watching() as (liveness, _):
            await identified(liveness, broker, *(f"{NAME}-{number}" for number in range(100)))

            assert liveness.looks == 1
            assert liveness._connected.total() == 100


async def test_every_client_of_a_dead_process_is_proven_dead_once() -> None:
    """Law: every client of a dead process is proven dead once, also one whose connection ended earlier than the others."""
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
    """Law: looks use at most a tenth of a CPU, measured in CPU time, and the first ones do not wait."""
    budget = LookBudget()
    now_s, pauses = 100.0, []

    for _ in range(20):
        pauses.append(round(budget.pause_s(now_s), 3))
        now_s += pauses[-1] + 0.02
        budget.spend(0.02, now_s)

    assert pauses == [*[0] * 12, *[0.18] * 8]


def test_time_in_which_a_look_waits_is_not_its_own() -> None:
    """Law: time that a look spends waiting, for example on a busy machine, does not count as its CPU time."""
    _, cpu_s = _timed(time.sleep, 0.2)

    assert cpu_s < 0.1


async def test_who_speaks_for_several_clients_is_none_of_them() -> None:
    """Law: a process that speaks for several clients, as RocketMQ's proxy, is none of them, so its death is not theirs."""
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
    """Law: if two programs share a client id, the client lives as long as one of them does."""
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
    """Law: a program that uses another client's id does not prove it dead when it ends;
    the process number in the id counts.
    """
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
    """Law: a client that could not be identified after some looks is neither looked for again nor declared dead."""
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
    """Law: an error while one client is looked up does not stop the others from being looked up."""
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
    """Law: a remote client is not looked up."""
    async with watching() as (liveness, dead):
        liveness.seen(0, [NAME], ("192.0.2.200", 40_000))
        await settled(liveness)
        liveness.lost(0)
        await settled(liveness)

        assert (liveness.looks, dead) == (0, [])
