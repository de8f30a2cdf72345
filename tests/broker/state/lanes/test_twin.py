"""Key lanes, compared with a twin that keeps every message of every key in a list."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orderlymq_broker.state.groups.failurepolicy import DeadPolicy
from orderlymq_broker.state.groups.lockrecords import ClientDead
from orderlymq_broker.state.lanes.lane import LaneState
from orderlymq_broker.state.lanes.lanerecords import (
    Granted,
    LaneDeadLettered,
    LaneFreed,
    LaneRef,
    LanesExpired,
    LanesReturned,
    ReportKind,
)
from orderlymq_broker.state.records import Commit, GroupDeleted, OffsetsReset
from tests.broker.state.lanes.world import GROUP, TOPIC, TRIES_MAX, LaneWorld


@dataclass
class Twin:
    """The twin: completed offsets and holders only, without numbers, heads, runs or indexes."""

    keys: list[str]
    scanned: int = 0
    complete: set[int] = field(default_factory=set)
    committed: int = 0
    # Maps an attempt to (client, offsets); ended attempts are not in it.
    hand: dict[int, tuple[str, list[int]]] = field(default_factory=dict)
    # Keys that nobody may get, and offsets of messages without a key.
    stuck: set[str | int] = field(default_factory=set)
    given: set[int] = field(default_factory=set)

    def name(self, offset: int) -> str | int:
        return self.keys[offset] or offset

    def owed(self) -> list[int]:
        return [offset for offset in range(self.scanned) if offset not in self.complete]

    def low_water(self) -> int:
        return next(iter(self.owed()), self.scanned)

    def handed_out(self, client: str, granted: tuple[Granted, ...]) -> None:
        """Check that a hand-out is the oldest message of a free lane, and note it."""
        for each in granted:
            assert each.attempt not in self.given, "a number was given twice"
            self.given.add(each.attempt)
            name = self.name(each.offsets[0])
            busy = {self.name(offsets[0]) for _, offsets in self.hand.values() if offsets}
            assert name not in busy, f"{name} has two holders"
            assert name not in self.stuck, f"{name} is held"
            mine = [offset for offset in self.owed() if self.name(offset) == name]
            assert list(each.offsets) == mine[: len(each.offsets)], "not the oldest of the key"
            self.hand[each.attempt] = (client, list(each.offsets))

    def move(self) -> None:
        self.committed = max(self.committed, self.low_water())


@dataclass
class Run:
    """The replica and the twin, which play the same steps."""

    world: LaneWorld
    twin: Twin
    attempts: list[Granted] = field(default_factory=list)

    def fetch(self, client: str, scan: int, take: int, ready: int) -> None:
        granted = self.world.fetch(client, scan=scan, take=take, ready=ready)
        self.twin.scanned = min(self.twin.scanned + scan, len(self.twin.keys))
        self.twin.handed_out(client, granted)
        self.attempts += granted

    def report(
        self, client: str, which: int, kind: ReportKind, count: int, policy: DeadPolicy
    ) -> None:
        if not self.attempts:
            return
        granted = self.attempts[which % len(self.attempts)]
        offset = (-1, *granted.offsets)[count % (len(granted.offsets) + 1)]
        verdict = self.world.say(
            client, kind, granted, offset, tries_max=2, policy=policy, due_ms=which
        )
        held = self.twin.hand.get(granted.attempt)
        if held is None or held[0] != client:
            assert verdict in ("stale", "done", "parked", "held", "dead", "released")
            return
        self.twin.complete |= {each for each in held[1] if each <= offset}
        left = [each for each in held[1] if each > offset]
        if kind == ReportKind.RENEW:
            self.twin.hand[granted.attempt] = (client, left)
            return
        del self.twin.hand[granted.attempt]
        if verdict in ("held", "dead"):
            self.twin.stuck.add(self.twin.name(left[0]))

    def end(self, client: str) -> None:
        """End what a client has in hand; a message that was in hand too often is dead."""
        hand = self.twin.hand
        lanes = {each.attempt: each.lane for each in self.attempts}
        for attempt, (holder, offsets) in hand.items():
            lane = self.world.queue.lanes.get(lanes[attempt])
            if holder == client and lane is not None and lane.state == LaneState.DEAD_LETTERING:
                assert lane.tries >= TRIES_MAX
                self.twin.stuck.add(self.twin.name(offsets[0]))
        self.twin.hand = {number: each for number, each in hand.items() if each[0] != client}

    def letter(self) -> None:
        """Store the dead letters that are due."""
        for lane in list(self.world.queue.in_state(LaneState.DEAD_LETTERING)):
            offset = lane.first
            self.world.take(LaneDeadLettered(GROUP, TOPIC, 0, lane.number, offset))
            self.twin.complete.add(offset)
            self.twin.stuck.discard(self.twin.name(offset))

    def free(self, key: str, *, skip: bool) -> None:
        lane = self.world.queue.of_key(key)
        held = lane is not None and lane.state == LaneState.HELD
        parked = lane is not None and lane.state == LaneState.PARKED
        self.world.take(LaneFreed(GROUP, TOPIC, key, skip))
        if held and not skip:
            self.twin.stuck.discard(key)
        if parked and skip:
            self.twin.stuck.add(key)

    def recreate(self) -> None:
        """Delete the consumer group with its offsets and create it again."""
        self.world.take(GroupDeleted(GROUP, clean_offsets=True))
        self.world.create()
        self.twin.scanned = self.twin.committed = 0
        self.twin.complete, self.twin.hand, self.twin.stuck = set(), {}, set()

    def check(self) -> None:
        """Compare both."""
        self.world.replica.state.check_invariants()
        if 0 not in self.world.replica.state.lanes.queues_of(GROUP, TOPIC):
            return
        queue = self.world.queue
        owed = sorted(each for lane in queue.lanes.values() for each in self.world.owed(lane))
        assert owed == self.twin.owed()
        assert queue.owed == len(owed)
        self.twin.move()
        assert queue.low_water() == self.twin.low_water()
        assert self.world.committed == self.twin.committed
        held = {
            lane.attempt: (lane.holder, list(lane.head[: lane.taken]))
            for lane in queue.in_state(LaneState.IN_HAND)
        }
        assert held == self.twin.hand
        parked = {lane.number: lane.due_ms for lane in queue.in_state(LaneState.PARKED)}
        for wall_ms in (-1, 0, 15, *parked.values()):
            due = [number for number, due_ms in parked.items() if due_ms <= wall_ms]
            assert sorted(lane.number for lane in queue.due(wall_ms)) == sorted(due)


_clients = st.sampled_from("ab")
_steps = st.one_of(
    st.tuples(st.just("fetch"), _clients, st.integers(0, 80), st.integers(1, 5), st.integers(0, 3)),
    st.tuples(
        st.just("report"),
        _clients,
        st.integers(0, 30),
        st.sampled_from(ReportKind),
        st.integers(0, 5),
        st.sampled_from(DeadPolicy),
    ),
    st.tuples(st.just("dead"), _clients),
    st.tuples(st.just("leaves"), _clients),
    st.tuples(st.just("expired"), _clients),
    st.tuples(st.just("letter")),
    st.tuples(st.just("free"), st.sampled_from(["x", "y"]), st.booleans()),
    st.tuples(st.just("restart")),
    st.tuples(st.just("recreate")),
)


def play(run: Run, step: tuple[object, ...]) -> None:
    match step:
        case ("fetch", str(client), int(scan), int(take), int(ready)):
            run.fetch(client, scan, take, ready)
        case (
            "report",
            str(client),
            int(which),
            ReportKind() as kind,
            int(count),
            DeadPolicy() as policy,
        ):
            run.report(client, which, kind, count, policy)
        case ("dead", str(client)):
            run.world.take(ClientDead(client, "gone"))
            run.end(client)
            run.world.create()
        case ("leaves", str(client)):
            run.world.take(LanesReturned(GROUP, client))
            run.end(client)
        case ("expired", str(client)):
            table = run.world.replica.state.lanes
            refs = tuple(
                LaneRef(TOPIC, 0, lane.number, lane.attempt)
                for _, lane in table.in_hand_of(client, GROUP, TOPIC)
            )
            run.world.take(LanesExpired(GROUP, refs))
            run.end(client)
        case ("letter",):
            if 0 in run.world.replica.state.lanes.queues_of(GROUP, TOPIC):
                run.letter()
        case ("free", str(key), bool(skip)):
            if 0 in run.world.replica.state.lanes.queues_of(GROUP, TOPIC):
                run.free(key, skip=skip)
        case ("restart",):
            again = run.world.replica.restarted()
            assert again.state.digest() == run.world.replica.state.digest()
            run.world.replica = again
        case ("recreate",):
            run.recreate()


@given(
    st.lists(st.sampled_from(["x", "x", "x", "y", ""]), min_size=1, max_size=200),
    st.lists(_steps, max_size=60),
)
@hypothesis_settings(max_examples=150, deadline=None)
def test_lanes_do_what_a_list_of_messages_does(
    keys: list[str], steps: list[tuple[object, ...]]
) -> None:
    """Law: a key has one holder, its oldest message comes first, nothing is lost,
    and the committed offset is the first owed message.
    """
    run = Run(LaneWorld(keys), Twin(keys))

    for step in steps:
        play(run, step)
        run.check()


def test_a_reset_begins_again_where_it_says() -> None:
    """Law: after a reset, messages from the new offset on come again; earlier ones are not owed any more."""
    world = LaneWorld(["x", "y", "x", "y"])
    for granted in world.fetch(scan=4):
        world.done(granted)

    world.take(OffsetsReset((Commit(GROUP, TOPIC, 0, 1),)))

    assert world.committed == 1
    assert [each.offsets for each in world.fetch(scan=4)] == [(1,), (2,)]
