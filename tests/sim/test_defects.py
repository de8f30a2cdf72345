"""The simulator would notice: each planted defect is caught, by the check and the seed that are on record."""

import pytest

from tests.sim.defects.catalogue import DEFECTS
from tests.sim.defects.defect import Bed
from tests.sim.defects.search import DOCUMENT, hunt, read_caught, written

pytestmark = pytest.mark.long

CAUGHT = read_caught()

# A change of a core shifts what a seed does, so others are tried too; a few defects take some 90 seeds.
SEEDS_MAX = 150


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CAUGHT)
def test_a_planted_defect_is_caught(name: str) -> None:
    """With the defect a law is broken: at the seed on record, or soon when the cores have changed."""
    seeds = [CAUGHT[name].seed, *range(SEEDS_MAX)]

    assert hunt(name, seeds) is not None


def test_there_are_enough_defects() -> None:
    """At least twenty different ones are noticed."""
    assert len(CAUGHT) >= 20


def test_the_document_shows_what_was_found() -> None:
    """Its table is the one that the hunt writes."""
    text = DOCUMENT.read_text()

    assert text == written(text, CAUGHT)


def test_a_defect_leaves_nothing_behind() -> None:
    """Planting one is undone, so that the next run has the real cores."""
    for defect in DEFECTS:
        bed = Bed()
        defect.plant(bed)
        former = [(owner, name) for owner, name, _ in bed._former]
        changed = [vars(owner)[name] for owner, name in former]
        bed.clear()
        for (owner, name), planted in zip(former, changed, strict=True):
            assert vars(owner)[name] is not planted
