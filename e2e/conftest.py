"""Fixtures of the scenarios: one cluster, one image and one operator; a namespace and an application for each scenario."""

import os
import shutil
from collections.abc import Iterator
from typing import Final

import pytest
from tests import turns

from e2e.canary import Canary, WatchedSpace
from e2e.installed import Operator
from e2e.machine import ROOT, Machine, MachineError, find, say
from e2e.orders import Orders
from e2e.space import EXAMPLE_IMAGE, Space

NO_KUBERNETES: Final = 40  # exit code; pytest uses another
SPARK_IMAGE: Final = "orderlymq-spark:dev"
_GIVEN_SPARK_IMAGE: Final = "ORDERLYMQ_E2E_SPARK_IMAGE"
_OPERATOR_SPACE: Final = "orderlymq-e2e"
_STORY_S: Final = 600


@pytest.hookimpl(trylast=True)  # after the selection by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give scenarios the time that a real cluster needs, and a second try, because they wait in real time.

    Scenarios that need only the API server run first, because an operator would start pods for each of their objects.
    """
    turns.take(config, items, _module)
    items.sort(key=lambda item: "operator" in getattr(item, "fixturenames", ()))
    reruns = int(os.environ.get("ORDERLYMQ_E2E_RERUNS", "1"))
    for item in items:
        item.add_marker(pytest.mark.flaky(reruns=reruns, reruns_delay=1))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_STORY_S))


def _module(item: pytest.Item) -> str:
    assert isinstance(item, pytest.Function)
    return str(item.module.__name__)


def _space_of(module: str) -> str:
    prefix = os.environ.get("ORDERLYMQ_E2E_PREFIX", "e2e-")
    return prefix + module.rpartition(".")[2].removeprefix("test_").replace("_", "-")


@pytest.fixture(scope="session")
def machine() -> Machine:
    """Find the Kubernetes on which the scenarios run."""
    try:
        return find()
    except MachineError as error:
        pytest.exit(str(error), returncode=NO_KUBERNETES)


@pytest.fixture(scope="session")
def image(machine: Machine) -> str:
    """Bring the image under test to all nodes; ORDERLYMQ_E2E_IMAGE names an image that exists already."""
    given = os.environ.get("ORDERLYMQ_E2E_IMAGE")
    if given:
        return given
    say(f"building {EXAMPLE_IMAGE}")
    machine.build(EXAMPLE_IMAGE)
    return EXAMPLE_IMAGE


@pytest.fixture(scope="session")
def spark_image(machine: Machine) -> str:
    """Bring the image with Spark to all nodes; ORDERLYMQ_E2E_SPARK_IMAGE names an image that exists already."""
    if not os.environ.get(_GIVEN_SPARK_IMAGE):
        say(f"building {SPARK_IMAGE}")
        machine.build_spark(SPARK_IMAGE)
    return _spark_image()


def _spark_image() -> str:
    return os.environ.get(_GIVEN_SPARK_IMAGE) or SPARK_IMAGE


@pytest.fixture(scope="session")
def definitions(machine: Machine) -> Machine:
    """Apply the custom resource definitions of the source tree, as `kubectl apply` does."""
    machine.run("kubectl", "apply", "--server-side", "--force-conflicts", "-f", "crds/")
    return machine


@pytest.fixture(scope="session")
def operator(
    definitions: Machine, image: str, request: pytest.FixtureRequest
) -> Iterator[Operator]:
    """Install the operator with its chart.

    It serves every namespace; with ORDERLYMQ_E2E_NAMESPACED only those of the scenarios, so that it can share a
    cluster with others.
    """
    names = sorted({_space_of(_module(item)) for item in request.session.items})
    names += [f"{name}-two" for name in names]
    namespaced = bool(os.environ.get("ORDERLYMQ_E2E_NAMESPACED"))
    prefix = os.environ.get("ORDERLYMQ_E2E_PREFIX", "")
    for name in [prefix + _OPERATOR_SPACE, *names]:
        definitions.run("kubectl", "create", "namespace", name, check=False)
    repository, _, tag = image.rpartition(":")
    spark_repository, _, spark_tag = _spark_image().rpartition(":")
    values = (
        f"image.repository={repository}",
        f"image.tag={tag}",
        f"watchNamespaces={{{','.join(names) if namespaced else '*'}}}",
        f"crds.install={'false' if namespaced else 'true'}",
        "resyncSeconds=15",
        "pipelines.executors=true",
        f"pipelines.image.repository={spark_repository}",
        f"pipelines.image.tag={spark_tag}",
    )
    found = Operator(definitions, prefix + _OPERATOR_SPACE, image, values)
    found.install()
    yield found
    if not os.environ.get("ORDERLYMQ_E2E_KEEP"):
        found.uninstall()
        command = ("kubectl", "delete", "namespace", *names, "--ignore-not-found", "--wait=false")
        definitions.run(*command, check=False)


@pytest.fixture(scope="module")
def bare(definitions: Machine, request: pytest.FixtureRequest) -> Iterator[Space]:
    """Give the scenario a namespace that no operator serves, so that only the API server checks objects."""
    found = Space(definitions, _space_of(request.module.__name__) + "-bare", EXAMPLE_IMAGE)
    definitions.run("kubectl", "create", "namespace", found.name, check=False)
    yield found
    found.kubectl("delete", "mq", "--all", check=False)


@pytest.fixture
def space(
    machine: Machine, image: str, operator: Operator, request: pytest.FixtureRequest
) -> Iterator[Space]:
    """Give the scenario its own namespace; remove everything in it afterwards."""
    made = WatchedSpace if "canary" in request.fixturenames else Space
    found = made(machine, _space_of(request.module.__name__), image)
    machine.run("kubectl", "create", "namespace", found.name, check=False)
    if found.get("mq,deployments"):
        sweep(found)  # another run has left it
    yield found
    if not os.environ.get("ORDERLYMQ_E2E_KEEP"):
        sweep(found)


@pytest.fixture
def canary(space: Space) -> Canary:
    """Give the Clusters of the scenario's examples a canary."""
    return Canary(space)


def sweep(space: Space) -> None:
    """Remove everything that a scenario has made, volumes included."""
    # Delete by the category of all our kinds: the next attempt would begin with any object that is left.
    space.kubectl(
        "delete", "mq,deployments,statefulsets,jobs", "--all", "--wait=false", check=False
    )
    space.kubectl("delete", "clusters.orderlymq.io", "--all", "--timeout=60s", check=False)
    space.kubectl("delete", "pods", "--all", "--grace-period=0", "--force", check=False)
    space.kubectl("delete", "pvc,services,secrets", "--all", "--timeout=60s", check=False)


@pytest.fixture
def orders(space: Space, request: pytest.FixtureRequest) -> Orders:
    """Give the scenario the application; its history is written to .orderlymq/e2e/, for `orderlymq verify`."""
    folder = ROOT / ".orderlymq" / "e2e" / str(request.node.name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return Orders(space, folder)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the measurements of the scenarios."""
    lines = [
        f"{report.nodeid.rpartition('/')[2]}: {name} {value}"
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        for name, value in report.user_properties
    ]
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.line(line)
