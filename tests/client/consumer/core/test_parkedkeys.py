"""The ordered consumer core under `onDeadLetter: HoldKey`: where messages of a parked key go, and in which order."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from orderlymq.consumer.core.events import (
    DeadLetter,
    ListenerDone,
    OffsetIllegal,
    OrderedResult,
    ParkedFrom,
    Pulled,
    SendBackResult,
)
from orderlymq.consumer.core.queuestate import OrderedRules
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.message.properties import SHARDING_KEY
from tests.client.consumer.core.orderedscript import Script
from tests.client.messages import QUEUE, message

RULES = OrderedRules(reconsume_max=0, lease_ms=1_000_000, renew_ms=400_000)


def keyed(text: str, first: int = 0) -> list[ReceivedMessage]:
    """Return one message per letter; the letter is its key, and a dot means no key."""
    found = []
    for offset, key in enumerate(text, first):
        found.append(message(offset))
        if key != ".":
            found[-1].properties[SHARDING_KEY] = key
    return found


def running(
    text: str, *, batch_max: int = 1, parked: dict[str, ParkedFrom] | None = None
) -> Script:
    script = Script(
        OrderedRules(reconsume_max=0, lease_ms=1_000_000, renew_ms=400_000, batch_max=batch_max)
    )
    script.assign(QUEUE)
    script.grant(parked=parked)
    script.found(0)
    script.pulled_messages(keyed(text))
    return script


def test_later_messages_of_a_parked_key_go_behind_their_dead_letter_in_order_and_no_others() -> (
    None
):
    """Law: when a message of a fails, its key is parked: b is consumed,
    and each later a follows as a dead letter (PRB-08).
    """
    script = running("abaab")
    parked = ParkedFrom(0, "M0")

    script.done(OrderedResult.SUSPEND)
    script.copied(parked=parked)
    script.done()
    script.copied(parked=parked)
    script.copied(parked=parked)
    script.done()

    assert script.delivered == [[0], [1], [4]]
    assert script.letters == [(0, None), (2, parked), (3, parked)]
    assert script.committed == [1, 2, 3, 4, 5]
    assert script.reports("is parked behind M0")


def test_under_continue_the_key_goes_on() -> None:
    """Law: under Continue the broker parks nothing, and the key goes on."""
    script = running("aa")

    script.done(OrderedResult.SUSPEND)
    script.copied()

    assert script.delivered == [[0], [1]]
    assert script.letters == [(0, None)]


def test_parked_keys_are_known_before_the_first_message_of_a_queue_that_is_taken_over() -> None:
    """Law: a new holder gets the parked keys with the lock, so that none of their messages reaches its listener."""
    parked = ParkedFrom(1, "M1")
    script = running("aaba", parked={"a": parked})

    script.done()
    script.copied(parked=parked)
    script.done()

    assert script.delivered == [[0], [2]]
    assert script.letters == [(1, parked), (3, parked)]
    assert script.committed == [1, 2, 3]


def test_a_message_that_follows_waits_for_the_hand_over_before_it() -> None:
    """Law: dead letters are sent one at a time, so that their order stays; a refused one is repeated."""
    parked = ParkedFrom(0, "M0")
    script = running("aa", parked={"a": parked})

    script.tick(5_000)
    assert script.letters == [(0, parked)]
    script.copied(ok=False, parked=parked)
    script.tick(1_000)

    assert script.letters == [(0, parked), (0, parked)]
    assert script.delivered == []
    script.copied(parked=parked)
    assert script.letters[-1] == (1, parked)
    assert script.committed == [1]


def test_a_hold_whose_answer_was_lost_counts_and_is_asked_again() -> None:
    """Law: if the answer to a parking request is lost, the key counts as parked until a repeat is answered."""
    script = running("aa")
    maybe = ParkedFrom(0, "M0")

    script.done(OrderedResult.SUSPEND)
    script.copied(ok=False, parked=maybe)
    script.tick(1_000)

    assert script.delivered == [[0]]
    assert script.letters == [(0, None), (0, maybe)]
    script.copied()  # It was not parked after all; the policy is Continue.
    assert script.delivered == [[0], [1]]


def test_a_key_is_held_although_its_queue_began_anew_during_the_hand_over() -> None:
    """Law: a parking request answered after the queue began again still parks the key."""
    script = running("ab")
    parked = ParkedFrom(0, "M0")
    script.done(OrderedResult.SUSPEND)

    script.play(OffsetIllegal(QUEUE, script.generation(), 5))
    script.copied(parked=parked)
    script.pulled_messages(keyed("ab", 5))
    script.copied(parked=parked)

    assert script.letters == [(0, None), (5, parked)]
    assert script.delivered == [[0], [6]]


def test_a_released_key_is_consumed_from_the_message_that_learns_of_it() -> None:
    """Law: after a release, the key is consumed from the message on whose letter the broker reported it."""
    script = running("aa", parked={"a": ParkedFrom(0, "M0")})
    script.copied(parked=ParkedFrom(0, "M0"))

    script.copied(ok=False, released=True)

    assert script.delivered == [[1]]
    assert script.running[QUEUE].messages[0].reconsume_times == 0
    script.done()
    assert script.committed == [1, 2]
    assert script.reports("is released")


def test_a_stopped_queue_tries_its_message_for_ever() -> None:
    """Law: if the queue is to stop (StopQueue, or too many parked keys), its message is tried for ever."""
    script = running("ab")

    for _ in range(3):
        script.done(OrderedResult.SUSPEND)
        script.copied(ok=False)
        script.tick(1_000)

    assert script.delivered == [[0]] * 4
    assert script.committed == []


def test_a_batch_ends_before_a_held_message() -> None:
    """Law: a batch ends before a message of a parked key."""
    script = running("bbabb", batch_max=8, parked={"a": ParkedFrom(2, "M2")})

    script.done()
    script.copied(parked=ParkedFrom(2, "M2"))

    assert script.delivered == [[0, 1], [3, 4]]
    assert script.letters == [(2, ParkedFrom(2, "M2"))]


def test_without_auto_commit_a_held_message_waits_for_the_commit_of_what_came_before() -> None:
    """Law: without auto_commit a parked key's message waits for earlier commits; a rollback never brings it back."""
    script = running("bab", parked={"a": ParkedFrom(1, "M1")})
    script.done(auto_commit=False)
    script.copied(parked=ParkedFrom(1, "M1"))
    assert script.committed == []

    script.done(OrderedResult.ROLLBACK, auto_commit=False)
    script.tick(1_000)
    script.done(auto_commit=False)
    script.done(OrderedResult.COMMIT, auto_commit=False)

    assert script.delivered == [[0], [2], [0], [2]]
    assert script.committed == [3]


def test_a_new_lock_reports_again_what_is_held() -> None:
    """Law: a new lock brings the present parked keys, which other holders or administrators may have changed."""
    script = running("ab", parked={"a": ParkedFrom(0, "M0")})
    script.copied(parked=ParkedFrom(0, "M0"))
    script.refuse()

    script.tick(5_000)
    script.done()  # The result of the message that ran when the lock was lost.
    script.grant(epoch=3, parked={"b": ParkedFrom(1, "M1")})
    script.found(1)
    script.pulled_messages(keyed("bba", 1))
    script.copied(parked=ParkedFrom(1, "M1"))

    assert script.letters[1:] == [(1, ParkedFrom(1, "M1")), (2, ParkedFrom(1, "M1"))]
    script.copied(parked=ParkedFrom(1, "M1"))
    assert script.delivered == [[1], [3]]


def test_offsets_that_are_set_back_leave_the_hold() -> None:
    """Law: after a reset, a message before the key's first dead letter is consumed, one behind it is not."""
    script = running("aa", parked={"a": ParkedFrom(1, "M1")})
    script.done()

    assert script.delivered == [[0]]
    assert script.letters == [(1, ParkedFrom(1, "M1"))]


# -- against a dumb twin: a broker in five lines, crashes at every point ------------------------------------


@dataclass
class Broker:
    """The state that survives crashes: parked keys, dead letters, the committed offset."""

    parked: dict[str, ParkedFrom] = field(default_factory=dict)
    letters: list[int] = field(default_factory=list)
    offset: int = 0


@dataclass
class Run:
    """Members consume one queue one after the other; each crashes where the test data say."""

    text: str
    poison: frozenset[int]
    broker: Broker = field(default_factory=Broker)
    consumed: list[int] = field(default_factory=list)

    def member(self, steps: int) -> None:
        """Consume to the end, or crash after *steps* effects outside the core."""
        script = Script(RULES)
        script.assign(QUEUE)
        script.grant(parked=dict(self.broker.parked))
        script.found(self.broker.offset)
        rest = keyed(self.text)[self.broker.offset :]
        script.play(Pulled(QUEUE, script.generation(), tuple(rest), len(self.text)))
        for _ in range(steps):
            said = [each for each in script.said if isinstance(each, DeadLetter)]
            state = script.core.queues[QUEUE]
            if state.copying:
                self._hand_over(script, said[-1])
            elif QUEUE in script.running:
                self._listen(script)
            else:
                return
            self.broker.offset = max([self.broker.offset, *script.committed])

    def _listen(self, script: Script) -> None:
        deliver = script.running[QUEUE]
        (found,) = deliver.messages
        failed = found.queue_offset in self.poison
        if not failed:
            self.consumed.append(found.queue_offset)
        result = OrderedResult.SUSPEND if failed else OrderedResult.SUCCESS
        script.play(ListenerDone(QUEUE, deliver.generation, deliver.delivery, result))

    def _hand_over(self, script: Script, ask: DeadLetter) -> None:
        offset, key = ask.message.queue_offset, ask.message.key or ""
        parked = self.broker.parked.get(key)
        if key and parked is None:
            # The first of two steps; the member may crash between the parking and the letter.
            self.broker.parked[key] = ParkedFrom(offset, f"M{offset}")
            script.play(
                SendBackResult(QUEUE, ask.generation, offset, False, "", self.broker.parked[key])
            )
            script.tick(1_000)
            return
        if offset not in self.broker.letters:
            self.broker.letters.append(offset)  # The window of known sends.
        script.play(SendBackResult(QUEUE, ask.generation, offset, True, "", parked))


@given(
    text=st.text("ab.", min_size=1, max_size=12),
    poison=st.frozensets(st.integers(0, 11), max_size=4),
    crashes=st.lists(st.integers(1, 6), max_size=6),
)
def test_crashes_anywhere_lose_nothing_and_let_nothing_overtake(
    text: str, poison: frozenset[int], crashes: list[int]
) -> None:
    """Law: whatever crashes, each message is consumed or a dead letter;
    from a key's first letter on all of its messages are letters, in order.
    """
    run = Run(text, poison)

    for steps in [*crashes, 1_000]:
        run.member(steps)

    letters = run.broker.letters
    assert set(run.consumed) | set(letters) == set(range(len(text)))
    assert set(run.consumed).isdisjoint(letters)
    assert letters == sorted(letters)
    for key in "ab":
        places = [offset for offset, each in enumerate(text) if each == key]
        dead = [offset for offset in letters if offset in places]
        assert dead == places[len(places) - len(dead) :]
        assert not dead or dead[0] in poison
    alone = {offset for offset, each in enumerate(text) if each == "."}
    assert alone & set(letters) == alone & poison
