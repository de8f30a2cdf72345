"""A backup has every broker group or is not made: a group that is away is never left out silently."""

import asyncio
import hashlib
import json
import random
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from orderlymq import Producer
from orderlymq.admin.client import AdminClient
from orderlymq.errors import BrokerError
from orderlymq_backup import catalogue
from orderlymq_backup import create as creation
from orderlymq_backup.command import backup
from orderlymq_backup.create import BUSY_TRIES_MAX, GroupCopy, create
from orderlymq_backup.errors import BackupDamaged, BackupError, GroupsDiffer
from orderlymq_backup.manifest import Backup, BackupFile, blob_key, manifest_key
from orderlymq_backup.restore import verify
from orderlymq_backup.storage import Folder
from orderlymq_broker.server.backups import CopiedFile, Copy
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.server import RemotingServer
from orderlymq_testing.cluster import Cluster
from tests.backup.clusters import CLUSTER, GROUP
from tests.runtime.peers import Recorder, listening

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

# Random bytes, which tables cannot compress.
BODY = random.Random(1).randbytes(1000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    async def send(name_server: str) -> None:
        async with Producer("shop", name_server) as producer:
            await producer.send("orders", BODY)

    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        made.create_topic("orders")
        asyncio.run(send(made.name_server))
        yield made


@pytest.fixture
def place(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "backups")


def with_group(storage: Folder, former: Backup, group: str, cluster: str = CLUSTER) -> Backup:
    """Store the backup of a cluster that has one more broker group than *former*."""
    (part,) = former.parts
    parts = tuple(
        msgspec.structs.replace(part, cluster=cluster, group=name) for name in (GROUP, group)
    )
    backup_id = catalogue.new_id(time.time_ns() // 1_000_000)
    made = msgspec.structs.replace(former, id=backup_id, cluster=cluster, parts=parts)
    catalogue.write(storage, made)
    return made


def make(
    cluster: Cluster,
    storage: Folder,
    groups: list[str] | None = None,
    check: Callable[[Backup], None] | None = None,
) -> Backup:
    async def do() -> Backup:
        async with AdminClient(cluster.name_server) as admin:
            return await create(admin, storage, groups=groups, check=check)

    return asyncio.run(do())


def test_a_backup_has_the_groups_that_are_expected(cluster: Cluster, place: Folder) -> None:
    """Law: a backup is refused, and nothing stored, if a named group is missing or a registered one was not named."""
    for groups, reasons in (
        ([GROUP, "broker-b"], ["broker-b is not registered"]),
        (["broker-b"], ["broker-b is not registered", f"{GROUP} is registered, but not expected"]),
        ([], [f"{GROUP} is registered, but not expected"]),
    ):
        with pytest.raises(GroupsDiffer) as refused:
            make(cluster, place, groups)
        assert [reason for reason in reasons if reason not in str(refused.value)] == []
    assert [*place.list("blobs"), *place.list("backups")] == []

    made = make(cluster, place, [GROUP])

    assert [part.group for part in made.parts] == [GROUP]


def test_a_group_of_the_newest_backup_is_not_left_out(cluster: Cluster, place: Folder) -> None:
    """Law: the creation is refused until the user names the groups; the next backup knows them from that one."""
    with_group(place, make(cluster, place), "broker-b")

    with pytest.raises(GroupsDiffer, match=f"broker-b.*--groups {GROUP}"):
        make(cluster, place)
    said = make(cluster, place, [GROUP])
    following = make(cluster, place)

    assert catalogue.ids(place)[-2:] == [said.id, following.id]


def test_other_clusters_and_damaged_backups_count_for_nothing(
    cluster: Cluster, place: Folder
) -> None:
    """Law: only the newest readable backup of this cluster counts, even if others were made after it."""
    former = make(cluster, place)
    with_group(place, former, "broker-b", cluster="other")
    make(cluster, place)
    with_group(place, former, "broker-b")
    with_group(place, former, "broker-c", cluster="other")
    damaged = with_group(place, former, "broker-d")
    catalogue.put_text(place, manifest_key(damaged.id), b"nonsense")

    with pytest.raises(GroupsDiffer, match="broker-b"):
        make(cluster, place)


def test_the_command_names_the_groups(cluster: Cluster, place: Folder) -> None:
    """Law: `--groups` is a list with commas; a difference is a failure and no usage error, so that a Job tries again."""
    words = ["create", "--to", str(place), "--name-server", cluster.name_server, "--groups"]

    refused = CliRunner().invoke(backup, [*words, f"{GROUP},broker-b"])
    done = CliRunner().invoke(backup, [*words, GROUP])

    assert (refused.exit_code, done.exit_code) == (1, 0), (refused.output, done.output)
    assert "broker-b is not registered" in refused.output


@pytest.mark.parametrize(
    "program",
    [
        [str(Path(sys.executable).with_name("orderlymq")), "backup"],
        [sys.executable, "-m", "orderlymq_backup"],
    ],
)
def test_a_creation_that_is_asked_to_end_takes_its_mark_away(
    cluster: Cluster, place: Folder, program: list[str]
) -> None:
    """Law: a creation that gets SIGTERM removes its mark, which would otherwise block deletions for a day."""
    catalogue.put_text(place, f"deleting/{catalogue.new_id(time.time_ns() // 1_000_000)}", b"")
    words = ["create", "--to", str(place), "--name-server", cluster.name_server]
    process = subprocess.Popen([*program, *words], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        waiting = process.stdout.readline()
        marked = len([*place.list("running")])
        process.terminate()

    assert "is running" in waiting
    assert (marked, process.returncode, [*place.list("running")]) == (1, 130, [])


def rot(place: Folder, backup: Backup) -> list[BackupFile]:
    """Change a byte in the table that holds the body, which the cluster does not compact; its size stays the same."""
    paths = {file: Path(str(place)) / blob_key(file.sha256) for file in backup.parts[0].files}
    tables = [
        file
        for file, path in paths.items()
        if file.name.endswith(".sst") and BODY in path.read_bytes()
    ]
    for file in tables:
        path = paths[file]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    return tables


def test_a_rotten_table_is_stored_again(cluster: Cluster, place: Folder, tmp_path: Path) -> None:
    """Law: verification names the table, its backups and what to do; the next backup stores it again, so all are whole."""
    former = [make(cluster, place) for _ in range(2)]
    tables = rot(place, former[0])

    with pytest.raises(BackupDamaged) as found:
        verify(place, former[1], tmp_path)
    made = make(cluster, place)

    told = str(found.value)
    assert len(tables) == 1
    assert [each.id for each in former if each.id not in told] == []
    assert [each.name for each in tables if each.name not in told] == []
    assert "make a new backup" in told
    for each in (made, *former):
        verify(place, each, tmp_path)


def test_a_backup_that_is_not_verified_does_not_exist(
    cluster: Cluster, place: Folder, tmp_path: Path
) -> None:
    """Law: a backup that cannot be verified is not kept, so the former one stays the newest; a second attempt succeeds."""
    former = make(cluster, place)
    rot(place, former)
    report = tmp_path / "report"
    words = ["create", "--to", str(place), "--name-server", cluster.name_server]
    words += ["--report", str(report)]

    damaged = CliRunner().invoke(backup, words)
    told = json.loads(report.read_text())["error"]
    left = catalogue.ids(place)
    with pytest.raises(BackupError, match="was not made"):
        make(cluster, place, check=lambda made: verify(place, made, tmp_path / "nowhere"))
    also_left = catalogue.ids(place)
    again = CliRunner().invoke(backup, words)

    assert (damaged.exit_code, again.exit_code) == (1, 0), (damaged.output, again.output)
    assert "was not made" in told
    assert left == also_left == [former.id]
    assert len(catalogue.ids(place)) == 2
    assert list(place.list("running")) == []


def test_a_table_that_came_damaged_is_read_again(
    cluster: Cluster, place: Folder, tmp_path: Path
) -> None:
    """Law: a byte that an earlier backup read wrong is in no verified backup, although files are recognised by their end."""
    former = make(cluster, place)
    (part,) = former.parts
    (table,) = rot(place, former)
    data = (Path(str(place)) / blob_key(table.sha256)).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    catalogue.put_text(place, blob_key(digest), data)
    files = tuple(
        msgspec.structs.replace(file, sha256=digest) if file == table else file
        for file in part.files
    )
    parts = (msgspec.structs.replace(part, files=files),)
    damaged = msgspec.structs.replace(
        former, id=catalogue.new_id(time.time_ns() // 1_000_000), parts=parts
    )
    catalogue.write(place, damaged)

    with pytest.raises(BackupDamaged, match="the store is damaged"):
        verify(place, damaged, tmp_path)
    again = make(cluster, place, check=lambda made: verify(place, made, tmp_path))
    following = make(cluster, place)

    for each in (again, following):
        assert digest not in {file.sha256 for file in each.parts[0].files}
        verify(place, each, tmp_path)
    assert following.new_bytes < again.new_bytes


def test_what_is_damaged_where_it_comes_from_is_no_backup(cluster: Cluster, place: Folder) -> None:
    """Law: after everything was read twice, the damage is in the broker's store; the error says where to look."""

    def fail(_: Backup) -> None:
        raise BackupDamaged("the store is damaged")

    with pytest.raises(BackupError, match=r"was not made.*read twice: run `orderlymq doctor`"):
        make(cluster, place, check=fail)

    assert catalogue.ids(place) == []


def test_an_attempt_finds_what_an_earlier_one_has_made(
    cluster: Cluster, place: Folder, tmp_path: Path
) -> None:
    """Law: if a pod is lost after its last write, its successor makes no second backup and reports the first."""
    report = tmp_path / "report"
    words = ["create", "--to", str(place), "--name-server", cluster.name_server]
    words += ["--report", str(report)]

    ids = []
    for label in ("u1", "u1", "u2", ""):
        done = CliRunner().invoke(backup, words, env={"ORDERLYMQ_BACKUP_LABEL": label})
        assert done.exit_code == 0, done.output
        ids.append(json.loads(report.read_text())["id"])
    long = CliRunner().invoke(backup, [*words, "--label", "u" * 65])

    assert ids[0] == ids[1]
    assert [catalogue.read(place, each).label for each in catalogue.ids(place)] == ["u1", "u2", ""]
    assert long.exit_code == 2


def test_what_was_misread_once_stays(cluster: Cluster, tmp_path: Path) -> None:
    """Law: a file is removed only if a second read shows the damage, too."""

    class Flaky(Folder):
        misread = True

        def read(self, key: str) -> Iterator[bytes]:
            for data in super().read(key):
                wrong = self.misread and key.startswith("blobs/")
                yield bytes(len(data)) if wrong else data
                self.misread = self.misread and not wrong

    place = Flaky(tmp_path / "backups")
    made = make(cluster, place)

    with pytest.raises(BackupDamaged, match="verify the backup again"):
        verify(place, made, tmp_path)
    verify(place, made, tmp_path)


@pytest.mark.parametrize("busy", [2, BUSY_TRIES_MAX])
async def test_a_quota_makes_a_backup_slower(busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a piece that is refused because of an address's quota is requested again, a limited number of times."""
    monkeypatch.setattr(creation, "AGAIN_AFTER_S", 0.001)
    left = busy

    def serve(conn: Connection, command: RemotingCommand) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            conn.send(command.reply(ResponseCode.SYSTEM_BUSY, remark="the quota is used up"))
        else:
            conn.send(command.reply(0, {"checksum": str(zlib.crc32(BODY))}, BODY))

    file = CopiedFile(name="000001.sst", size=len(BODY), tail="0" * 64)
    copy = Copy(
        session="s",
        cluster=CLUSTER,
        group=GROUP,
        node=1,
        index=1,
        term=1,
        physical_end=0,
        taken_ms=0,
        files=(file,),
    )
    async with listening(RemotingServer(Recorder(serve))) as port:
        address = f"127.0.0.1:{port}"
        async with AdminClient(address) as admin:
            pieces = GroupCopy(admin.instance, address, copy).pieces(file)
            if busy < BUSY_TRIES_MAX:
                assert [piece async for piece in pieces] == [BODY]
            else:
                with pytest.raises(BrokerError, match="the quota is used up"):
                    await anext(pieces)
