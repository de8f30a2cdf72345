"""Constructs that compiled modules must avoid, because mypyc treats them differently from Python or C has no such name."""

import ast
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile_in", ROOT / "broker" / "compile.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


PROGRAM = _program()
MODULES: tuple[str, ...] = PROGRAM.MODULES


def source_of(module: str) -> Path:
    return next(path for part in ("protocol", "broker") if (path := ROOT / part / module).exists())


def own(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions inside it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from own(child)


@pytest.mark.parametrize("module", MODULES)
def test_a_name_of_a_function_holds_errors_of_one_kind(module: str) -> None:
    """Law: a compiled variable has one type, so handlers of different errors in a function use different names."""
    for function in ast.walk(ast.parse(source_of(module).read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            kinds: dict[str, set[str]] = {}
            for node in own(function):
                if isinstance(node, ast.ExceptHandler) and node.name and node.type:
                    kinds.setdefault(node.name, set()).add(ast.unparse(node.type))
            mixed = {name: found for name, found in kinds.items() if len(found) > 1}
            assert not mixed, f"{module}, {function.name}: {mixed}"


@pytest.mark.parametrize("module", MODULES)
def test_records_live_elsewhere(module: str) -> None:
    """Law: records are not in compiled modules: msgspec and pydantic read annotations at run time,
    which compiled classes keep only in part.
    """
    for node in ast.walk(ast.parse(source_of(module).read_text())):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rsplit(".", 1)[-1] for base in node.bases}
            assert not bases & {"Struct", "BaseModel", "Header"}, f"{module}: {node.name}"


@pytest.mark.parametrize("module", MODULES)
def test_no_field_has_a_name_that_c_reserves(module: str) -> None:
    """Law: no field is named `_thread`, because it would become the C keyword `__thread`."""
    for node in ast.walk(ast.parse(source_of(module).read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) != ("self", "_thread"), module


@pytest.mark.parametrize("module", MODULES)
def test_no_field_is_annotated_with_a_view(module: str) -> None:
    """Law: no field of a compiled class is annotated with the builtin `memoryview`, which cannot be looked up;
    a module alias can.
    """
    for node in ast.walk(ast.parse(source_of(module).read_text())):
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    assert ast.unparse(field.annotation) != "memoryview", f"{module}: {node.name}"


def test_a_compiled_copy_is_current_until_a_source_changes(tmp_path: Path) -> None:
    """Law: a compiled copy is current as long as its sources' contents are the same; dates do not count.

    Without a valid stamp it is not current.
    """
    copy = tmp_path / "copy"
    copy.mkdir()
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "broker").mkdir()
    source = tmp_path / "broker" / "one.py"
    source.write_text("a = 1\n")
    unstamped = PROGRAM.is_current(copy, tmp_path)
    (copy / PROGRAM.STAMP).write_text(PROGRAM.digest(tmp_path))
    stamped = PROGRAM.is_current(copy, tmp_path)
    os.utime(source, (1, 1))
    touched = PROGRAM.is_current(copy, tmp_path)
    source.write_text("a = 2\n")
    changed = PROGRAM.is_current(copy, tmp_path)
    source.write_text("a = 1\n")
    source.rename(source.with_name("two.py"))
    renamed = PROGRAM.is_current(copy, tmp_path)
    (copy / PROGRAM.STAMP).write_bytes(b"\xff")
    broken = PROGRAM.is_current(copy, tmp_path)
    assert (unstamped, stamped, touched, changed, renamed, broken) == (
        *(False, True, True),
        *(False, False, False),
    )


def test_a_copy_is_of_the_sources_that_filled_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Law: `make compiled` takes the digest of the sources before it copies them,
    so that an edit during the copy makes the copy outdated.
    """
    PROGRAM.main(["--digest"])
    assert capsys.readouterr().out.strip() == PROGRAM.digest()

    recipe = (ROOT / "Makefile").read_text().partition("\ncompiled:")[2].partition("\n\n")[0]
    assert recipe.index("--digest") < recipe.index("pip ") < recipe.index("--of")
