"""The timestamps of a send, combined into phases."""

import json
from dataclasses import replace

from bench.tail.phases import (
    OWN_DISK,
    OWN_WRITER,
    THEIR_DISK,
    THEIR_LOOP,
    Send,
    Stamps,
    Sync,
    Trace,
    cause,
    jobs,
    meanwhile,
    send,
    table,
)

MS = 1_000_000
STAMPS = Stamps(began=0, written=1, received=90, woke=95)
#: The leader's disk finishes before the second copy; node 3 answers after the client has its answer.
LEADER = Trace(
    arrived=[10],
    built=[15],
    answered=[80],
    heard=[(60, 2), (99, 3)],
    syncs=[Sync(16, 40, 20)],
)
FOLLOWERS = {2: Trace(syncs=[Sync(20, 55, 30)]), 3: Trace(syncs=[Sync(20, 90, 60)])}


def test_the_phases_of_a_send_are_its_whole_time() -> None:
    """The wait ends with the second of three copies, here that of a follower with a slow disk."""
    found = send(STAMPS, LEADER, FOLLOWERS)

    assert found == Send(STAMPS, (1, 9, 5, 45, 20, 10, 5), THEIR_DISK)
    assert sum(found.phases) == STAMPS.total


def test_the_wait_is_for_whoever_made_the_majority() -> None:
    """The third copy delays no send."""

    def waited(own: Sync, *heard: tuple[int, int]) -> str:
        found = send(STAMPS, replace(LEADER, syncs=[own], heard=list(heard)), FOLLOWERS)
        assert found is not None
        return found.waited_for

    assert waited(Sync(16, 70, 50), (30, 2)) == OWN_DISK
    assert waited(Sync(16, 70, 10), (30, 2)) == OWN_WRITER
    assert waited(Sync(16, 70, 10), (30, 2), (90, 3)) == OWN_WRITER
    slow = {2: Trace(syncs=[Sync(50, 55, 5)])}
    found = send(STAMPS, replace(LEADER, heard=[(75, 2)]), slow)
    assert found is not None
    assert found.waited_for == THEIR_LOOP


def test_two_followers_are_a_majority_without_the_leaders_disk() -> None:
    leader = replace(LEADER, syncs=[Sync(16, 79, 60)], heard=[(30, 2), (35, 3)])

    found = send(STAMPS, leader, FOLLOWERS)

    assert found is not None
    assert found.phases[3] == 35 - 15


def test_a_send_without_all_its_stamps_is_left_out() -> None:
    """Another replica led, or its answer was lost."""
    assert send(STAMPS, Trace(), FOLLOWERS) is None
    assert send(STAMPS, replace(LEADER, heard=[], syncs=[]), FOLLOWERS) is None
    assert send(replace(STAMPS, received=70), LEADER, FOLLOWERS) is None


def test_a_slow_send_is_put_down_to_what_exceeds_its_usual_length_most() -> None:
    """A slow send is attributed to an unusual phase, not to one that is always long."""
    usual = (1, 1, 1, 50, 1, 1, 1)

    assert cause(Send(STAMPS, (1, 1, 1, 55, 1, 9, 1), OWN_DISK), usual) == "way back"
    assert cause(Send(STAMPS, (1, 1, 1, 90, 1, 9, 1), OWN_DISK), usual) == OWN_DISK


def test_a_trace_is_read_as_it_was_written() -> None:
    lines = [
        *(["arrived", 1], ["built", 2], ["collection", 3, True], ["collection", 5, False]),
        *(["synced", 9, 4, 3], ["heard", 10, 2], ["answered", 11]),
    ]

    assert Trace.of([json.dumps(line) for line in lines]) == Trace(
        [1], [2], [11], [(10, 2)], [Sync(4, 9, 3)], [(3, 5)]
    )


def test_flushes_and_compactions_are_read_from_the_log_of_the_store() -> None:
    """The log has wall-clock times in microseconds."""

    def line(event: str, job: int, at: int) -> str:
        told = json.dumps({"time_micros": at, "job": job, "event": event})
        return f"2026/11/30-23:17:59.449138 12 EVENT_LOG_v1 {told}"

    log = [
        *(
            "RocksDB version: 9",
            line("flush_started", 1, 1_000),
            line("compaction_started", 2, 1_001),
        ),
        *(line("flush_finished", 1, 1_005), line("table_file_creation", 1, 1_004)),
        line("compaction_finished", 2, 1_009),
    ]

    assert jobs(log, 1_000_000) == [(0, 5_000), (1_000, 9_000)]


def test_what_ran_meanwhile_overlaps_a_send() -> None:
    assert meanwhile(STAMPS, [(-5, 1)])
    assert meanwhile(STAMPS, [(94, 200)])
    assert not meanwhile(STAMPS, [(-5, 0), (95, 200)])


def test_the_table_counts_causes_and_what_ran_meanwhile() -> None:
    usual = (MS, 0, 0, 0, 0, 0, 0)
    quick = [Send(Stamps(0, 0, 0, MS), usual, OWN_DISK)] * 8
    slow = [
        Send(Stamps(10 * MS, 0, 0, 14 * MS), (MS, 0, 0, 3 * MS, 0, 0, 0), OWN_DISK),
        Send(Stamps(20 * MS, 0, 0, 25 * MS), (5 * MS, 0, 0, 0, 0, 0, 0), OWN_DISK),
    ]

    text = list(table([*quick, *slow], 2, {"flush": [(12 * MS, 13 * MS)]}))

    assert "| client, before the write | 1.000 | 3.000 |" in text
    assert "| together | 1.000 | 4.500 |" in text
    assert text[-2:] == [
        "| leader's disk | 1 | 4.00 | 1 |",
        "| client, before the write | 1 | 5.00 | 0 |",
    ]
