"""The faults do what they say: cuts cut, slow links are slow, power loss loses, full disks are full."""

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """Return what was seen when each fault was tried."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.nemesis.trial"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def part(seen: dict[str, Any], name: str) -> dict[str, Any]:
    if not seen.get(name):
        pytest.skip(f"this machine cannot break its {name} (root or user namespaces are needed)")
    found: dict[str, Any] = seen[name]
    return found


def test_a_cut_drops_and_heals(seen: dict[str, Any]) -> None:
    """A packet from one to the other vanishes without an error, until the cut is healed."""
    network = part(seen, "network")

    assert (network["open"], network["cut"], network["healed"]) == ("node 1", "nothing", "node 1")


def test_a_slow_link_takes_its_time_and_a_lossy_one_loses(seen: dict[str, Any]) -> None:
    """100 ms each way: connecting and an answer take 300 ms at least; a link that loses all carries nothing."""
    network = part(seen, "network")

    assert network["slow"] == "node 1"
    assert network["slow_s"] > 0.29
    assert (network["lossy"], network["direct again"]) == ("nothing", "node 1")


def test_the_clients_address_leads_where_it_is_pointed(seen: dict[str, Any]) -> None:
    """One address for clients, as a Service is; the next connection goes to the new leader."""
    network = part(seen, "network")

    assert (network["service at 1"], network["service at 2"]) == ("node 1", "node 2")


def test_power_loss_keeps_what_was_synced_and_nothing_else(seen: dict[str, Any]) -> None:
    """A file that was synced is there, one that was only written is not."""
    disk = part(seen, "disk")

    assert (disk["synced"], disk["unsynced"]) == ("kept", "")


def test_a_full_disk_is_full(seen: dict[str, Any]) -> None:
    """ENOSPC while it is filled, room afterwards."""
    disk = part(seen, "disk")

    assert (disk["full"], disk["empty"]) == ("No space left on device", "fine")


def test_a_disk_that_was_emptied_while_its_power_was_off_is_empty(seen: dict[str, Any]) -> None:
    """The copy that is mounted was taken while the disk was full; it does not stay full for ever."""
    assert part(seen, "disk")["emptied while without power"] == "fine"


def test_io_errors_hit_the_data_and_nothing_else(seen: dict[str, Any]) -> None:
    """EIO below the data directory while switched on; other files and other times are fine."""
    errors = part(seen, "io errors")

    assert errors["broken"] == "OSError: [Errno 5] Input/output error"
    assert (errors["before"], errors["elsewhere"], errors["after"]) == ("fine", "fine", "fine")
