"""The simulator would notice: each planted defect is caught, by the check and the seed that are on record."""

import pytest

from tests.sim.defects.catalogue import DEFECTS
from tests.sim.defects.hunting import DOCUMENT, by_name, read_caught, written
from tests.sim.defects.planting import Bed
from tests.sim.world import simulate

CAUGHT = read_caught()


@pytest.mark.parametrize("name", CAUGHT)
def test_a_planted_defect_is_caught(name: str) -> None:
    """With the defect a law is broken; when this fails after a change, hunt for the seeds anew."""
    catch = CAUGHT[name]

    with by_name(name).planted():
        result = simulate(catch.seed)

    assert result.check == catch.check


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
