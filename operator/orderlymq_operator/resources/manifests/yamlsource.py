"""
YAML to plain data, with the line of every value.

Rule: the data has only the types of JSON (a date stays text), a key that occurs twice is an error, and an anchor
cannot make a small file huge. `manifests` checks the content. libyaml scans and Python composes, because libyaml's
own composer crashes the process if values are nested too deeply.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import yaml
from yaml.composer import Composer
from yaml.resolver import Resolver

if TYPE_CHECKING:
    _Scanner = Any
elif yaml.__with_libyaml__:
    from yaml.cyaml import CParser as _Scanner
else:
    _Scanner = None

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"
Path: TypeAlias = tuple[str | int, ...]

_VALUES_MAX: Final = 200_000  # in one document; expanded anchors must not exhaust the memory


class SourceError(ValueError):
    """The text is not YAML that can be read here; `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Source:
    """One document: its data and the line of each value by path."""

    data: Value
    lines: Mapping[Path, int]

    def line(self, path: Path) -> int:
        """Return the line of *path*, or of the nearest part of it that exists."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)


if _Scanner is not None:

    class _FastLoader(Composer, _Scanner, Resolver):  # type: ignore[misc] # there may be none
        """Composes documents from what libyaml has scanned."""

        def __init__(self, stream: str) -> None:
            _Scanner.__init__(self, stream)
            Composer.__init__(self)
            Resolver.__init__(self)


def documents(text: str) -> Iterator[Source]:
    """Yield the documents of *text*; empty ones are left out.

    Raises:
        SourceError: the text is not YAML, or has a value that JSON does not have.
    """
    try:
        yield from _scanned_fast(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise SourceError(mark.line + 1 if mark else 1, f"not valid YAML: {problem}") from error
    except yaml.YAMLError as error:
        raise SourceError(1, f"not valid YAML: {error}") from error
    except RecursionError as error:
        raise SourceError(1, "values are nested too deeply for a manifest") from error


def _scanned_fast(text: str) -> Iterator[Source]:
    """Yield the documents of *text*; if libyaml refuses the text, PyYAML's scanner continues.

    PyYAML's scanner reads escapes of JSON that libyaml does not read, and gives better errors. It takes seven times
    as long.
    """
    count = 0
    if _Scanner is not None:
        try:
            for source in _composed(text, _FastLoader):
                count += 1
                yield source
            return
        except (yaml.YAMLError, UnicodeEncodeError):  # half a surrogate pair: libyaml expects UTF-8
            pass
    yield from islice(_composed(text, yaml.SafeLoader), count, None)


def _composed(text: str, loader: Any) -> Iterator[Source]:
    for node in yaml.compose_all(text, Loader=loader):
        lines: dict[Path, int] = {}
        data = _convert(node, (), lines)
        if data is not None:
            yield Source(data, lines)


def _convert(node: yaml.Node, path: Path, lines: dict[Path, int]) -> Value:
    line = node.start_mark.line + 1
    # Keep the line of the key if it is already recorded, because people look for the key.
    lines.setdefault(path, line)
    if len(lines) > _VALUES_MAX:
        raise SourceError(line, f"more than {_VALUES_MAX} values in one document")

    match node:
        case yaml.ScalarNode():
            return _scalar(node, line)
        case yaml.SequenceNode():
            return [_convert(item, (*path, index), lines) for index, item in enumerate(node.value)]
        case yaml.MappingNode():
            return _mapping(node, path, lines)
    raise SourceError(line, f"cannot read a {node.tag}")


def _mapping(node: yaml.MappingNode, path: Path, lines: dict[Path, int]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
            raise SourceError(line, "a key must be plain text")
        key = _whole(key_node.value, line)
        if key in found:
            raise SourceError(line, f"the key `{key}` is given a second time here")
        lines[(*path, key)] = line
        found[key] = _convert(value_node, (*path, key), lines)
    return found


def _scalar(node: yaml.ScalarNode, line: int) -> Value:
    text: str = node.value
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    try:
        match kind:
            case "null":
                return None
            case "bool":
                return text.lower() in {"true", "yes", "on"}
            case "int":
                return int(text.replace("_", ""), 0)
            case "float":
                return float(text.replace("_", ""))
    except ValueError:
        # YAML 1.1 has numbers such as 0o7, 012 or 1:30 that no author of a manifest means.
        raise SourceError(
            line, f"write the number {text!r} in plain decimal, or quote it"
        ) from None
    return _whole(text, line)


def _whole(text: str, line: int) -> str:
    """Return *text* with surrogate pairs joined: PyYAML makes two halves of a character with two JSON escapes."""
    try:
        return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise SourceError(
            line, "an escape is half of a surrogate pair; write the other half, too"
        ) from None
