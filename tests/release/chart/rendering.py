"""The rendered chart, for tests."""

import subprocess
from pathlib import Path
from typing import Any, Final

import yaml
from release.distributions import ROOT

CHART: Final = ROOT / "charts" / "orderlymq"
OLDEST_KUBERNETES: Final = "1.30.0"
# Values that switch on every optional part.
ALL_ON: Final = {
    "image": {"repository": "registry.example/orderlymq", "tag": "1.2.3"},
    "watchNamespaces": ["*"],
    "replicas": 2,
    "pipelines": {"executors": True, "sparkApplications": True},
    "metrics": {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
    },
}


def run(helm: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm, *words], capture_output=True, text=True, check=False)


def render(helm: Path, chart: Path, *words: str | Path) -> list[dict[str, Any]]:
    """Return the objects that an installation would create."""
    place = ("release", chart, "--namespace", "system", "--kube-version", OLDEST_KUBERNETES)
    done = run(helm, "template", *place, *words)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def values(folder: Path, what: dict[str, Any]) -> Path:
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(what))
    return path


def only(made: list[dict[str, Any]], kind: str, ending: str = "") -> dict[str, Any]:
    """Return the only object of a kind whose name has this ending."""
    (found,) = (
        each for each in made if each["kind"] == kind and each["metadata"]["name"].endswith(ending)
    )
    return found


def pods(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the specs of the chart's pods, including those of Deployments and Jobs."""
    found = []
    for each in made:
        spec = each["spec"] if each["kind"] == "Pod" else each.get("spec", {}).get("template")
        if isinstance(spec, dict):
            found.append(spec.get("spec", spec))
    return found
