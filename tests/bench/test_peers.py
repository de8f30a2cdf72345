"""The systems of the comparison: the code that each one runs, and its name on the page."""

import re

import pytest
from bench.bykey import OURS, title_of
from bench.fetch import LIBRARIES, PROGRAM
from bench.peers.catalogue import PEERS
from bench.peers.nodes import HERE
from bench.peers.ours import OrderlyMQCompiled
from bench.report.reach import OURS as COMPARED


def test_who_stands_for_us_in_a_class_runs_what_the_image_runs() -> None:
    """Ratios use this variant; run from the sources, it would be slower than what users get."""
    first = {durability: PEERS[names[0]] for durability, names in COMPARED.items()}

    assert {durability: peer.durability for durability, peer in first.items()} == {
        durability: durability for durability in first
    }
    assert all(issubclass(peer, OrderlyMQCompiled) for peer in first.values())
    assert all(peer.title.endswith("compiled as in the image") for peer in first.values())


def test_by_key_says_once_what_ours_runs() -> None:
    """The comparison by key starts processes with its own Python, regardless of the peer of that name."""
    assert [title_of(name).count("compiled") for name in OURS] == [1, 1]


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_jars_are_of_the_version_that_the_page_names(name: str) -> None:
    """Maven puts them into a folder for the version; a newer version is fetched and never mixed with older jars."""
    fetched = re.search(r"<peer.version>(.+)</peer.version>", (HERE / name / "pom.xml").read_text())

    assert fetched
    assert fetched[1] == PEERS[name].version()
    assert LIBRARIES[name] == HERE / name / "target" / f"lib-{fetched[1]}"


@pytest.mark.parametrize("name", [name for name in PEERS if not name.startswith("orderlymq")])
def test_the_client_is_of_the_version_that_the_page_names(name: str) -> None:
    """All clients are jars of the load program."""
    artifact, version = PEERS[name].client_version.split(" ")
    pom = (PROGRAM / "pom.xml").read_text()

    assert re.search(rf"<artifactId>{artifact}</artifactId>\s*<version>{re.escape(version)}<", pom)
