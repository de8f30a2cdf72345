"""Things outside the code that pages name exist: kinds of kubectl, values of the chart, extras of pip."""

import itertools
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml
from release.distributions import distributions, project, requirements

from orderlymq_operator.resources.conditions.table import REASONS
from tests.docs.test_pages import PAGES, code, typed
from tests.docs.tutorial import ROOT

VERBS = {"annotate", "delete", "describe", "edit", "get", "patch", "scale", "wait"}
# Kubernetes' own kinds on our pages.
FOREIGN = {"crd", "deployment", "pod", "pods", "pvc", "secret", "secrets", "service"}


@cache
def kinds() -> set[str]:
    """Return the names of the custom resources that kubectl knows."""
    found: set[str] = set()
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        spec = yaml.safe_load(path.read_text())["spec"]
        names = spec["names"]
        for name in (names["plural"], names["singular"]):
            found.add(f"{name}.{spec['group']}")
        found |= {*names["shortNames"], *names["categories"]}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_resource_of_kubectl_on_a_page_exists(page: Any) -> None:
    """Ours are named with their API group, because other projects have a `cluster` and a `user`, too."""
    for words in typed(page, "kubectl"):
        named = {word for word in words if ".orderlymq.io" in word}
        if words[0] in VERBS and len(words) > 1 and not words[1].startswith("-"):
            named.add(words[1])
        unknown = {re.split(r"[/,]", each)[0] for each in named} - kinds() - FOREIGN
        assert unknown == set(), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_condition_that_kubectl_waits_for_exists(page: Any) -> None:
    """Otherwise `kubectl wait` would wait until its timeout."""
    known = {each for reason in REASONS for each in reason.conditions}
    for words in typed(page, "kubectl"):
        for word in words:
            if word.startswith("--for=condition="):
                assert word.rpartition("=")[2] in known


def leaves(values: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of all values of the chart."""
    for key, value in values.items():
        yield f"{path}{key}"
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_value_of_the_chart_on_a_page_exists(page: Any) -> None:
    """Checked are the values in `--set` of helm commands."""
    known = set(leaves(yaml.safe_load((ROOT / "charts/orderlymq/values.yaml").read_text())))
    for words in typed(page, "helm"):
        for option, value in itertools.pairwise(words):
            if option == "--set":
                assert value.partition("=")[0] in known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_upgrade_on_a_page_lacks_the_new_values_of_the_chart(page: Any) -> None:
    """--reuse-values keeps the old chart's defaults, so a template that reads a newer value would fail."""
    for words in typed(page, "helm"):
        if words[0] == "upgrade":
            assert "--reuse-values" not in words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_extra_and_distribution_on_a_page_exists(page: Any) -> None:
    """The extras of a checkout and those of each wheel are checked."""
    of_wheels = {each.name: set(each.extras) for each in distributions()}
    of_checkout = set(project()["optional-dependencies"])
    for _, text in code(page):
        for name, extra in re.findall(r"(orderlymq(?:-\w+)*)\[(\w+)\]", text):
            assert extra in of_wheels[name], f"{name}[{extra}]"
        for extra in re.findall(r"pip install -e '?\.\[(\w+)\]", text):
            assert extra in of_checkout


def test_workers_of_spark_get_what_our_wheels_need() -> None:
    """The page lists all dependencies except Spark, in versions that pyproject.toml permits."""
    wheels = [each for each in distributions() if each.name in ("orderlymq", "orderlymq-spark")]
    needed = {name for each in wheels for name in each.dependencies} - {"pyspark"}
    bounds = {name: re.search("<[^,;# ]+", requirements()[name]) for name in needed}
    wanted = {f"{name}{bound[0]}" if bound else name for name, bound in bounds.items()}

    page = (ROOT / "docs/howto/pipelines.md").read_text()
    (typed,) = re.findall(r"`pip install ([^`]+)` on each worker", page)

    assert set(typed.replace("'", "").split()) == wanted
