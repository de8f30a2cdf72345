"""The key-value configuration survives the process, or the change is refused."""

import json
from pathlib import Path

import pytest

from orderlymq_nameserver.kv import SIZE_MAX, KvError, KvFile, KvTable


def test_what_was_answered_is_in_the_file(tmp_path: Path) -> None:
    """Law: a change is saved before it counts; the layout is RocketMQ's."""
    path = tmp_path / "deep" / "kv.json"
    table = KvTable(store=KvFile(path))
    table.put("n", "b", "2")
    table.put("n", "a", "ä")
    table.put("m", "k", "v")
    table.delete("m", "k")
    table.delete("m", "k")

    again = KvTable(KvFile(path).load())

    assert json.loads(path.read_text()) == {"configTable": {"n": {"b": "2", "a": "ä"}}}
    assert (again.table("n"), again.get("m", "k")) == ({"a": "ä", "b": "2"}, None)
    assert [entry.name for entry in path.parent.iterdir()] == ["kv.json"]


def test_a_change_that_cannot_be_saved_did_not_happen(tmp_path: Path) -> None:
    """Law: nobody is told of a value that the next life would not know."""
    (tmp_path / "file").write_text("")
    table = KvTable({"n": {"k": "old"}}, KvFile(tmp_path / "file" / "kv.json"))

    with pytest.raises(KvError, match="the change was refused"):
        table.put("n", "k", "new")
    with pytest.raises(KvError, match="the change was refused"):
        table.delete("n", "k")

    assert table.get("n", "k") == "old"


@pytest.mark.parametrize("content", [b"", b"{", b'{"configTable":[]}', b"\xff"])
def test_a_broken_file_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    """Law: starting over a file that cannot be read would lose it."""
    path = tmp_path / "kv.json"
    path.write_bytes(content)

    with pytest.raises(KvError, match="repair it or move it away"):
        KvFile(path).load()
    assert path.read_bytes() == content


def test_no_file_is_an_empty_configuration(tmp_path: Path) -> None:
    """Law: the first start needs no preparation."""
    assert KvFile(tmp_path / "kv.json").load() == {}


def test_what_is_kept_is_bounded_and_can_be_made_smaller() -> None:
    """Law: a client that may write values cannot fill the name server with them; what is there can be replaced."""
    table = KvTable({"n": {"k": "v"}})
    half = "x" * (SIZE_MAX // 2)
    table.put("n", "a", half)

    with pytest.raises(KvError, match="delete what is not needed"):
        table.put("m", "b", half)
    assert table.get("m", "b") is None

    table.put("n", "a", "")
    table.put("m", "b", half)
    table.delete("m", "b")
    table.put("m", "c", half)
    assert table.get("m", "c") == half


def test_a_file_that_is_too_large_is_kept_and_only_grows_no_more() -> None:
    """Law: what an earlier release has stored is not lost, and it can be reduced."""
    table = KvTable({"n": {"a": "x" * SIZE_MAX, "b": "yy"}})

    with pytest.raises(KvError):
        table.put("n", "b", "yyy")
    table.put("n", "b", "y")

    assert table.get("n", "b") == "y"
