"""Errors lead to the docs: each has a section, and every section that is linked exists."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import orderlymq
from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.session import CommandFailed
from orderlymq.errors import BrokerError, OrderlyMQError, SendUnknown, TopicNotFound

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub makes them of its headings."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    texts = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text) for text in found]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


def exists(link: str) -> bool:
    page, _, anchor = link.partition("#")
    path = ROOT / page
    return path.is_file() and (not anchor or anchor in anchors(path))


def errors() -> list[type[OrderlyMQError]]:
    """Return every error class of the SDK."""
    for module in pkgutil.walk_packages(orderlymq.__path__, "orderlymq."):
        # The second needs an extra; neither has errors of its own.
        if not module.name.endswith(("__main__", "telemetry")):
            importlib.import_module(module.name)
    found: list[type[OrderlyMQError]] = [OrderlyMQError]
    for each in found:
        found += [one for one in each.__subclasses__() if one not in found]
    return [each for each in found if each.__module__.startswith("orderlymq.")]


def test_every_error_of_the_sdk_has_a_section_of_its_own() -> None:
    """OTH-07: named like the class."""
    assert [each.docs for each in errors() if not exists(each.docs)] == []
    assert len({each.docs for each in errors()}) == len(errors()) > 8


def test_an_error_shows_its_section_in_the_traceback_and_not_in_its_text() -> None:
    """Texts stay what logs and tests compare."""
    error = TopicNotFound("no broker has the topic x")

    assert str(error) == "no broker has the topic x"
    assert error.__notes__ == ["See docs/reference/errors.md#topicnotfound"]
    assert SendUnknown("x").__notes__ == ["See docs/reference/errors.md#sendunknown"]
    assert BrokerError(1, "no").__notes__ == ["See docs/reference/errors.md#brokererror"]


def test_a_subclass_without_a_section_leads_to_its_parents() -> None:
    """Of the pipelines and of users."""

    class Ours(TopicNotFound):
        """Somebody's own."""

    assert Ours.docs == TopicNotFound.docs


def test_the_refusals_of_the_command_have_a_section() -> None:
    """Other errors name their exit code."""
    refusal = CommandFailed(ExitCode.NOT_FOUND, "nothing there")

    assert exists(refusal.docs)


FACES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *(ROOT / name / "README.md" for name in ("e2e", "examples/python")),
]


@pytest.mark.parametrize("page", [*FACES, *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Files and anchors, as the pages stand."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:)([^)\s]*)\)", text)
    wrong = []
    for link in links:
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            wrong.append(link)

    assert wrong == []
