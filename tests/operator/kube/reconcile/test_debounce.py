"""The delay before bad news about a Cluster is reported."""

from orderlymq_operator.kube.reconcile.debounce import DEBOUNCE_MS, Debounce
from orderlymq_operator.plan.actions import ConditionReport

WELL = {"status": "True", "observedGeneration": 3}
SILENT = ConditionReport("False", "GroupNotReady", "replica 2 does not answer")
READY = ConditionReport("True", "Ready", "")


def test_what_passes_within_a_moment_is_never_reported() -> None:
    """Law: trouble that passes in a moment is never reported, even if it comes again and again."""
    debounce = Debounce()
    for begun in (0, DEBOUNCE_MS, 2 * DEBOUNCE_MS):
        assert debounce.hold("demo", WELL, SILENT, 3, begun)
        assert not debounce.hold("demo", WELL, READY, 3, begun + 100)


def test_what_lasts_is_reported() -> None:
    """Law: lasting trouble is reported, and stays reported."""
    debounce = Debounce()

    assert debounce.hold("demo", WELL, SILENT, 3, 0)
    assert debounce.hold("demo", WELL, SILENT, 3, DEBOUNCE_MS - 1)
    assert not debounce.hold("demo", WELL, SILENT, 3, DEBOUNCE_MS)
    assert not debounce.hold("demo", {**WELL, "status": "False"}, SILENT, 3, DEBOUNCE_MS + 1)


def test_what_a_person_waits_for_is_reported_immediately() -> None:
    """Law: a new generation, an object without a status, and trouble that a person must cure are reported immediately."""
    debounce = Debounce()
    image = ConditionReport("False", "ImageUnavailable", "")

    assert not debounce.hold("demo", WELL, SILENT, 4, 0)
    assert not debounce.hold("demo", None, SILENT, 3, 0)
    assert not debounce.hold("demo", WELL, image, 3, 0)
