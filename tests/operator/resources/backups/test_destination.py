"""Manifests name exactly one place for backups, no secrets, and no path out of a folder."""

from typing import Any

import pytest
from pydantic import ValidationError

from orderlymq_operator.resources.backups.destination import Destination
from orderlymq_operator.resources.kinds import Backup, Cluster, ScheduledBackup
from orderlymq_operator.resources.manifests.combination import combine
from orderlymq_operator.resources.manifests.problems import ManifestError
from orderlymq_operator.resources.manifests.reader import parse

CLAIM: dict[str, Any] = {"pvc": {"claimName": "backups", "path": "shop/demo"}}
BUCKET: dict[str, Any] = {"objectStore": {"url": "s3://my-bucket/shop"}}
HEAD = "apiVersion: orderlymq.io/v1alpha1\nmetadata: {name: demo}\n"


def test_a_place_is_what_the_command_gets() -> None:
    found = [Destination.model_validate(each) for each in (CLAIM, BUCKET)]

    assert [each.place for each in found] == ["/backups/shop/demo", "s3://my-bucket/shop"]
    assert [each.location for each in found] == ["pvc://backups/shop/demo", "s3://my-bucket/shop"]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {**CLAIM, **BUCKET},
        {"pvc": {"claimName": "backups", "path": "../other"}},
        {"pvc": {"claimName": "backups", "path": "/etc"}},
        {"pvc": {"claimName": "backups", "path": "a//b"}},
        {"pvc": {"claimName": "backups", "path": "a/../../b"}},
        {"objectStore": {"url": "gs://bucket"}},
        {"objectStore": {"url": "s3://bucket/a b"}},
        {"objectStore": {"url": "s3://bucket/../other"}},
        {"objectStore": {"url": "s3://bucket", "endpoint": "ftp://store"}},
        {"objectStore": {"url": "s3://bucket", "endpoint": "http://user:secret@store"}},
        {"objectStore": {"url": "s3://bucket", "secretKey": "x"}},
    ],
    ids=str,
)
def test_anything_else_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Destination.model_validate(wrong)


@pytest.mark.parametrize("kind", ["Backup", "ScheduledBackup"])
def test_one_machine_refuses_what_it_would_not_carry_out(kind: str) -> None:
    """Law: on one machine Backups in manifests are refused, because nobody would make them."""
    schedule = "schedule: '@daily'\n  " if kind == "ScheduledBackup" else ""
    text = (
        f"{HEAD}kind: Cluster\n---\n{HEAD}kind: {kind}\nspec:\n  {schedule}clusterRef: {{name: demo}}\n"
        "  destination: {pvc: {claimName: backups}}\n"
    )
    with pytest.raises(ManifestError, match="orderlymq backup create"):
        combine(parse(text, "my.yaml"), None)


def test_one_machine_refuses_a_beginning_that_it_would_not_make() -> None:
    """Law: on one machine spec.bootstrap is refused, so a cluster that should begin from a backup never begins empty."""
    text = f"{HEAD}kind: Cluster\nspec:\n  bootstrap: {{fromBackup: {{destination: {{pvc: {{claimName: backups}}}}}}}}\n"
    with pytest.raises(ManifestError, match="up --from-backup"):
        combine(parse(text, "my.yaml"), None)


@pytest.mark.parametrize("model", [Backup, ScheduledBackup, Cluster])
def test_defaults_are_valid_and_read_back(model: type[Backup | ScheduledBackup | Cluster]) -> None:
    """Law: a manifest with defaults is valid and reads back the same."""
    spec: dict[str, Any] = {"clusterRef": {"name": "demo"}, "destination": BUCKET}
    if model is ScheduledBackup:
        spec["schedule"] = "30 2 * * *"
    if model is Cluster:
        spec = {"bootstrap": {"fromBackup": {"destination": BUCKET}}}
    made = model.model_validate(
        {
            "apiVersion": "orderlymq.io/v1alpha1",
            "kind": model.__name__,
            "metadata": {"name": "demo"},
            "spec": spec,
        }
    )
    again = model.model_validate(made.model_dump(mode="json", exclude_none=True))

    assert again == made
