"""The chart and the images have the facts of pyproject.toml."""

import re
from typing import Any

import yaml
from release.distributions import ROOT, project

IMAGES = 2
PROJECT = project()
CHART: dict[str, Any] = yaml.safe_load((ROOT / "charts" / "orderlymq" / "Chart.yaml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_the_chart_has_the_facts_of_the_project() -> None:
    repository = PROJECT["urls"]["Repository"]
    facts = {key: CHART[key] for key in ("version", "appVersion", "home", "sources", "maintainers")}
    assert facts == {
        "version": PROJECT["version"],
        "appVersion": PROJECT["version"],
        "home": repository,
        "sources": [repository],
        "maintainers": [
            {"name": author["name"], "url": repository} for author in PROJECT["authors"]
        ],
    }
    place, _, icon = CHART["icon"].partition("/raw/main/")
    assert place == repository
    assert (ROOT / icon).is_file()


def test_the_annotations_of_artifact_hub_have_the_facts_of_the_project() -> None:
    annotations = CHART["annotations"]
    alpha = "Development Status :: 3 - Alpha" in PROJECT["classifiers"]
    links = yaml.safe_load(annotations["artifacthub.io/links"])
    wanted = ("Documentation", "Changelog", "Issues")
    assert all(isinstance(value, str) for value in annotations.values())  # Helm refuses others
    assert annotations["artifacthub.io/license"] == PROJECT["license"]
    assert annotations["artifacthub.io/prerelease"] == str(alpha).lower()
    assert links == [{"name": name, "url": PROJECT["urls"][name]} for name in wanted]


def test_the_catalogue_shows_the_custom_resources_of_the_chart() -> None:
    shown = yaml.safe_load(CHART["annotations"]["artifacthub.io/crds"])
    definitions = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]
    made = [
        {
            "kind": each["spec"]["names"]["kind"],
            "version": version["name"],
            "name": each["metadata"]["name"],
            "displayName": each["spec"]["names"]["kind"],
            "description": version["schema"]["openAPIV3Schema"]["description"],
        }
        for each in definitions
        for version in each["spec"]["versions"]
    ]

    assert sorted(shown, key=lambda each: each["name"]) == sorted(
        made, key=lambda each: each["name"]
    )


def test_the_images_have_the_facts_of_the_project() -> None:
    """Build arguments have the project's values as defaults, and each image's labels use them."""
    defaults = dict(re.findall(r"^ARG (\w+)=(.*)$", DOCKERFILE, re.MULTILINE))
    assert {name: defaults[name] for name in ("VERSION", "SOURCE", "LICENSES")} == {
        "VERSION": PROJECT["version"],
        "SOURCE": PROJECT["urls"]["Repository"],
        "LICENSES": PROJECT["license"],
    }
    stages = [
        stage for stage in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE) if "LABEL" in stage
    ]
    assert len(stages) == IMAGES
    for stage in stages:
        for label in ("version", "revision", "source", "licenses"):
            argument = label.upper()
            # An argument before the first stage is empty in a stage that does not declare it.
            assert f"ARG {argument}\n" in stage.partition("LABEL")[0]
            assert f'org.opencontainers.image.{label}="${argument}"' in stage
