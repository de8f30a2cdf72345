"""Identities of rows on their way out: the same rows are the same messages, other rows are others."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.messagequeue import MessageQueue
from orderlymq_spark.outgoing import runs

QUEUES = {"T": [MessageQueue("T", "b", number) for number in range(2)]}
ROWS = st.lists(
    st.fixed_dictionaries(
        {"sharding_key": st.sampled_from(["a", "b", None]), "body": st.sampled_from(["x", "y"])}
    ),
    min_size=1,
    max_size=6,
)


def identities(rows: list[dict[str, Any]], *, batch: str = "") -> list[str]:
    found = runs(rows, QUEUES, topic="T", order_by=(), app_id="job", batch=batch)
    return [message.unique_key for run in found for message in run.messages]


@given(ROWS, st.sampled_from(["", "7"]))
def test_the_same_rows_sent_again_are_the_same_messages(
    rows: list[dict[str, Any]], batch: str
) -> None:
    """And no two of them are one, though they may look alike."""
    found = identities(rows, batch=batch)

    assert identities(rows, batch=batch) == found
    assert len(set(found)) == len(rows)


@given(ROWS, ROWS)
def test_another_load_of_the_same_job_has_messages_of_its_own(
    one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    """A nightly job that says the same of a key as the night before says it again."""
    if one != other:
        assert set(identities(one)).isdisjoint(identities(other))


def test_rows_that_were_made_of_one_message_are_told_apart() -> None:
    """An order that became a row per item: each is a message, under its own key or the same one."""
    place = {"topic": "orders", "broker": "b", "queue_id": 3, "queue_offset": 17}
    rows = [{**place, "sharding_key": key, "body": "x"} for key in ("a", "a", "b", None, None)]

    assert len(set(identities(rows))) == 5
    # Another task has the rows of another key.
    assert set(identities(rows[:2])) | set(identities(rows[2:])) == set(identities(rows))
    other = [{**row, "broker": None, "message_id": "m"} for row in rows]
    assert len(set(identities(other))) == 5
