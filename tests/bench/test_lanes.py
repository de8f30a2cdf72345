"""The load with poison keys has the number of keys that its row names."""

from itertools import islice

from bench.handled import Done
from bench.lanes import FULL, POISON_RATE, poison_keys, quick_ones
from bench.laneworker import POISON


def test_a_run_with_poison_sends_all_of_its_keys() -> None:
    """All keys are sent at the run's rate within its duration, with and without poison."""
    for poisoned in (False, True):
        keys = poison_keys(FULL.poisoned_keys, poisoned=poisoned)
        sent = list(islice(keys, int(FULL.poison_seconds * POISON_RATE)))
        poison = [key for key in sent if key.startswith(POISON)]

        assert len({*sent} - {*poison}) == FULL.poisoned_keys
        assert (len({*poison}), len(poison)) == ((10, -(-len(sent) // 50)) if poisoned else (0, 0))


def test_a_slow_handler_is_none_that_others_notice() -> None:
    """Messages that waited long but were handled quickly stay."""
    waited = Done("a", 1, sent=0, begun=900_000_000, done=901_000_000)
    slow = Done("b", 2, sent=0, begun=0, done=100_000_000)

    assert quick_ones([waited, slow]) == [waited]
