"""
Limits the classes that pyiceberg loads by name to its own and those that the local configuration names.

A REST catalogue sends properties with its answers, and each writer of a table sets the table's properties. Some of
these name a class in any module, which pyiceberg imports and calls with values from the sender. The catalogue, and
every writer of the table, could therefore run a program in the driver. The limit applies to each process that has
opened a catalogue with `iceberg.open_catalog`.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pyiceberg import io
from pyiceberg.catalog.rest.auth import AuthManagerFactory
from pyiceberg.io import pyarrow
from pyiceberg.table import locations
from pyiceberg.utils.config import Config

from orderlymq_spark.errors import OptionError

# pyiceberg's functions that receive the name of a class; no setting bypasses them.
_LOADERS: Final[tuple[tuple[Any, str], ...]] = (
    (io, "_import_file_io"),
    (pyarrow, "_import_retry_strategy"),
    (locations, "_import_location_provider"),
    (AuthManagerFactory, "create"),
)
_OWN: Final = "pyiceberg."
_NAMES_CLASS: Final = "impl"
# The class names in any configuration of this process.
_named: set[str] = set()


def load_only_named_classes(properties: Mapping[str, object]) -> None:
    """Make pyiceberg load only its own classes and those that *properties* or its configuration name."""
    _named.update(_classes(properties), _classes(Config().config))
    for owner, name in _LOADERS:
        loader = getattr(owner, name)
        if not hasattr(loader, "__wrapped__"):
            setattr(owner, name, _checked(loader))


def _classes(properties: Mapping[Any, object]) -> Iterator[str]:
    for name, value in properties.items():
        if isinstance(value, Mapping):
            yield from _classes(value)
        elif str(name).endswith(_NAMES_CLASS):
            yield str(value)


def _checked(loader: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(loader)
    def load(named: str, *given: Any) -> Any:
        # A name without a dot is a keyword of pyiceberg.
        if "." in named and not named.startswith(_OWN) and named not in _named:
            raise OptionError(
                f"the catalogue or the table names the class {named}, which is not part of pyiceberg: name it in the properties "
                "of the catalogue here as well, or remove it there"
            )
        return loader(named, *given)

    return load
