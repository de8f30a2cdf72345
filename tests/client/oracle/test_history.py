"""Histories survive a kill in the middle of a line and refuse any other damage."""

from pathlib import Path

import pytest

from orderlymq.oracle.history import HistoryError, Recorder, read
from orderlymq.oracle.verdict import Kind


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    """Law: two recorders may share a file; each event is read with its process and attributes."""
    path = tmp_path / "history.jsonl"

    with Recorder(path, process="p1") as one, Recorder(path, process="p2") as two:
        one.record("send", topic="orders", key="k", message="a")
        two.record(Kind.ACK, topic="orders", message="a", queue="g0:3", offset=7)

    events = list(read(path))
    assert [(e.kind, e.process, e.message, e.queue, e.offset) for e in events] == [
        (Kind.SEND, "p1", "a", "", -1),
        (Kind.ACK, "p2", "a", "g0:3", 7),
    ]
    assert events[0].at <= events[1].at


def test_a_line_cut_short_by_a_kill_is_dropped(tmp_path: Path) -> None:
    """Law: an incomplete last line is dropped, because its process died while writing it."""
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'{"at":1,"kind":"scanned","topic":"t"}\n{"at":2,"ki')

    assert [event.kind for event in read(path)] == [Kind.SCANNED]


def test_a_bad_line_names_file_and_line(tmp_path: Path) -> None:
    """Law: a bad line is refused with file and line number."""
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'{"at":1,"kind":"nonsense"}\n{"at":2,"kind":"scanned"}\n')

    with pytest.raises(HistoryError, match=r"history\.jsonl, line 1: 'nonsense'"):
        list(read(path))


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ('"at":"2"', "at is '2', not a number"),
        ('"at":true', "at is True, not a number"),
        ('"offset":null', "offset is None, not a number"),
        ('"offset":"3"', "offset is '3', not a number"),
        ('"attempt":1.5', r"attempt is 1\.5, not a number"),
        ('"message":["a"]', r"message is \['a'\], not text"),
        ('"key":7', "key is 7, not text"),
        ('"ofset":1', "ofset"),
    ],
)
def test_a_field_of_another_type_names_file_and_line(
    tmp_path: Path, field: str, words: str
) -> None:
    """Law: a field of a wrong type is refused with file and line number."""
    path = tmp_path / "history.jsonl"
    path.write_text(f'{{"at":1,"kind":"ack",{field}}}\n{{"at":2,"kind":"scanned"}}\n')

    with pytest.raises(HistoryError, match=rf"history\.jsonl, line 1: .*{words}"):
        list(read(path))


def test_an_unknown_attribute_is_refused_immediately(tmp_path: Path) -> None:
    """Law: an unknown attribute is refused, so that a typo does not disable a check."""
    with (
        Recorder(tmp_path / "h", process="p") as recorder,
        pytest.raises(HistoryError, match="an event has no field 'ofset'"),
    ):
        recorder.record("ack", ofset=1)
