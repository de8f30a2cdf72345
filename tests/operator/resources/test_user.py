"""Accounts in manifests: what they may say, and what brokers then do."""

from dataclasses import replace
from pathlib import Path

import pytest

from orderlymq_broker.processors.admin.accounts import _fingerprint
from orderlymq_broker.state.admin.accessrecords import AccountSet
from orderlymq_operator.local.directory import DataDirectory, State
from orderlymq_operator.local.secrets import read_secret
from orderlymq_operator.plan.actions import (
    ConditionReport,
    DeleteUser,
    Observed,
    ReportCondition,
    SetUser,
    UserConfig,
)
from orderlymq_operator.plan.planner import plan, user_config
from orderlymq_operator.resources.kinds import Desired, User
from orderlymq_operator.resources.manifests.combination import combine
from orderlymq_operator.resources.manifests.problems import ManifestError
from orderlymq_operator.resources.manifests.reader import Manifest, parse
from orderlymq_operator.resources.quotas import Limits
from orderlymq_operator.resources.user import fingerprint
from orderlymq_protocol.sealedsecrets import SECRET_SIZE_MAX
from tests.operator.examples import cluster
from tests.operator.world import World

MANIFEST = """
apiVersion: orderlymq.io/v1alpha1
kind: User
metadata: {name: shop-writer}
spec:
  clusterRef: {name: demo}
  secretFrom: {file: writer.secret}
  topics: [{name: orders, permission: PUB}]
"""


def user(text: str = MANIFEST, file: str = "/etc/demo/users.yaml") -> User:
    (manifest,) = parse(text, file)
    assert isinstance(manifest.resource, User)
    return manifest.resource


def test_a_secret_stands_beside_the_manifest(tmp_path: Path) -> None:
    """Law: a secret's relative path begins at the manifest's folder, and the file is read when it is needed."""
    found = user(file=str(tmp_path / "users.yaml"))
    assert found.spec.secret_from is not None
    assert found.spec.secret_from.file == str(tmp_path / "writer.secret")

    assert read_secret(found) is None
    (tmp_path / "writer.secret").write_text("short\n")
    assert read_secret(found) is None
    (tmp_path / "writer.secret").write_text("long enough\n")
    assert read_secret(found) == "long enough"
    (tmp_path / "writer.secret").write_text("é" * (SECRET_SIZE_MAX // 2) + "\n")
    assert read_secret(found) == "é" * (SECRET_SIZE_MAX // 2)
    (tmp_path / "writer.secret").write_text("é" * (SECRET_SIZE_MAX // 2) + "e\n")
    assert read_secret(found) is None


@pytest.mark.parametrize("path", ["certs/../ca.secret", "./certs/../ca.secret", ".//./ca.secret"])
def test_a_path_names_the_file_that_the_system_opens(tmp_path: Path, path: str) -> None:
    """Law: a path names the file that the system would open: `..` after a link is not shortened, a leading `./` is."""
    (tmp_path / "real" / "certs").mkdir(parents=True)
    (tmp_path / "certs").symlink_to("real/certs")
    (tmp_path / "real" / "ca.secret").write_text("of the link")
    (tmp_path / "ca.secret").write_text("of the manifest")

    found = user(MANIFEST.replace("writer.secret", path), str(tmp_path / "users.yaml"))

    assert read_secret(found) == (tmp_path / path).read_text()
    assert found.spec.secret_from is not None
    assert found.spec.secret_from.file == str(tmp_path / path)


def test_a_link_to_a_secret_is_followed_when_it_is_read(tmp_path: Path) -> None:
    """Law: a link to a secret is followed at each reading, so a renewed one is found."""
    for number in (1, 2):
        (tmp_path / f"secret-{number}").write_text(f"secret of {number}")
    (tmp_path / "writer.secret").symlink_to("secret-1")
    found = user(file=str(tmp_path / "here" / ".." / "users.yaml"))
    assert found.spec.secret_from is not None
    assert found.spec.secret_from.file == str(tmp_path / "writer.secret")

    (tmp_path / "writer.secret").unlink()
    (tmp_path / "writer.secret").symlink_to("secret-2")

    assert read_secret(found) == "secret of 2"


@pytest.mark.parametrize(
    ("path", "folder", "complaint"),
    [
        (r"a\0b", "demo", "no path has a NUL character"),
        ("writer.secret", "\udcff", "is not UTF-8"),
    ],
)
def test_a_path_that_cannot_be_one_is_a_problem_of_the_manifest(
    path: str, folder: str, complaint: str
) -> None:
    """Law: an impossible path is reported as a problem of the manifest."""
    text = MANIFEST.replace("writer.secret", f'"{path}"')

    with pytest.raises(ManifestError, match=complaint):
        user(text, f"/etc/{folder}/users.yaml")


def test_a_secret_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a secret may come from an environment variable."""
    found = user(MANIFEST.replace("file: writer.secret", "env: WRITER"))

    assert read_secret(found) is None
    monkeypatch.setenv("WRITER", "long enough")
    assert read_secret(found) == "long enough"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("file: writer.secret", "", "exactly one"),
        ("file: writer.secret", "file: a, env: B", "exactly one"),
        ("name: shop-writer", "name: shop", "shorter than the 6"),
        ("permission: PUB", "permission: ALL", "DENY, PUB, SUB"),
        ("permission: PUB", "permission: DENY}, {name: orders, permission: PUB", "is given twice"),
        (
            "topics:",
            "groups: [{name: a, permission: SUB}, {name: a, permission: DENY}]\n  topics:",
            "is given twice",
        ),
        ("secretFrom: {file: writer.secret}", "secretKey: open", "unknown field"),
        ("topics:", "secretRotation: {overlapSeconds: 9999999}\n  topics:", "2592000"),
        ("topics:", "quotas: {requestsPerSecond: 0}\n  topics:", "greater than or equal to 1"),
        ("topics:", "quotas: {bytesPerSecond: 100P}\n  topics:", "not between 1 and"),
    ],
)
def test_a_wrong_account_is_refused(old: str, new: str, reason: str) -> None:
    """Law: a wrong account is refused with its field and what is expected."""
    with pytest.raises(ManifestError, match=reason):
        parse(MANIFEST.replace(old, new), "users.yaml")


def test_both_sides_make_the_same_fingerprint() -> None:
    """Law: operator and broker compute the same fingerprint; otherwise an account would be set forever."""
    account = AccountSet("shop-writer", "long enough")

    assert _fingerprint(account) == fingerprint("shop-writer", "long enough")
    assert "long" not in fingerprint("shop-writer", "long enough")


def test_an_account_is_set_where_it_is_missing_or_another() -> None:
    """Law: an account is set in each raft group where it is missing or differs, once its secret can be read."""
    wanted = Desired(cluster(groups=2), users=(user(),))
    world = World()
    world.settle(wanted)
    config = UserConfig(False, "DENY", "DENY", (("orders", "PUB"),), (), "", "f1")

    def steps(observed: Observed) -> list[object]:
        found = plan(wanted, observed)
        return [action for action in found if isinstance(action, SetUser | DeleteUser)]

    silent = world.observed()
    known = replace(silent, secrets={"shop-writer": "f1"})
    groups = {
        name: replace(group, users={"shop-writer": config}) for name, group in known.groups.items()
    }
    set_users = [SetUser("shop-writer", "shop-writer", f"demo-{n}", config) for n in (0, 1)]

    assert steps(silent) == []
    assert steps(known) == set_users
    assert steps(replace(known, groups=groups)) == []
    changed = replace(known, groups=groups, secrets={"shop-writer": "f2"})
    assert steps(changed) == [
        replace(each, config=replace(config, fingerprint="f2")) for each in set_users
    ]


def test_the_condition_says_why_the_secret_cannot_be_used() -> None:
    """Law: the condition of a User without a usable secret says why, if the backend knows it."""
    wanted = Desired(cluster(), users=(user(),))
    world = World()
    world.settle(wanted)
    observed = world.observed()
    groups = {name: replace(group, users={}) for name, group in observed.groups.items()}
    troubles = {"shop-writer": "the environment variable SHOP_SECRET is not set"}
    found = plan(wanted, replace(observed, groups=groups, secret_troubles=troubles))

    reports = {
        action.subject.kind: action.condition
        for action in found
        if isinstance(action, ReportCondition)
    }
    assert reports["User"] == ConditionReport("False", "SecretMissing", troubles["shop-writer"])


def test_a_former_secret_ends_on_demand() -> None:
    """Law: with an overlap of 0 the operator ends a former secret; otherwise brokers do, after an hour by default."""
    rotation = "  secretRotation: {overlapSeconds: 0}\n  topics"
    config = UserConfig(False, "DENY", "DENY", (("orders", "PUB"),), (), "", "f1")
    found = replace(config, former_until_ms=1_700_000_000_000)

    def steps(declared: User, present: UserConfig) -> list[int]:
        wanted = Desired(cluster(), users=(declared,))
        world = World()
        world.settle(wanted)
        observed = world.observed()
        groups = {
            name: replace(group, users={"shop-writer": present})
            for name, group in observed.groups.items()
        }
        known = replace(observed, groups=groups, secrets={"shop-writer": "f1"})
        return [
            action.config.overlap_s for action in plan(wanted, known) if isinstance(action, SetUser)
        ]

    at_once = user(MANIFEST.replace("  topics", rotation))
    assert steps(user(), found) == []
    assert steps(at_once, found) == [0]
    assert steps(at_once, config) == []
    assert steps(user(), replace(found, fingerprint="f0")) == [3_600]


def test_an_account_that_nobody_declares_any_more_is_deleted(tmp_path: Path) -> None:
    """Law: an account that is no longer declared is deleted, even after a crash in between."""
    present = Desired(cluster(), users=(user(),))
    manifests = [Manifest(cluster(), "demo.yaml", 1)]

    kept = combine(manifests, present)
    gone = combine(manifests, present, prune=True)

    assert (kept.users, kept.deleted_users) == (present.users, frozenset())
    assert (gone.users, gone.deleted_users) == ((), frozenset({"shop-writer"}))
    directory = DataDirectory(tmp_path)
    directory.create()
    directory.save(State(gone))
    loaded = directory.load()
    assert loaded is not None
    assert loaded.desired == gone
    world = World()
    world.settle(replace(gone, deleted_users=frozenset()))
    config = UserConfig(False, "DENY", "DENY", (), (), "", "f1")
    observed = world.observed()
    groups = {
        name: replace(group, users={"shop-writer": config})
        for name, group in observed.groups.items()
    }
    assert DeleteUser("shop-writer", "demo-0") in plan(gone, replace(observed, groups=groups))


def test_the_quotas_of_an_account_are_set_in_every_raft_group() -> None:
    """Law: an account's quotas are set in each raft group; an absent field is no limit, and removing it ends the limit."""
    limits = "  quotas: {requestsPerSecond: 100, bytesPerSecond: 1Mi}\n  topics"
    limited = user(MANIFEST.replace("  topics", limits))

    config = user_config(limited, "f1")

    assert config.limits == Limits(100, 1 << 20, 0)
    assert config != user_config(user(), "f1")
    assert user_config(user(), "f1").limits == Limits()
