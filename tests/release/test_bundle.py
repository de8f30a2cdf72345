"""The bundle for OLM agrees with the chart in definitions, rights and Deployment; its descriptors name existing fields."""

import json
import re
import shutil
import subprocess
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import yaml
from release.bundle import MODES, render, write
from release.distributions import ROOT, project

from orderlymq_operator.resources.manifests.reader import parse
from tests.alone import alone
from tests.operator.kube.rights import of_file, of_rules

pytestmark = [pytest.mark.go, pytest.mark.long, pytest.mark.timeout(1_200)]


@pytest.fixture(scope="module")
def bundle(helm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle as `make bundle` writes it."""
    folder = tmp_path_factory.mktemp("bundle")
    write(folder, render(str(helm)))
    return folder


def version(bundle: Path) -> Any:
    """Return the ClusterServiceVersion."""
    (path,) = bundle.glob("manifests/*.clusterserviceversion.yaml")
    return yaml.safe_load(path.read_text())


@pytest.fixture(scope="module")
def judge() -> Path:
    """The program of `tests/release/olm`, whose first compilation takes minutes."""
    if not shutil.which("go"):
        pytest.skip("go is not installed")
    built = ROOT / "build" / "tools" / "olm"
    with alone(built.parent):
        command = ["go", "build", "-trimpath", "-o", str(built), "."]
        subprocess.run(command, cwd=Path(__file__).parent / "olm", check=True)
    return built


def test_the_rules_of_operator_sdk_find_nothing(bundle: Path, judge: Path) -> None:
    """Neither an error nor a warning is found, because publishers of the bundle would see both."""
    done = subprocess.run([judge, bundle], capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines(), done.stderr, done.returncode) == ([], "", 0)


def test_the_rules_of_operator_sdk_find_a_definition_that_is_missing(
    judge: Path, tmp_path: Path, helm: Path
) -> None:
    """This shows that the program really checks a bundle."""
    write(tmp_path, render(str(helm)))
    (tmp_path / "manifests" / "users.orderlymq.io.yaml").unlink()

    done = subprocess.run([judge, tmp_path], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert 'owned CRD "orderlymq.io/v1alpha1, Kind=User" not found' in done.stdout


def test_every_definition_is_owned_and_as_the_models_make_it(bundle: Path) -> None:
    """OLM refuses a bundle if the definitions in it differ from those that it owns."""
    owned = version(bundle)["spec"]["customresourcedefinitions"]["owned"]
    for each in owned:
        brought = yaml.safe_load((bundle / "manifests" / f"{each['name']}.yaml").read_text())
        (kept,) = (
            found
            for path in (ROOT / "crds").glob("*.yaml")
            for found in [yaml.safe_load(path.read_text())]
            if found["metadata"]["name"] == each["name"]
        )
        assert brought["spec"] == kept["spec"]
        (served,) = (it for it in kept["spec"]["versions"] if it["name"] == each["version"])
        assert each["kind"] == kept["spec"]["names"]["kind"]
        _check_paths(each, served["schema"]["openAPIV3Schema"]["properties"])
    definitions = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]
    brought = {
        (it["metadata"]["name"], version["name"])
        for it in definitions
        for version in it["spec"]["versions"]
    }
    assert {(each["name"], each["version"]) for each in owned} == brought
    assert len(brought) == len(owned)
    assert len(definitions) == len(list(bundle.glob("manifests/*.yaml"))) - 1


def _check_paths(owned: Any, schema: Any) -> None:
    for part in ("spec", "status"):
        for descriptor in owned[f"{part}Descriptors"]:
            node = schema[part]
            for name in descriptor["path"].split("."):
                node = node["properties"][name]


def test_the_operator_gets_the_charts_rights_and_no_others(bundle: Path) -> None:
    """Rights are granted in each namespace that the operator serves, and for nodes and the like in the cluster."""
    spec = version(bundle)["spec"]["install"]["spec"]
    (inside,), (outside,) = spec["permissions"], spec["clusterPermissions"]
    (deployment,) = spec["deployments"]
    pod = deployment["spec"]["template"]["spec"]

    assert of_rules(inside["rules"]) == of_file("namespace") | of_file("lease")
    assert of_rules(outside["rules"]) == of_file("cluster")
    accounts = {inside["serviceAccountName"], outside["serviceAccountName"]}
    assert accounts == {pod["serviceAccountName"]}


def test_olm_says_which_namespaces_are_served(bundle: Path) -> None:
    """In the mode AllNamespaces OLM names none, which to the operator means its own, so the mode is not offered."""
    spec = version(bundle)["spec"]
    (deployment,) = spec["install"]["spec"]["deployments"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (watched,) = (each for each in container["env"] if each["name"] == "ORDERLYMQ_WATCH_NAMESPACES")

    path = watched["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['olm.targetNamespaces']"
    assert "value" not in watched
    assert {each["type"]: each["supported"] for each in spec["installModes"]} == MODES
    assert (len(MODES), MODES["AllNamespaces"]) == (4, False)


def test_the_cluster_chooses_as_whom_the_operator_runs(bundle: Path) -> None:
    """OpenShift's restricted-v2 refuses a user outside the namespace's range; the image has a numeric user that is not root."""
    (deployment,) = version(bundle)["spec"]["install"]["spec"]["deployments"]
    pod = deployment["spec"]["template"]["spec"]
    users = re.findall(r"^USER (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)

    profile = {"type": "RuntimeDefault"}
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": profile}
    (container,) = pod["containers"]
    assert not {"runAsUser", "runAsGroup"} & set(container["securityContext"])
    assert set(users) == {"10001:10001"}


def test_the_bundle_has_the_facts_of_the_project_and_examples_that_are_valid(bundle: Path) -> None:
    """The bundle's name contains its version; each version of a kind has an example, with which OLM's form begins."""
    found = version(bundle)
    examples = json.loads(found["metadata"]["annotations"]["alm-examples"])
    owned = found["spec"]["customresourcedefinitions"]["owned"]

    assert found["metadata"]["name"] == f"orderlymq.v{project()['version']}"
    assert found["spec"]["version"] == project()["version"]
    assert sorted((each["kind"], each["apiVersion"]) for each in examples) == sorted(
        (each["kind"], f"orderlymq.io/{each['version']}") for each in owned
    )
    (icon,) = found["spec"]["icon"]
    assert b64decode(icon["base64data"]).startswith(b"<svg")
    (path,) = bundle.glob("manifests/*.clusterserviceversion.yaml")
    assert not any(type(each) is yaml.AliasToken for each in yaml.scan(path.read_text()))
    for of_one in {each["apiVersion"] for each in examples}:
        alike = [each for each in examples if each["apiVersion"] == of_one]
        assert parse(yaml.safe_dump_all(alike), "alm-examples")
    told = yaml.safe_load((bundle / "metadata" / "annotations.yaml").read_text())["annotations"]
    lines = (bundle / "Dockerfile").read_text().splitlines()
    assert [f"LABEL {key}={text}" for key, text in told.items()] == [
        line for line in lines if line.startswith("LABEL")
    ]
