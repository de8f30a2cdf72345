"""The merge of a manifest into an object, compared with kubectl and a real API server."""

import copy
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import yaml
from bench.apiload import ADMIN, NAMESPACE

from orderlymq_operator.kube.forecast.applied import applied
from orderlymq_operator.kube.observe.inventory import read_item
from orderlymq_operator.kube.resources import CLUSTERS, Json
from orderlymq_operator.resources.manifests.problems import ManifestError
from orderlymq_operator.resources.manifests.reader import parse
from tests.operator.kube.fakes.changes import BEGINNING, change
from tests.operator.kube.realapi import needs_api_server, real_api_server

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    needs_api_server,
    pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not on the PATH"),
]

_NAME: Final = ("Cluster", "demo")
# Parts whose other fields have defaults or come from others.
_PARTS: Final[list[Json]] = [
    {"resources": {"limits": {"memory": "4Gi"}}},
    {"resources": {"requests": {"cpu": "1"}}},
    {"nameServers": {"resources": {"requests": {"memory": "256Mi"}}}},
    {"podTemplate": {"metadata": {"labels": {"team": "mq"}}}},
    {"podTemplate": {"metadata": {"labels": {"stage": "live"}}}},
    {"canary": {"resources": {"limits": {"memory": "512Mi"}}}},
]


class Kubectl:
    def __init__(self, address: str, folder: Path) -> None:
        self._words = ["kubectl", f"--server={address}", "--insecure-skip-tls-verify"]
        self._words += [f"--token={ADMIN}", f"--namespace={NAMESPACE}", f"--cache-dir={folder}"]

    def run(self, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._words, *words], input=text, capture_output=True, text=True, check=False
        )

    def cluster(self) -> Json:
        words = ("get", "cluster/demo", "-o", "json", "--show-managed-fields")
        return dict(json.loads(self.run(*words).stdout))


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    with real_api_server(tmp_path_factory.mktemp("api")) as address:
        yield Kubectl(address, tmp_path_factory.mktemp("kubectl"))


def _text(spec: Json, notes: dict[str, str]) -> str:
    meta: Json = {"name": "demo", "namespace": NAMESPACE, "annotations": notes}
    made = {"apiVersion": "orderlymq.io/v1alpha1", "kind": "Cluster", "metadata": meta}
    return yaml.safe_dump({**made, "spec": spec})


def _mixed(spec: Json, part: Json) -> Json:
    for name, value in part.items():
        spec[name] = _mixed(spec.get(name, {}), value) if isinstance(value, dict) else value
    return spec


def _next(spec: Json, chance: Random) -> Json:
    """Return another spec: the former one changed, or a new one with a part of something."""
    changed = change({_NAME: spec}, chance).get(_NAME)
    new = copy.deepcopy(changed or chance.choice([spec, BEGINNING]))
    return _mixed(new, copy.deepcopy(chance.choice(_PARTS))) if chance.random() < 0.5 else new


def _model(found: Json) -> Any:
    item = read_item(CLUSTERS, found)
    return item.manifest and item.manifest.spec, dict(item.annotations)


@pytest.mark.parametrize("mode", [(), ("--server-side",)], ids=["client", "server"])
def test_an_object_becomes_what_the_plan_takes_it_for(
    kubectl: Kubectl, mode: tuple[str, ...]
) -> None:
    """Law: over random manifests and patches, this merge gives the same object as the real one."""
    chance = Random(1)
    kubectl.run("delete", "cluster/demo", "--ignore-not-found")
    spec, tried = BEGINNING, 0
    made = kubectl.run("apply", *mode, "-f", "-", text=_text(spec, {}))
    assert made.returncode == 0, made.stderr
    for _ in range(25):
        if chance.random() < 0.3:
            part = json.dumps({"spec": chance.choice(_PARTS)})
            kubectl.run("patch", "cluster/demo", "--type=merge", "-p", part)
        before = kubectl.cluster()
        new = _next(spec, chance)
        text = _text(new, chance.choice([{}, {"a": "1"}, {"b": "2"}]))
        try:
            (manifest,) = parse(text, "new.yaml")
        except ManifestError:
            continue
        words = ("apply", *mode, "--force-conflicts") if mode else ("apply",)
        done = kubectl.run(*words, "-f", "-", text=text)
        if done.returncode:
            continue
        tried, spec = tried + 1, new
        assert _model(applied(manifest.resource, before)) == _model(kubectl.cluster()), text
    assert tried > 10
