"""The SDK has every public method of RocketMQ's Java clients, or leaves it out with a reason."""

import re

import pytest

from orderlymq import TransactionProducer
from tests.client.parity.java import CLASSES
from tests.client.parity.ours import OURS
from tests.client.parity.table import MARK, PAGE, java_methods, resolve, rows, text

GUIDE = PAGE.parents[1] / "howto" / "python.md"


def test_every_class_has_a_table() -> None:
    """Law: each class whose methods were read has a table, and no other."""
    assert set(OURS) == set(CLASSES) == set(java_methods())


@pytest.mark.parametrize("name", list(CLASSES))
def test_every_method_has_a_row_and_every_name_of_ours_exists(name: str) -> None:
    """Law: every method has a row and every name of ours exists; a missing or differently named method has a reason."""
    found = rows(name)

    assert [row.method for row in found] == sorted(java_methods()[name])
    for row in found:
        for each in row.ours:
            assert resolve(each) is not None
        assert row.ours or row.why, row


@pytest.mark.parametrize("name", list(CLASSES))
def test_no_rule_is_for_a_method_that_is_gone(name: str) -> None:
    """Law: no rule names a method that the jars no longer have."""
    named = {method for methods, _, _ in OURS[name] for method in methods.split()}

    assert named <= set(java_methods()[name])


def test_the_page_shows_the_tables() -> None:
    """Law: the page has the code's tables; `python -m tests.client.parity.table` writes them again."""
    page = PAGE.read_text()

    assert page[page.index(MARK) :] == text()


def test_the_guide_says_of_each_kind_of_send_what_it_promises_and_what_it_is_for() -> None:
    """Law: the guide has one row with four answers for every way to send (PRO-13)."""
    section = GUIDE.read_text().partition("## Which send for what")[2].partition("\n## ")[0]
    kinds = re.findall(r"^\| `(\w+)` \|([^|]+)\|([^|]+)\|([^|]+)\|$", section, re.MULTILINE)
    ways = {name for name in dir(TransactionProducer) if name.startswith("send")} | {"request"}

    assert {name for name, *_ in kinds} == ways
    assert all(answer.strip() for _, *answers in kinds for answer in answers)
