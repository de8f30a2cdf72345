"""
Make the bundle for the Operator Lifecycle Manager: ``python -m release.bundle FOLDER``; needs Helm.

The chart, as Helm renders it, is the only source: its Deployment, rights and definitions become those of a ClusterServiceVersion.
OLM says by an annotation of the pod which namespaces are served, so the mode AllNamespaces, in which it says nothing, is not
offered. The pod names no user, because OpenShift's restricted-v2 refuses one; elsewhere it runs as the image's own, 10001.
"""

import argparse
import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from release.distributions import ROOT, project

CHART: Final = ROOT / "charts" / "orderlymq"
PACKAGE: Final = "orderlymq"
# OLM's convention for versions before a stable release.
CHANNEL: Final = "candidate"
MATURITY: Final = "alpha"
# Files in examples/; OLM's forms start with the first resource of each kind in them.
_EXAMPLES: Final = (
    "quickstart.yaml",
    "kubernetes/tls-and-users.yaml",
    "kubernetes/backups.yaml",
    "pipelines/archive.yaml",
)
_ICON: Final = ROOT / "console" / "orderlymq_console" / "static" / "icon.svg"
OLDEST_KUBERNETES: Final = "1.30.0"
MODES: Final = {
    "OwnNamespace": True,
    "SingleNamespace": True,
    "MultiNamespace": True,
    "AllNamespaces": False,
}
_UNSET: Final = tuple(
    word
    for name in ("runAsUser", "runAsGroup", "fsGroup")
    for word in ("--set", f"podSecurityContext.{name}=null")
)
_WATCHED: Final = "ORDERLYMQ_WATCH_NAMESPACES"
_TARGETS: Final = "metadata.annotations['olm.targetNamespaces']"
# The fields that a console shows first for each kind: path, name, meaning, form.
_FORM: Final = "urn:alm:descriptor:com.tectonic.ui:"
_SPEC: Final = {
    "Cluster": [
        ("groups", "Broker groups", "Number of raft groups.", "number"),
        (
            "replicasPerGroup",
            "Replicas of each group",
            "3 survive the loss of one, 5 the loss of two.",
            "number",
        ),
        ("storage.size", "Disk of a replica", "It never shrinks.", "text"),
    ],
    "Topic": [("queues", "Queues", "Most consumers that share the work by queue.", "number")],
    "ConsumerGroup": [
        ("ordering", "Ordering", "Whether messages of a key are consumed in order.", "text")
    ],
    "User": [("admin", "Administrator", "Whether it may administrate.", "booleanSwitch")],
    "Pipeline": [("suspend", "Suspended", "Whether no driver runs.", "booleanSwitch")],
    "Backup": [("verify", "Verified", "Whether the backup is read again.", "booleanSwitch")],
    "ScheduledBackup": [
        ("schedule", "Schedule", "When Backups begin, as cron has it.", "text"),
        ("suspend", "Suspended", "Whether no Backup begins.", "booleanSwitch"),
    ],
}
# The most important resources that the operator makes for each kind; a console shows them.
_MAKES: Final = {
    "Cluster": ("StatefulSet", "Service", "ConfigMap", "PodDisruptionBudget"),
    "Pipeline": ("StatefulSet", "Job", "CronJob"),
    "Backup": ("Job",),
}
_CONDITIONS: Final = {
    "path": "conditions",
    "displayName": "Conditions",
    "description": "Ready sums up the others.",
    "x-descriptors": ["urn:alm:descriptor:io.kubernetes.conditions"],
}
_ABOUT: Final = """\
Strictly ordered messaging: messages of one topic and sharding key are consumed in the order in which their sends were
acknowledged, by one consumer at a time, whatever fails. Brokers replicate one log by raft; unmodified RocketMQ clients work.

Begin with a Cluster and a Topic, as in the examples. The documentation is in the project's repository.
"""
Json = dict[str, Any]


def render(helm: str = "helm") -> list[Json]:
    """Return the objects that the chart renders, without hooks."""
    command = [helm, "template", PACKAGE, str(CHART), "--namespace", PACKAGE, "--no-hooks"]
    # A bundle cannot contain admission policies.
    policies = "changeWarnings.enabled=false,brokerPolicy.enabled=false"
    command += ["--set", policies, *_UNSET]
    done = subprocess.run(
        [*command, "--kube-version", OLDEST_KUBERNETES], capture_output=True, text=True, check=True
    )
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def csv(made: list[Json]) -> Json:
    """Return the ClusterServiceVersion for the rendered objects of the chart."""
    facts = project()
    chart: Json = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (deployment,) = (each for each in made if each["kind"] == "Deployment")
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    definitions = [each for each in made if each["kind"] == "CustomResourceDefinition"]
    version = facts["version"]
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{PACKAGE}.v{version}",
            "annotations": {
                "alm-examples": json.dumps(examples(definitions), indent=2),
                "capabilities": chart["annotations"]["artifacthub.io/operatorCapabilities"],
                "categories": "Streaming & Messaging",
                "containerImage": _image(deployment),
                "description": chart["description"],
                "repository": facts["urls"]["Repository"],
                "support": facts["authors"][0]["name"],
            },
        },
        "spec": {
            "displayName": "OrderlyMQ",
            "description": _ABOUT,
            "version": version,
            "maturity": MATURITY,
            "minKubeVersion": OLDEST_KUBERNETES,
            "keywords": chart["keywords"],
            "icon": [
                {
                    "base64data": base64.b64encode(_ICON.read_bytes()).decode(),
                    "mediatype": "image/svg+xml",
                }
            ],
            "provider": {"name": facts["authors"][0]["name"], "url": facts["urls"]["Repository"]},
            "links": [{"name": name, "url": url} for name, url in facts["urls"].items()],
            "installModes": [{"type": mode, "supported": can} for mode, can in MODES.items()],
            "customresourcedefinitions": {
                "owned": [
                    owned(each, version)
                    for each in definitions
                    for version in each["spec"]["versions"]
                ]
            },
            "install": {
                "strategy": "deployment",
                "spec": {
                    "deployments": [
                        {
                            "name": deployment["metadata"]["name"],
                            "spec": _served(deployment["spec"]),
                        }
                    ],
                    "permissions": [_rights(made, "Role", account)],
                    "clusterPermissions": [_rights(made, "ClusterRole", account)],
                },
            },
        },
    }


def examples(definitions: list[Json]) -> list[Json]:
    """Return example manifests, one for each version of each kind."""
    found: dict[str, Json] = {}
    for name in _EXAMPLES:
        for each in yaml.safe_load_all((ROOT / "examples" / name).read_text()):
            found.setdefault(each["kind"], each)
    return [
        found[spec["names"]["kind"]] | {"apiVersion": f"{spec['group']}/{version['name']}"}
        for spec in (each["spec"] for each in definitions)
        for version in spec["versions"]
    ]


def owned(definition: Json, version: Json) -> Json:
    """Return the description of one version of a CustomResourceDefinition."""
    kind = definition["spec"]["names"]["kind"]
    return {
        "name": definition["metadata"]["name"],
        "kind": kind,
        "version": version["name"],
        "displayName": kind,
        "description": version["schema"]["openAPIV3Schema"]["description"],
        "resources": [{"kind": each, "name": "", "version": "v1"} for each in _MAKES.get(kind, ())],
        "specDescriptors": [
            {
                "path": path,
                "displayName": name,
                "description": text,
                "x-descriptors": [f"{_FORM}{form}"],
            }
            for path, name, text, form in _SPEC[kind]
        ],
        "statusDescriptors": [_CONDITIONS],
    }


def _image(deployment: Json) -> str:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


def _served(spec: Json) -> Json:
    """Return the Deployment's spec with the watched namespaces taken from OLM's annotation."""
    (container,) = spec["template"]["spec"]["containers"]
    for variable in container["env"]:
        if variable["name"] == _WATCHED:
            variable.pop("value")
            variable["valueFrom"] = {"fieldRef": {"fieldPath": _TARGETS}}
    return spec


def _rights(made: list[Json], kind: str, account: str) -> Json:
    """Return the rules of the roles of this *kind* that the chart binds to the operator."""
    bound = {
        each["roleRef"]["name"]
        for each in made
        if each["kind"] == f"{kind}Binding"
        and account in {subject["name"] for subject in each["subjects"]}
    }
    rules = [
        rule
        for each in made
        if each["kind"] == kind and each["metadata"]["name"] in bound
        for rule in each["rules"]
    ]
    return {"serviceAccountName": account, "rules": rules}


def annotations() -> Json:
    """Return the bundle's annotations, which an index reads."""
    prefix = "operators.operatorframework.io.bundle"
    return {
        "annotations": {
            f"{prefix}.mediatype.v1": "registry+v1",
            f"{prefix}.manifests.v1": "manifests/",
            f"{prefix}.metadata.v1": "metadata/",
            f"{prefix}.package.v1": PACKAGE,
            f"{prefix}.channels.v1": CHANNEL,
            f"{prefix}.channel.default.v1": CHANNEL,
        }
    }


def write(into: Path, made: list[Json]) -> None:
    """Write the bundle of the rendered objects (*made*)."""
    files = {
        f"manifests/{PACKAGE}.clusterserviceversion.yaml": csv(made),
        "metadata/annotations.yaml": annotations(),
    }
    for each in made:
        if each["kind"] == "CustomResourceDefinition":
            each["metadata"] = {"name": each["metadata"]["name"]}
            files[f"manifests/{each['metadata']['name']}.yaml"] = each
    for name, content in files.items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Copy through JSON; otherwise repeated objects become YAML anchors, which some readers of bundles do not support.
        plain = json.loads(json.dumps(content))
        path.write_text(yaml.safe_dump(plain, sort_keys=False, width=120))
    labels = "".join(f"LABEL {key}={text}\n" for key, text in annotations()["annotations"].items())
    (into / "Dockerfile").write_text(
        f"FROM scratch\n{labels}COPY manifests /manifests/\nCOPY metadata /metadata/\n"
    )


def main() -> int:
    """Read the command line and write the bundle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the bundle is written")
    write(parser.parse_args().folder, render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
