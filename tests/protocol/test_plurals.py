"""Numbers with their nouns."""

from orderlymq_protocol.plurals import counted


def test_one_is_no_plural() -> None:
    assert [counted(number, "queue") for number in (0, 1, 2)] == ["0 queues", "1 queue", "2 queues"]
    assert [counted(n, "try", "tries") for n in (1, 3)] == ["1 try", "3 tries"]
