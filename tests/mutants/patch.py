"""
Plants a mutant in a running process: its function gets the changed code, wherever it was imported before.

The owner of the function, a class or a module, has the mutant from then on. Code that ran at the import of its module
ran without it.
"""

import sys
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tests.mutants.mutant import Mutant


class NotPlanted(Exception):  # noqa: N818 - named by what came of it
    """The changed module cannot be compiled or does not fit; says nothing about the tests."""


def plant(mutant: Mutant, root: Path) -> None:
    """Put the mutant into this process, for good.

    Raises:
        NotPlanted: It does not work as Python.
    """
    module = _loaded(root / mutant.path)
    scratch = ModuleType(module.__name__)
    scratch.__dict__.update(__file__=module.__file__, __package__=module.__package__)
    # The decorators of a dataclass look up their module.
    sys.modules[module.__name__] = scratch
    try:
        exec(compile(mutant.code(), str(module.__file__), "exec"), scratch.__dict__)
        changed = _function(scratch, mutant.function)
    except Exception as error:
        raise NotPlanted(f"{type(error).__name__}: {error}") from error
    finally:
        sys.modules[module.__name__] = module
    present = _function(module, mutant.function)
    if present.__code__.co_freevars != changed.__code__.co_freevars:
        raise NotPlanted("the change needs other variables from around the function")
    present.__code__ = changed.__code__
    present.__defaults__ = changed.__defaults__
    present.__kwdefaults__ = changed.__kwdefaults__


def _loaded(path: Path) -> ModuleType:
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path):
            return module
    raise NotPlanted(f"{path} was never imported")


def _function(module: ModuleType, name: str) -> FunctionType:
    found: Any = module
    for part in name.split("."):
        found = vars(found)[part]
    for wrapped in ("__func__", "fget", "func", "__wrapped__"):
        found = getattr(found, wrapped, found)
    if isinstance(found, partial) or not isinstance(found, FunctionType):
        raise NotPlanted(f"{name} is no function")
    return found
