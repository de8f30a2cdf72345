"""
The mutants of a module: which expressions are changed, and to what.

The operators are mutmut's and three of our own; this module chooses where they apply. Rules: a mutant changes what
the program does, so annotations, the wording of errors and mere checks (assertions, ``check`` methods, ``__repr__``)
are left alone. A change that mypy would refuse is not tried. A mutant is identified by its function and its change,
not by its line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from hashlib import blake2b
from pathlib import Path
from textwrap import indent
from typing import Final

import libcst as cst
from mutmut.mutation import mutators

# Functions that only describe or check something.
_UNCHANGED_FUNCTIONS: Final = frozenset({"check", "check_invariants", "__repr__", "__str__"})
# These replace a value by None, or leave out an argument: the type checker refuses nearly all of it.
_LEFT_TO_MYPY: Final = frozenset(
    {mutators.operator_arg_removal, mutators.operator_dict_arguments, mutators.operator_assignment}
)
_OPERATORS: Final = [
    (kind, operator)
    for kind, operator in mutators.mutation_operators
    if operator not in _LEFT_TO_MYPY
]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one function.

    Attributes:
        path: the module's file, from the root of the repository.
        function: qualified name of the function or method.
        removed: the lines that the change replaces, without indentation.
        added: the lines in their place.
        number: distinguishes identical changes in one function.
        source: the function's text before the change; a verdict is valid while it stays.
        module_text: that of the module around it.
    """

    path: str
    function: str
    removed: str
    added: str
    number: int
    source: str
    module_text: str
    module: cst.Module
    original: cst.FunctionDef
    mutated: cst.FunctionDef

    @property
    def key(self) -> str:
        """Return the name of this mutant, which stays while its function does not change."""
        parts = (self.path, self.function, self.source, self.removed, self.added, str(self.number))
        return blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()

    @property
    def change(self) -> str:
        """Return the change in one line."""
        removed, added = (" ".join(text.split()) for text in (self.removed, self.added))
        return f"{removed} → {added}"

    def code(self) -> str:
        """Return the whole module with the change."""
        # The text is replaced if possible: that takes a tenth of the time of generating the module's text again.
        text, depth = self.module_text, self.module.default_indent * self.function.count(".")
        before = indent(self.source, depth)
        if text.count(before) == 1:
            return text.replace(before, indent(self.module.code_for_node(self.mutated), depth))
        changed = self.module.deep_replace(self.original, self.mutated)
        assert isinstance(changed, cst.Module)
        return str(changed.code)


def mutants_of(path: Path, root: Path) -> Iterator[Mutant]:
    """Yield the mutants of a module in the order of its text."""
    text = path.read_text()
    module = cst.parse_module(text)
    where = str(path.relative_to(root))
    for name, function in _functions(module.body, ""):
        source = module.code_for_node(function)
        seen: dict[tuple[str, str], int] = {}
        for node in _changeable(function):
            for changed in _changes(node):
                mutated = function.deep_replace(node, changed)
                assert isinstance(mutated, cst.FunctionDef)
                removed, added = _lines(source, module.code_for_node(mutated))
                if (removed, added) == ("", ""):
                    continue
                number = seen[removed, added] = seen.get((removed, added), -1) + 1
                yield Mutant(
                    where, name, removed, added, number, source, text, module, function, mutated
                )


def _functions(
    statements: Sequence[cst.CSTNode], outer: str
) -> Iterator[tuple[str, cst.FunctionDef]]:
    """Yield the functions and methods with their qualified names; a nested function belongs to the outer one."""
    for statement in statements:
        if isinstance(statement, cst.FunctionDef):
            if statement.name.value not in _UNCHANGED_FUNCTIONS:
                yield outer + statement.name.value, statement
        elif isinstance(statement, cst.ClassDef):
            yield from _functions(statement.body.body, f"{outer}{statement.name.value}.")


def _changeable(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield *node* and the changeable nodes below it."""
    match node:
        case cst.Annotation() | cst.Decorator() | cst.Assert() | cst.FormattedString():
            return
        case cst.BaseString() if _is_wording(node):
            return
        case cst.Expr(value=cst.Call(func=cst.Name(value="assert_never"))):
            return
    yield node
    for child in node.children:
        # The type of the raised error counts, but not its words.
        if not (isinstance(node, cst.Raise) and isinstance(child, cst.Call)):
            yield from _changeable(child)


def _is_wording(node: cst.BaseString) -> bool:
    """Return whether a text has several words, so that it is for people."""
    return isinstance(node, cst.ConcatenatedString) or (
        isinstance(node, cst.SimpleString) and " " in node.value
    )


def _changes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the replacements for *node*."""
    for kind, operator in _OPERATORS:
        if isinstance(node, kind):
            yield from (each for each in operator(node) if not _leaves_out_nothing(node, each))
    # Changes that mutmut has no operator for: an effect that is left out, and a condition without effect.
    match node:
        case cst.Expr(value=cst.Call()):
            yield cst.Pass()
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Attribute() | cst.Subscript())]):
            yield cst.Pass()
        case cst.If():
            for value in ("True", "False"):
                yield node.with_changes(test=cst.Name(value))


def _leaves_out_nothing(node: cst.CSTNode, changed: cst.CSTNode) -> bool:
    """Return whether a match has only lost the arm that mypy proves unreachable."""
    if not (isinstance(node, cst.Match) and isinstance(changed, cst.Match)):
        return False
    match node.cases[-1].body:
        case cst.IndentedBlock(
            body=[
                cst.SimpleStatementLine(body=[cst.Expr(value=cst.Call(func=cst.Name(value=name)))])
            ]
        ):
            return name == "assert_never" and changed.cases[-1] is not node.cases[-1]
    return False


def _lines(before: str, after: str) -> tuple[str, str]:
    """Return the lines that differ."""
    lines = list(unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
    removed = [line[1:].strip() for line in lines if line.startswith("-")]
    added = [line[1:].strip() for line in lines if line.startswith("+")]
    return "\n".join(removed), "\n".join(added)
