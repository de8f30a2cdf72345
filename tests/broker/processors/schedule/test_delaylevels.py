"""How many messages of the delay levels one tick delivers."""

from collections import Counter

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.processors.schedule.delaylevels import COUNT_MAX, SIZE_MAX, STEP_MIN
from orderlymq_broker.state.records import DelayProgress, TopicSet
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import create, properties, send_ext
from tests.broker.store.memory import ScanningStore

LEVELS = range(1, 19)


def waiting(shell: Shell, counts: dict[int, int], *, size: int = 1) -> None:
    """Let so many messages wait in each level, all due after an outage."""
    create(shell, TopicSet("orders", 1, 1))
    for level, count in counts.items():
        for number in range(count):
            text = properties(DELAY=str(level), UNIQ_KEY=f"{level}-{number}")
            shell.submit(310, send_ext("orders", text), bytes(size))
        shell.settle()
    shell.wall_ms += 3 * 3_600_000


def tick(shell: Shell) -> Counter[int]:
    """Return how many messages of each level a tick proposes."""
    shell.wall_ms += 100
    effects = shell.core.tick(shell.now)
    shell.run(effects)
    return Counter(
        {
            record.queue_id + 1: record.end - record.start
            for effect in effects
            if isinstance(effect, Propose)
            for record in effect.records
            if isinstance(record, DelayProgress)
        }
    )


def test_a_tick_hands_on_so_many_of_all_levels_together(shell: Shell) -> None:
    """Law: a tick delivers a bounded number of messages over all levels, so that the leader is not silent;
    the rest follow.
    """
    waiting(shell, dict.fromkeys(LEVELS, 100))

    first = tick(shell)
    shell.settle()
    second = tick(shell)
    shell.settle()

    assert first.total() == COUNT_MAX
    assert first + second == dict.fromkeys(LEVELS, 100)


def test_a_full_level_keeps_no_other_back(shell: Shell) -> None:
    """Law: each tick goes on behind the level that was served last, so that a full level does not delay others."""
    waiting(shell, {1: 2 * COUNT_MAX, 2: 10, 18: 20})

    assert tick(shell) == {1: COUNT_MAX}
    assert tick(shell) == {2: 10, 18: 20}
    shell.settle()
    assert tick(shell) == {1: COUNT_MAX}


def test_a_tick_hands_on_so_many_bytes_of_all_levels_together(shell: Shell) -> None:
    """Law: the bytes of a tick are bounded over all levels together."""
    waiting(shell, dict.fromkeys(LEVELS, 1), size=SIZE_MAX // 3)

    assert [tick(shell).total() for _ in range(9)] == [2] * 9


def test_a_message_that_is_larger_than_a_ticks_room_goes_alone(shell: Shell) -> None:
    """Law: a message larger than a tick's limit is delivered alone."""
    waiting(shell, {1: 2, 2: 1}, size=SIZE_MAX)

    ticks = []
    for _ in range(3):
        ticks.append(tick(shell))
        shell.settle()

    assert ticks == [{1: 1}, {2: 1}, {1: 1}]


def test_a_tick_that_finds_few_due_reads_few_of_those_that_wait(shell: Shell) -> None:
    """Law: a tick reads few messages that are not due yet, even if thousands wait."""
    create(shell, TopicSet("orders", 1, 1))
    for number in range(10 * STEP_MIN):
        shell.submit(310, send_ext("orders", properties(DELAY="3", UNIQ_KEY=f"U{number}")), b"x")
        if number == 0:
            shell.settle()
            shell.wall_ms += 5_000
    shell.settle()
    shell.wall_ms += 5_000
    store = ScanningStore(shell.store)
    shell.core.context.reader = store

    effects = shell.core.delays.tick(shell.now)

    (proposal,) = [each for each in effects if isinstance(each, Propose)]
    assert len(proposal.records) == 2
    assert store.found <= STEP_MIN
    shell.core.context.reader = shell.store
    shell.run(effects)
    shell.settle()
