"""
Which classes pyiceberg makes objects of by their names: its own, and those that the configuration here names.

A REST catalogue sends properties with its answers, and each writer of a table sets its properties. Some of these name a class of any
module, which pyiceberg imports and calls with what it was sent. So the catalogue, and every writer of the table, could run a program in
the driver. The rule holds in each process that has opened a catalogue by `iceberg.open_catalog`.
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

# What gets the name of a class, and where: places of pyiceberg's that no setting leads around.
_LOADERS: Final[tuple[tuple[Any, str], ...]] = (
    (io, "_import_file_io"),
    (pyarrow, "_import_retry_strategy"),
    (locations, "_import_location_provider"),
    (AuthManagerFactory, "create"),
)
_OWN: Final = "pyiceberg."
_NAMES_CLASS: Final = "impl"
# By name of the class: what any configuration of this process names.
_named: set[str] = set()


def load_only_named_classes(properties: Mapping[str, object]) -> None:
    """Let pyiceberg load its own classes and those that *properties* or its configuration name, and no others."""
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
        # Without a dot it is a word that pyiceberg knows.
        if "." in named and not named.startswith(_OWN) and named not in _named:
            raise OptionError(
                f"the catalogue or the table names the class {named}, which is not pyiceberg's own: name it in the properties of the "
                "catalogue here, too, or take it out there"
            )
        return loader(named, *given)

    return load
