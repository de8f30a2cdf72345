import os
import socket
from pathlib import Path

import psutil
import pytest

from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.local.errors import RefusedError
from orderlymq_operator.local.processes import (
    _owner,
    group_address,
    name_server_program,
    refuse_taken_ports,
    refuse_wildcard_host,
    replica_program,
)
from orderlymq_operator.local.session import prepared
from orderlymq_operator.resources.manifests.reader import parse
from tests.operator.examples import cluster


def test_names_and_addresses_are_what_people_see(tmp_path: Path) -> None:
    """Law: logs, settings and data have the name of their process."""
    directory = DataDirectory(tmp_path)
    program = replica_program(
        cluster(groups=2), "demo-1", 3, directory, nodes=[1, 2, 3], join=False
    )

    assert (program.name, program.url) == ("demo-1-3", "http://127.0.0.1:13923")
    assert group_address(cluster(groups=2), "demo-1") == "127.0.0.1:10921"
    assert program.command(directory)[1:] == [
        "-m",
        "orderlymq_broker",
        "--settings",
        str(tmp_path / "settings" / "demo-1-3.json"),
    ]


def test_a_taken_port_names_the_port_its_use_and_its_owner(tmp_path: Path, ports: int) -> None:
    """Law: a taken port is refused with its use and the process that has it."""
    spec = {"nameServerPort": ports, "brokerPort": ports + 12, "raftPort": ports + 20}
    wanted = cluster(local={**spec, "httpPort": ports + 40})
    program = name_server_program(wanted, 0, DataDirectory(tmp_path))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", ports))
        other.listen(1)
        with pytest.raises(RefusedError) as caught:
            refuse_taken_ports([program])

        with socket.create_connection(("127.0.0.1", ports)) as client:
            assert (
                _owner(client.getsockname()[1])
                == f"process {os.getpid()} ({psutil.Process().name()})"
            )

    text = str(caught.value)
    assert f"port {ports} (name-server-0, clients) is used by process {os.getpid()} (" in text
    assert "spec.local" in text
    refuse_taken_ports([program])


@pytest.mark.parametrize(
    "host", ["no-such-host.invalid", "a..b", ".", f"{'a' * 64}.b", "a\0b", "a b", "\xad"]
)
def test_a_host_that_is_not_this_machine_is_refused(tmp_path: Path, host: str) -> None:
    """Law: a host that is no address of this machine is refused; the manifest of another machine may have been copied."""
    wanted = cluster(local={"host": host})

    with pytest.raises(RefusedError, match=r"correct spec\.local\.host"):
        refuse_taken_ports([name_server_program(wanted, 0, DataDirectory(tmp_path))])


def test_an_address_of_another_machine_is_no_taken_port(tmp_path: Path) -> None:
    """Law: an address of another machine is not reported as a taken port."""
    wanted = cluster(local={"host": "192.0.2.1"})

    with pytest.raises(RefusedError, match=r"not an address of this machine.*spec\.local\.host"):
        refuse_taken_ports([name_server_program(wanted, 0, DataDirectory(tmp_path))])


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "0", "0x0", "00.0", "::", "::0", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0"]
)
def test_a_host_that_stands_for_every_address_is_refused(tmp_path: Path, host: str) -> None:
    """Law: a new cluster never gives clients a wildcard address, however it is written."""
    directory = DataDirectory(tmp_path / "data")
    (manifest,) = parse(
        f"""
apiVersion: orderlymq.io/v1alpha1
kind: Cluster
metadata: {{name: demo}}
spec: {{local: {{host: "{host}"}}}}
""",
        "test.yaml",
    )

    with (
        pytest.raises(RefusedError, match=r"all addresses.*one address.*spec\.local\.host"),
        prepared(directory, [manifest]),
    ):
        pass

    assert not directory.path.exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_host_of_this_machine_is_no_wildcard(host: str) -> None:
    """Law: an address to which clients can connect is not refused."""
    refuse_wildcard_host(cluster(local={"host": host}))
