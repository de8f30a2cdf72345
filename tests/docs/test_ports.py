"""The tutorial for a laptop names the ports that the processes of its example bind."""

import re
from pathlib import Path

from orderlymq_operator.local.directory import DataDirectory, State
from orderlymq_operator.local.processes import programs
from orderlymq_operator.resources.cluster.cluster import Local
from orderlymq_operator.resources.manifests.combination import combine
from orderlymq_operator.resources.manifests.reader import parse
from tests.docs.runners import ROOT

_PAGE = (ROOT / "docs/tutorials/laptop.md").read_text(encoding="utf-8")
_SECTION = _PAGE.partition("## Choose other ports")[2].partition("\n## ")[0]
_EXAMPLE = _SECTION.partition("```yaml\n")[2].partition("```")[0]


def test_the_table_of_ports_is_what_the_processes_bind(tmp_path: Path) -> None:
    """Law: the table of ports has each port of the example once, with its use."""
    desired = combine(parse(_EXAMPLE, "laptop.md"), None)
    bound: dict[str, set[int]] = {}
    for program in programs(DataDirectory(tmp_path), State(desired)):
        is_server = program.module == "orderlymq_nameserver"
        for port, purpose in program.ports:
            owner = "group" if purpose.startswith("clients") else "replica"
            use = f"{'name server' if is_server else owner}, {purpose}"
            bound.setdefault(use, set()).add(port)

    rows = re.findall(r"^\| ([^|`]+) \| `[^|]+ \| ([0-9, ]+) \|$", _SECTION, re.MULTILINE)
    assert {use: set(map(int, ports.split(", "))) for use, ports in rows} == bound


def test_the_defaults_of_the_example_are_those_of_the_code() -> None:
    """Law: the comments of the example name the default ports."""
    named = re.findall(r"(\w+Port): \d+ +# default (\d+)", _EXAMPLE)

    defaults = Local().model_dump(by_alias=True)
    assert len(named) == 4
    assert {name: int(port) for name, port in named} == {
        name: port for name, port in defaults.items() if name.endswith("Port")
    }
