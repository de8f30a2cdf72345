"""The key-value configuration: a change is saved before it counts, or it is refused."""

import json
from pathlib import Path

import pytest

from orderlymq_nameserver.kv import FOREIGN_BYTES_MAX, SIZE_MAX, KvError, KvFile, KvTable
from orderlymq_protocol.names import ORDER_NAMESPACE


def test_what_was_answered_about_an_ordered_topic_is_in_the_file(tmp_path: Path) -> None:
    """Law: a change of the cluster's own namespace is saved before it counts, in RocketMQ's file layout."""
    path = tmp_path / "deep" / "kv.json"
    table = KvTable(write=KvFile(path).save)
    table.put(ORDER_NAMESPACE, "b", "2")
    table.put(ORDER_NAMESPACE, "a", "ä")
    table.put(ORDER_NAMESPACE, "k", "v")
    table.delete(ORDER_NAMESPACE, "k")
    table.delete(ORDER_NAMESPACE, "k")

    again = KvTable(KvFile(path).load())

    assert json.loads(path.read_text()) == {"configTable": {ORDER_NAMESPACE: {"b": "2", "a": "ä"}}}
    assert again.table(ORDER_NAMESPACE) == {"a": "ä", "b": "2"}
    assert [entry.name for entry in path.parent.iterdir()] == ["kv.json"]


def test_changes_of_other_namespaces_are_read_immediately_and_saved_together(
    tmp_path: Path,
) -> None:
    """Law: strangers cannot make the event loop wait for the disk by sending many requests."""
    path = tmp_path / "kv.json"
    table = KvTable(write=KvFile(path).save)
    table.put("n", "b", "2")
    table.put("m", "k", "v")
    table.delete("m", "k")

    assert (table.get("n", "b"), table.get("m", "k"), path.exists()) == ("2", None, False)

    table.save()
    assert KvFile(path).load() == {"n": {"b": "2"}}
    table.put("m", "k", "v")
    table.put(ORDER_NAMESPACE, "T", "a:4")
    assert KvFile(path).load() == {
        "n": {"b": "2"},
        "m": {"k": "v"},
        ORDER_NAMESPACE: {"T": "a:4"},
    }


def test_what_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    """Law: a request that changes no value writes no file."""
    path = tmp_path / "kv.json"
    table = KvTable(write=KvFile(path).save)
    assert table.put(ORDER_NAMESPACE, "T", "a:4")
    assert table.put("n", "k", "v")
    table.save()
    before = path.stat().st_mtime_ns

    for namespace, key, value in [(ORDER_NAMESPACE, "T", "a:4"), ("n", "k", "v")]:
        assert not table.put(namespace, key, value)
        assert not table.delete(namespace, "another")
        table.save()

    assert path.stat().st_mtime_ns == before


def test_a_change_that_cannot_be_saved_did_not_happen(tmp_path: Path) -> None:
    """Law: no client sees a value that would be gone after a restart."""
    (tmp_path / "file").write_text("")
    order = {ORDER_NAMESPACE: {"k": "old"}}
    table = KvTable(order, KvFile(tmp_path / "file" / "kv.json").save)

    with pytest.raises(KvError, match="cannot be written"):
        table.put(ORDER_NAMESPACE, "k", "new")
    with pytest.raises(KvError, match="cannot be written"):
        table.delete(ORDER_NAMESPACE, "k")

    assert table.get(ORDER_NAMESPACE, "k") == "old"


def test_what_could_not_be_saved_yet_is_saved_later(tmp_path: Path) -> None:
    """Law: if the disk refuses for a while, no change that was answered with success is lost."""
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "kv.json"
    table = KvTable(write=KvFile(path).save)
    table.put("n", "k", "v")
    with pytest.raises(KvError, match="cannot be written"):
        table.save()

    (tmp_path / "file").unlink()
    table.save()

    assert KvFile(path).load() == {"n": {"k": "v"}}


@pytest.mark.parametrize("content", [b"", b"{", b'{"configTable":[]}', b"\xff"])
def test_a_broken_file_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    """Law: the server does not start with an unreadable file, because the next save would overwrite it."""
    path = tmp_path / "kv.json"
    path.write_bytes(content)

    with pytest.raises(KvError, match="repair it, or move it away"):
        KvFile(path).load()
    assert path.read_bytes() == content


def test_no_file_is_an_empty_configuration(tmp_path: Path) -> None:
    """Law: a missing file is an empty configuration, so that the first start needs no preparation."""
    assert KvFile(tmp_path / "kv.json").load() == {}


@pytest.mark.parametrize(
    ("namespace", "limit"), [(ORDER_NAMESPACE, SIZE_MAX), ("n", FOREIGN_BYTES_MAX)]
)
def test_what_is_kept_is_bounded_and_can_be_made_smaller(namespace: str, limit: int) -> None:
    """Law: clients cannot fill the name server with values; existing values can be replaced by smaller ones."""
    table = KvTable({namespace: {"k": "v"}})
    half = "x" * (limit // 2)
    table.put(namespace, "a", half)

    with pytest.raises(KvError, match="delete what is no longer needed"):
        table.put(namespace, "b", half)
    assert table.get(namespace, "b") is None

    table.delete(namespace, "k")
    table.put(namespace, "a", "")
    nearly_all = "x" * (limit - 1_000)
    table.put(namespace, "b", nearly_all)
    table.delete(namespace, "b")
    table.put(namespace, "c", nearly_all)
    assert table.get(namespace, "c") == nearly_all


@pytest.mark.parametrize("letter", ["x", "\u20ac", ""])
def test_strangers_leave_the_cluster_its_room(tmp_path: Path, letter: str) -> None:
    """Law: all other namespaces share a small limit in bytes, which counts many small texts, too."""
    path = tmp_path / "kv.json"
    table = KvTable(write=KvFile(path).save)
    refused = 0
    for number in range(2_000):
        try:
            table.put(f"n{number}", "", letter * 20_000)
        except KvError:
            refused += 1

    table.put(ORDER_NAMESPACE, "T", "x" * (SIZE_MAX - 100))

    assert path.stat().st_size < SIZE_MAX + 2 * FOREIGN_BYTES_MAX
    assert len(KvFile(path).load()) == 2_000 - refused + 1 < 1_000


@pytest.mark.parametrize("place", range(3))
def test_a_text_that_cannot_be_written_is_refused_when_it_is_put(
    place: int, tmp_path: Path
) -> None:
    """Law: a text that cannot be saved is refused, so that it does not prevent saving the cluster's own texts."""
    table = KvTable(write=KvFile(tmp_path / "kv.json").save)
    texts = ["a", "a", "a"]
    texts[place] = "\ud800"

    with pytest.raises(KvError, match="not Unicode text"):
        table.put(*texts)
    assert table.put(ORDER_NAMESPACE, "T", "a:4")


@pytest.mark.parametrize(
    ("namespace", "limit"), [(ORDER_NAMESPACE, SIZE_MAX), ("n", FOREIGN_BYTES_MAX)]
)
def test_a_file_that_is_too_large_is_kept_and_only_grows_no_more(
    namespace: str, limit: int
) -> None:
    """Law: a larger file of an earlier release is kept; it can shrink but not grow."""
    table = KvTable({namespace: {"a": "x" * limit, "b": "yy"}})

    with pytest.raises(KvError):
        table.put(namespace, "b", "yyy")
    table.put(namespace, "b", "y")

    assert table.get(namespace, "b") == "y"
