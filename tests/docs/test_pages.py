"""Everything that pages tell readers to type exists: commands, options, make targets, manifest fields, SDK names."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import click
import pytest
import yaml
from docs.hooks import repository
from docs.pictures.architecture import PICTURE, draw

import orderlymq
from orderlymq_operator.resources.conditions.table import REASONS
from orderlymq_operator.resources.manifests.reader import parse
from tests.docs.test_commands_page import contexts
from tests.docs.tutorial import ROOT, TUTORIALS, commands

DOCS: Final = ROOT / "docs"
# Decisions and reports of runs are not checked: they describe the state of their time.
RECORDS: Final = (DOCS / "adr", DOCS / "evidence")
PAGES: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "python" / "README.md",
    ROOT / "charts" / "orderlymq" / "README.md",
    *(p for p in sorted(DOCS.rglob("*.md")) if not any(r in p.parents for r in RECORDS)),
]
_OURS: Final = re.compile(
    r"^kind: (Cluster|Topic|ConsumerGroup|User|Pipeline|Backup|ScheduledBackup)$", re.MULTILINE
)
_FENCED: Final = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INLINE: Final = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@cache
def code(page: Path) -> list[tuple[str, str]]:
    """Return language and text of a page's fenced blocks; inline code has the language ``inline``."""
    text = page.read_text()
    blocks = _FENCED.findall(text)
    return [*blocks, *(("inline", each) for each in _INLINE.findall(_FENCED.sub("", text)))]


def typed(page: Path, program: str) -> Iterator[list[str]]:
    """Yield the words of each line that calls *program*, without optional parts in brackets and without comments."""
    for language, text in code(page):
        if language not in {"", "sh", "bash", "inline"}:
            continue
        for line in text.replace("\\\n", " ").splitlines():
            match = re.match(rf"(?:\$ )?(?:\.venv/bin/)?{program} (.+)", line.strip())
            if match and (language != "inline" or "..." not in line):
                command = re.split(r" \| | && | #", match[1])[0]
                yield shlex.split(command.replace("HISTORY", "history"))


@cache
def known() -> dict[str, click.Context]:
    """Return the context of each command by its path."""
    return {context.command_path: context for context in contexts()}


def wrong_words(words: list[str]) -> str:
    """Return the part of a line that `orderlymq` would not accept, or an empty text."""
    path = "orderlymq"
    rest = list(words)
    while rest and isinstance(known()[path].command, click.Group) and not rest[0].startswith("-"):
        if f"{path} {rest[0]}" not in known():
            return f"{path} has no command {rest[0]}"
        path = f"{path} {rest.pop(0)}"
    options = {
        name
        for parameter in known()[path].command.get_params(known()[path])
        for name in (*parameter.opts, *parameter.secondary_opts)
    } | {"-h", "--help"}
    unknown = [word for word in rest if word.startswith("-") and len(word) > 1]
    unknown = [word for word in unknown if word.partition("=")[0] not in options]
    return f"{path} has no option {unknown[0]}" if unknown else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_a_page_exists(page: Path) -> None:
    """The options of the command are checked, too."""
    wrong = [wrong_words(words) for words in typed(page, "orderlymq")]

    assert [each for each in wrong if each] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_on_a_page_exists(page: Path) -> None:
    """A reader who types the target gets what the page promises."""
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {
        words[0] for words in typed(page, "make") if re.fullmatch(r"[a-z][a-z0-9-]*", words[0])
    }

    assert asked - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_manifest_on_a_page_is_valid(page: Path) -> None:
    """The models check fields and values, and refuse unknown names."""
    for language, text in code(page):
        if language != "yaml" or not _OURS.search(text):
            continue
        version = "" if "apiVersion:" in text else "apiVersion: orderlymq.io/v1alpha1\n"
        assert parse(version + text, page.name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_program_on_a_page_compiles_and_imports_what_exists(page: Path) -> None:
    """Imported names of the SDK and of the pipelines are looked up."""
    for language, text in code(page):
        if language != "python":
            continue
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
        tree = compile(text, page.name, "exec", flags)
        imported = [
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "orderlymq"
            for name in node.names
        ]
        assert [name for name in imported if name not in orderlymq.__all__] == []


def test_every_public_name_of_the_sdk_is_on_its_page() -> None:
    """The page shows each name under the module that defines it; errors are shown as a whole module."""
    shown = set(re.findall(r"^::: (\S+)$", (DOCS / "reference" / "python.md").read_text(), re.M))
    public = {
        f"{each.__module__}.{name}"
        for name in orderlymq.__all__
        for each in [getattr(orderlymq, name)]
        if callable(each)
    }

    missing = {each for each in public - shown if not each.startswith("orderlymq.errors.")}
    assert missing == set()
    assert "orderlymq.errors" in shown


def test_every_file_that_a_command_names_exists() -> None:
    """Checked are arguments of kubectl, helm and `orderlymq` that begin with examples/ or charts/."""
    named = {
        word
        for page in PAGES
        for _, text in code(page)
        for word in re.findall(r"(?<![\w/])(?:examples|charts)/[\w./-]*\w", text)
    }

    assert [each for each in sorted(named) if not (ROOT / each).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_links_to_exists(page: Path) -> None:
    """Links may lead to source files, too, which are not part of the site."""
    linked = re.findall(r"\]\((?!\w+:)([^()#\s]+)[^()\s]*\)", _FENCED.sub("", page.read_text()))

    assert [each for each in linked if not (page.parent / each).exists()] == []


def test_the_program_of_the_readme_is_the_example_that_tests_run() -> None:
    """The README's program may differ from the example in type hints and docstrings."""
    (shown,) = (text for language, text in code(ROOT / "README.md") if language == "python")
    example = (ROOT / "examples" / "python" / "quickstart.py").read_text()

    assert bare(shown) == bare(example)


def bare(program: str) -> str:
    """Return the code of a program without docstrings and return types."""
    tree = ast.parse(program)
    if ast.get_docstring(tree):
        del tree.body[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
            node.returns = None
    return ast.unparse(tree)


def test_the_tutorial_for_kubernetes_names_what_its_manifests_make() -> None:
    """A scenario in e2e/ runs the same manifests; this test checks the names on the page."""
    made = {
        f"{each['kind'].lower()}/{each['metadata']['name']}"
        for name in ("quickstart.yaml", "orders-app.yaml")
        for each in yaml.safe_load_all((ROOT / "examples" / name).read_text())
    }
    text = " ".join(commands(TUTORIALS / "kubernetes.md")).replace(".orderlymq.io", "")
    named = set(re.findall(r"\b(cluster|topic|consumergroup|deploy)/([\w-]+)", text))

    assert {f"{kind.replace('deploy', 'deployment')}/{name}" for kind, name in named} <= made
    assert len(named) == 6


def test_every_condition_on_a_page_exists() -> None:
    """A condition is known by its type in a manifest's status, or by its reason."""
    known = {each for reason in REASONS for each in (reason.name, *reason.conditions)}
    for page in PAGES:
        named = re.findall(r"conditions? `(\w+)`", page.read_text())
        assert set(named) <= known, page.name


@pytest.mark.parametrize("page", ["README.md", "SECURITY.md", "docs/tutorials/kubernetes.md"])
def test_the_oldest_kubernetes_is_that_of_the_chart(page: str) -> None:
    """Chart.yaml refuses any older version."""
    oldest = re.search(
        r'kubeVersion: ">=(\d+\.\d+)', (ROOT / "charts/orderlymq/Chart.yaml").read_text()
    )

    assert oldest
    assert f"Kubernetes {oldest[1]}" in (ROOT / page).read_text().replace("** ", " ")


def test_the_address_of_the_project_is_that_of_its_package() -> None:
    """All use one placeholder until the owner confirms the address."""
    address = repository()
    pages = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")]

    for page in [*pages, *PAGES]:
        named = re.findall(r"https://github.com/orderlymq/[\w-]+", page.read_text())
        assert set(named) <= {address}


def test_the_readme_stays_short() -> None:
    """A newcomer should read at most two screens."""
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_the_first_page_leads_to_every_page_of_the_navigation() -> None:
    """Decisions are excepted, because they have their own list."""
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = set(re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE)) - {"index.md"}
    links = re.findall(r"\]\(([\w/-]+\.md)\)", (DOCS / "index.md").read_text())

    assert set(links) == pages


def test_every_decision_is_in_the_list() -> None:
    """The list is in order of their numbers, without gaps."""
    decisions = sorted(path.name for path in (DOCS / "adr").glob("0*.md"))
    listed = re.findall(r"\((\d{4}-[\w-]+\.md)\)", (DOCS / "adr" / "index.md").read_text())

    assert listed == decisions
    assert [int(name[:4]) for name in decisions] == list(range(1, len(decisions) + 1))


def test_pictures_are_drawn_by_their_programs_and_need_nothing_from_outside() -> None:
    """Pictures use no font or script from another host."""
    assert PICTURE.read_text() == draw()
    for picture in (DOCS / "pictures").glob("*.svg"):
        links = set(re.findall(r"https?://[^\s\"')]+", picture.read_text()))
        assert links <= {"http://www.w3.org/2000/svg"}
    assert "order kept" in (DOCS / "pictures" / "demo.svg").read_text().replace("&#160;", " ")
