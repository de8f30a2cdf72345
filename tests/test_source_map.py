"""docs/explanation/source-map.md says what the modules say of themselves."""

import ast
import gc
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "source-map.md"
BEGIN, END = "<!-- source map -->\n", "<!-- end of source map -->"
FOLDERS = (
    "protocol/orderlymq_protocol",
    "protocol/orderlymq_runtime",
    "broker/orderlymq_raft",
    "broker/orderlymq_broker",
    "broker/orderlymq_backup",
    "broker/orderlymq_nameserver",
    "client/orderlymq",
    "client/orderlymq_testing",
    "operator/orderlymq_operator",
    "pipelines/orderlymq_spark",
    "pipelines/pyspark_orderlymq",
    "console/orderlymq_console",
)


@pytest.fixture(autouse=True)
def nothing_is_collected() -> Iterator[None]:
    """Python 3.11 ends `ast.parse` by SystemError when what other tests have left is collected meanwhile."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def first_line(module: Path) -> str:
    """Return the first sentence of a module's docstring; every module must have one."""
    text = ast.get_docstring(ast.parse(module.read_text()))
    assert text, f"{module} has no docstring"
    return text.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def source_map() -> str:
    """Return the tables, one per package and folder."""
    lines = []
    for top in FOLDERS:
        folders = sorted({module.parent for module in (ROOT / top).rglob("*.py")})
        for folder in folders:
            modules = [m for m in sorted(folder.glob("*.py")) if m.name != "__init__.py"]
            about = first_line(folder / "__init__.py") if (folder / "__init__.py").exists() else ""
            lines += [f"## `{folder.relative_to(ROOT)}/`", "", about, ""]
            lines += ["| module | what it is for |", "|---|---|"]
            lines += [f"| `{module.name}` | {first_line(module)} |" for module in modules]
            lines.append("")
    return "\n".join(lines)


def with_map(page: str) -> str:
    """Return *page* with the source map of the present code."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}{source_map()}{END}{rest.split(END)[1]}"


def test_the_source_map_is_up_to_date() -> None:
    """A module that comes, goes or changes its purpose changes the map with it."""
    page = PAGE.read_text()

    assert page == with_map(page), "run: python -m tests.test_source_map"


def functions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions at any depth; only statements hold any, so expressions are not looked through."""
    nodes: list[ast.AST] = [module]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            nodes += getattr(node, part, ())


def test_modules_and_functions_keep_their_size() -> None:
    """No module over 590 lines, no tests over 600 and no function over 70: a larger one holds two things."""
    too_large = []
    for top in (*FOLDERS, "tests", "bench"):
        lines_max = 590 if top in FOLDERS else 600
        for module in sorted((ROOT / top).rglob("*.py")):
            if "node_modules" in module.parts:
                continue
            source = module.read_text()
            if source.count("\n") > lines_max:
                too_large.append(str(module.relative_to(ROOT)))
            too_large += [
                f"{module.relative_to(ROOT)}:{node.lineno} {node.name}"
                for node in functions(ast.parse(source))
                if (node.end_lineno or 0) - node.lineno >= 70
            ]

    assert too_large == []


def test_a_text_points_to_modules_that_exist() -> None:
    """A module that moves takes along what others say of it."""
    tops = (*FOLDERS, "tests", "bench", "e2e", "release")
    modules = [each for top in tops for each in (ROOT / top).rglob("*.py")]
    known = {"/".join(each.parts[begin:]) for each in modules for begin in range(len(each.parts))}
    astray = [
        f"{module.relative_to(ROOT)}: {named}"
        for module in modules
        if "node_modules" not in module.parts
        for named in re.findall(r"`([\w./-]+\.py)`", module.read_text())
        if named not in known
    ]

    assert astray == []


if __name__ == "__main__":
    PAGE.write_text(with_map(PAGE.read_text()))
