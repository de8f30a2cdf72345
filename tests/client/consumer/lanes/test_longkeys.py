"""Keys longer than what a member is shown of them: still one listener call at a time per key."""

from orderlymq.consumer.core.events import Tick
from orderlymq.consumer.lanes.core import LaneRules
from orderlymq.consumer.lanes.events import Fetched, Given
from orderlymq_protocol.body.lanes import KEY_LENGTH_SHOWN, Lane
from tests.client.consumer.lanes.test_core import LEASE_MS, Script, works
from tests.client.consumer.lanes.world import PLACE
from tests.client.messages import message

LONG = "k" * KEY_LENGTH_SHOWN


def brought(number: int, key: str, now_ms: int, script: Script) -> Fetched:
    """Return a fetch that brings one lane of a key."""
    lane = Lane(0, number, number, key[:KEY_LENGTH_SHOWN], (number,))
    given = Given(lane, (message(number),), key=key)
    return Fetched(PLACE, script.fetch, (given,), LEASE_MS, now_ms)


def test_a_long_key_waits_for_the_call_of_its_former_lane() -> None:
    """Law: if a long key's lease ended while its listener ran, and it comes back as another lane,
    the new call waits for the former one.
    """
    script = Script(LaneRules(workers=3))
    assert works(script.tell(1, brought(1, LONG + "a", 1, script))) == [(1, (1,))]
    script.tell(1 + LEASE_MS, Tick())
    now_ms = 2 + LEASE_MS

    assert works(script.tell(now_ms, brought(2, LONG + "a", now_ms, script))) == []
    assert works(script.tell(now_ms, brought(3, LONG + "b", now_ms, script))) == [(3, (3,))]
    assert works(script.done(now_ms + 1, 1)) == [(2, (2,))]
