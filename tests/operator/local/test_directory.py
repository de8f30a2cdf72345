import errno
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from orderlymq_operator.commands import down
from orderlymq_operator.local.directory import Contact, DataDirectory, State
from orderlymq_operator.local.errors import FailedError, RefusedError
from orderlymq_runtime.security.clustersecret import SECRET_SIZE_MIN
from tests.operator.examples import desired, group, topic
from tests.operator.local.supervision import is_supervised


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    """Law: manifests, replicas and pending deletions are loaded as they were saved, enough to go on after a restart."""
    directory = DataDirectory(tmp_path)
    wanted = desired(topic(queues=3), group(), groups=2)
    state = State(wanted, {"demo-0": {1: False, 4: True}, "demo-1": {1: False}})

    assert directory.load() is None
    directory.save(state)

    assert directory.load() == state


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"{", "is damaged"),
        (b'{"format": 99}', "has data format 99, this version reads 1"),
        (b'{"format": 1}', "is damaged"),
        (b"{}", "has data format None"),
        (b"[]", "is damaged"),
        (b"null", "is damaged"),
        (b'{"format": 1, "manifests": [1], "replicas": {}}', "is damaged"),
        (b'{"format": 1, "manifests": {"a": 1}, "replicas": []}', "is damaged"),
    ],
)
def test_a_directory_that_cannot_be_read_is_refused(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    """Law: an unreadable directory is refused and nothing in it is overwritten; a later version may have written it."""
    (tmp_path / "cluster.json").write_bytes(content)

    with pytest.raises(RefusedError, match=complaint):
        DataDirectory(tmp_path).load()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"5", b"\xff", b'{"pid": "1", "host": 5, "port": 1}']
)
def test_a_damaged_note_of_the_supervisor_is_none(tmp_path: Path, content: bytes) -> None:
    """Law: a damaged supervisor's note counts as none (nobody answers);
    a damaged count of starts begins above the last one.
    """
    directory = DataDirectory(tmp_path)
    (tmp_path / "supervisor.json").write_bytes(content)
    first = directory.count_start()
    (tmp_path / "operator.starts").write_bytes(content)

    assert directory.contact() is None
    assert directory.count_start() >= first - 1


def test_a_start_that_a_wrong_clock_counted_locks_no_supervisor_out(tmp_path: Path) -> None:
    """Law: each start has a greater token than the previous ones, even after a wrong clock, as long as brokers accept it."""
    directory = DataDirectory(tmp_path)
    first = directory.count_start()
    assert directory.count_start() > first

    (tmp_path / "operator.starts").write_text(f"{first + 86_400}\n")

    assert first <= directory.count_start() < first + 60


def test_what_a_cluster_keeps_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Law: only the owner can read a cluster's files, which hold secrets and messages;
    folders that were open before are closed.
    """
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "replicas").mkdir(mode=0o755)
    directories = DataDirectory(tmp_path / "new" / "one"), DataDirectory(tmp_path / "open")

    for directory in directories:
        directory.create()

    for directory in directories:
        assert {path.stat().st_mode & 0o077 for path in directory.path.iterdir()} == {0}
    assert directories[0].path.stat().st_mode & 0o077 == 0


def test_the_secret_of_a_cluster_is_made_once(tmp_path: Path) -> None:
    """Law: a cluster's secret is made once, because old and new processes must share it."""
    directory = DataDirectory(tmp_path)
    directory.create()
    made = directory.cluster_secret.read_bytes()

    directory.create()

    assert directory.cluster_secret.read_bytes() == made
    assert len(made) >= SECRET_SIZE_MIN


def test_a_damaged_secret_is_reported(tmp_path: Path) -> None:
    """Law: a damaged secret is reported with its file's name."""
    directory = DataDirectory(tmp_path)
    directory.cluster_secret.write_text("short")

    with pytest.raises(FailedError, match=r"cluster\.secret: it holds 5 bytes"):
        directory.create()


def test_one_supervisor_at_a_time(tmp_path: Path) -> None:
    """Law: a directory has one supervisor at a time; a second one learns who the first is and what to do,
    whatever a killed one has left.
    """
    directory = DataDirectory(tmp_path)
    with directory.locked():
        directory.publish(Contact(4711, "127.0.0.1", 1, "secret"))
        assert is_supervised(directory)
        with (
            pytest.raises(RefusedError, match=rf"process {os.getpid()}\b.*orderlymq apply"),
            directory.locked(),
        ):
            pass

    assert not is_supervised(directory)


def test_a_question_after_the_supervisor_makes_nothing(tmp_path: Path) -> None:
    """Law: to ask whether a supervisor runs changes nothing in the directory, and works on a read-only file system."""
    (tmp_path / "supervisor.lock").touch()
    directory = DataDirectory(tmp_path)

    assert not is_supervised(directory)
    assert [path.name for path in tmp_path.iterdir()] == ["supervisor.lock"]


def test_who_inherits_the_hold_goes_on_with_it(tmp_path: Path) -> None:
    """Law: a child process inherits the lock, so no other command comes between preparation and supervisor."""
    directory, heir = DataDirectory(tmp_path), DataDirectory(tmp_path)
    with directory.locked():
        passed = os.dup(directory.lock)  # As a child gets it.
    assert is_supervised(directory)

    with heir.locked(passed):
        assert is_supervised(directory)
        assert not os.get_inheritable(heir.lock)

    assert not is_supervised(directory)


def test_the_secret_is_for_the_owner_only(tmp_path: Path) -> None:
    """Law: only the owner can read the supervisor's contact file, so no other user can control the cluster."""
    directory = DataDirectory(tmp_path)
    contact = Contact(1, "127.0.0.1", 5, "secret")

    directory.publish(contact)

    assert directory.contact() == contact
    assert (tmp_path / "supervisor.json").stat().st_mode & 0o077 == 0
    directory.publish(None)
    assert directory.contact() is None


def test_data_of_removed_replicas_is_kept_each_time(tmp_path: Path) -> None:
    """Law: the data of removed replicas is kept each time; removing a replica twice overwrites nothing."""
    directory = DataDirectory(tmp_path)
    directory.create()
    places = []
    for round_ in range(2):
        directory.replica("demo-0-4").mkdir()
        (directory.replica("demo-0-4") / "DATA").write_text(str(round_))
        places.append(directory.set_aside("demo-0-4"))

    assert [(place / "DATA").read_text() for place in places if place] == ["0", "1"]
    assert directory.set_aside("demo-0-4") is None


def test_data_of_removed_replicas_stays_on_their_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a removed replica's data stays on its disk, even if the folder of replicas is a link to another disk."""
    directory = DataDirectory(tmp_path / "data")
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "replicas").symlink_to(tmp_path / "disk")
    directory.create()
    rename = os.rename

    def rename_on_one_disk(source: Path, target: Path) -> None:
        if source.parent.resolve() not in target.resolve().parents:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_on_one_disk)
    for number in (1, 2):
        directory.replica("demo-0-4").mkdir()

        place = directory.set_aside("demo-0-4")

        assert place is not None
        assert place.resolve() == tmp_path / "disk" / "removed" / f"demo-0-4.{number}"
    assert not directory.replica("demo-0-4").exists()


def test_a_place_where_nothing_can_be_written_is_a_clear_error(tmp_path: Path) -> None:
    """Law: a data directory that cannot be written (a file has its name) gives a clear error."""
    (tmp_path / "data").write_text("a file")

    with pytest.raises(FailedError, match="choose another --data-dir"):
        DataDirectory(tmp_path / "data").create()


def test_a_foreign_folder_is_left_as_it_is(tmp_path: Path) -> None:
    """Law: `down` in a folder that is not a cluster changes and makes nothing there."""
    (tmp_path / "run").mkdir(mode=0o755)
    (tmp_path / "run" / "result.json").write_text('{"pid": "theirs"}')
    before = {path: path.stat().st_mode for path in tmp_path.rglob("*")}

    done = CliRunner().invoke(down, ["--data-dir", str(tmp_path)])

    assert done.exit_code == 0
    assert "has no cluster of `orderlymq up`" in done.output
    assert {path: path.stat().st_mode for path in tmp_path.rglob("*")} == before


def test_a_directory_whose_name_no_settings_file_can_carry_is_refused(tmp_path: Path) -> None:
    """Law: a directory whose name is not UTF-8 is refused before anything is made,
    because settings files could not name it.
    """
    directory = DataDirectory(tmp_path / "\udcff")

    with pytest.raises(RefusedError, match="is not UTF-8; choose another --data-dir"):
        directory.create()

    assert list(tmp_path.iterdir()) == []


def test_a_field_of_a_later_version_is_named(tmp_path: Path) -> None:
    """Law: an unknown field, written by a later version, is named; the file is not called damaged."""
    directory = DataDirectory(tmp_path)
    directory.save(State(desired()))
    file = tmp_path / "cluster.json"
    file.write_text(file.read_text().replace('"groups":', '"novelty": 1, "groups":', 1))

    with pytest.raises(RefusedError, match=r"\(spec\.novelty\); use the version that wrote it"):
        directory.load()


def test_a_directory_of_another_user_is_no_failed_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: if another user owns a folder of the data, the error says who needs which rights, not that it cannot be created."""
    directory = DataDirectory(tmp_path / "data")
    directory.create()

    def refuse(self: Path, mode: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(self))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "chmod", refuse)
        with pytest.raises(
            FailedError, match="must be readable and writable by the user"
        ) as caught:
            directory.create()

    assert str(directory.path) in str(caught.value)
    assert "create" not in str(caught.value)
