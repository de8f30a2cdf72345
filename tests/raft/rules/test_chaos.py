"""Random faults, checked against the properties of figure 3 of the raft paper; see harness/chaos.py."""

import pytest

from tests.raft.harness.chaos import Chaos

SEEDS = 320
SEEDS_PER_TEST = 20
STEPS = 1500


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_safety_survives_faults_and_progress_follows_them(first: int) -> None:
    """Law: election safety, log matching, leader completeness, state machine safety and reads hold;
    after the faults the group makes progress.
    """
    for seed in range(first, first + SEEDS_PER_TEST):
        try:
            Chaos(seed).run(STEPS)
        except AssertionError as error:
            error.add_note(f"reproduce with tests.raft.harness.chaos.Chaos({seed}).run({STEPS})")
            raise


def test_a_leader_may_find_changes_of_earlier_leaders_that_it_does_not_know_to_be_settled() -> None:
    """Law: a leader may have two membership changes in its log, if it restarted with an older commit index (seed 50118)."""
    Chaos(50118).run(STEPS)


def test_one_seed_gives_one_history() -> None:
    """Law: the seed alone decides what happens, so that a failure can be repeated."""
    runs = []
    for _ in range(2):
        chaos = Chaos(7)
        chaos.run(STEPS)
        runs.append((chaos.committed, chaos.leaders, chaos.reads))

    assert runs[0] == runs[1]
