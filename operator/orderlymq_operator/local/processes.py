"""
The processes of a cluster on this machine: their names, ports, commands and settings files.

Pure, except for the functions that check ports. The settings are those of the broker and name server programs. The
ports follow from the manifest alone (`Local` in `resources.cluster`).
"""

import errno
import ipaddress
import json
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from orderlymq_operator.local.directory import DataDirectory, State
from orderlymq_operator.local.errors import RefusedError
from orderlymq_operator.plan.actions import Refuse
from orderlymq_operator.plan.settings import (
    address_setting,
    broker_options,
    http_scheme,
    name_server_options,
)
from orderlymq_operator.resources.cluster.cluster import VIP_DISTANCE, Cluster, Tls
from orderlymq_operator.resources.kinds import Desired
from orderlymq_protocol.names import OPERATOR_ACCOUNT
from orderlymq_runtime.security.tls import (
    ContextSource,
    TlsError,
    TlsFiles,
    following_client,
)
from orderlymq_runtime.sockets.addresses import join_address

# The second is for an address family that this machine does not have.
_NO_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass(frozen=True, slots=True)
class Program:
    """One process to keep: its module, its settings, and where it reports its state.

    Attributes:
        ports: the ports that it binds, or may bind when it leads, each with its purpose.
        http_port: port of /healthz and /status.
        scheme: http, or https if it serves nothing plain.
    """

    name: str
    module: str
    settings: str
    host: str
    http_port: int
    ports: tuple[tuple[int, str], ...]
    scheme: str = "http"

    @property
    def url(self) -> str:
        """The URL of its HTTP pages."""
        return f"{self.scheme}://{join_address(self.host, self.http_port)}"

    def command(self, directory: DataDirectory) -> list[str]:
        """Return the command line."""
        return [
            sys.executable,
            "-m",
            self.module,
            "--settings",
            str(directory.settings(self.name)),
        ]


def name_server_name(index: int) -> str:
    """Return the process name of name server *index*."""
    return f"name-server-{index}"


def replica_name(group: str, node: int) -> str:
    """Return the process name of a replica."""
    return f"{group}-{node}"


def group_index(group: str) -> int:
    """Return the index at the end of a raft group's broker name."""
    return int(group.rpartition("-")[2])


def name_server_program(cluster: Cluster, index: int, directory: DataDirectory) -> Program:
    """Return the program of name server *index*."""
    local = cluster.spec.local
    settings = {
        "listen": address_setting(local.host, local.name_server(index)),
        "http": address_setting(local.host, local.name_server_http(index)),
        "kv_path": str(directory.kv_file(index)),
        "cluster_secret_file": str(directory.cluster_secret),
        **name_server_options(cluster),
    }
    ports = (
        (local.name_server(index), "clients"),
        (local.name_server_http(index), "HTTP"),
    )
    return Program(
        name_server_name(index),
        "orderlymq_nameserver",
        json.dumps(settings, indent=1),
        local.host,
        local.name_server_http(index),
        ports,
        http_scheme(cluster),
    )


def replica_program(
    cluster: Cluster,
    group: str,
    node: int,
    directory: DataDirectory,
    *,
    nodes: Iterable[int],
    join: bool,
) -> Program:
    """Return the program of replica *node* of *group*, which knows the raft addresses of *nodes*."""
    local = cluster.spec.local
    index = group_index(group)
    name = replica_name(group, node)
    options = broker_options(cluster)
    settings: dict[str, Any] = {
        **options,
        # Needed even without access control: the operator signs its requests with this account.
        "access": {
            **options["access"],
            "operator_key": OPERATOR_ACCOUNT,
            "operator_secret_file": str(directory.operator_secret),
        },
        "cluster_secret_file": str(directory.cluster_secret),
        "group": group,
        "node_id": node,
        "peers": {
            str(peer): address_setting(local.host, local.raft(index, peer))
            for peer in sorted({*nodes, node})
        },
        "address": address_setting(local.host, local.broker(index)),
        "http": address_setting(local.host, local.http(index, node)),
        "data_dir": str(directory.replica(name)),
        "name_servers": [
            address_setting(local.host, local.name_server(server))
            for server in range(cluster.spec.name_servers.replicas)
        ],
        "bind": "leader",
        "join": join,
    }
    ports = (
        (local.broker(index), "clients"),
        (local.broker(index) - VIP_DISTANCE, "clients up to RocketMQ 4.4"),
        (local.raft(index, node), "raft"),
        (local.http(index, node), "HTTP"),
    )
    return Program(
        name,
        "orderlymq_broker",
        json.dumps(settings, indent=1),
        local.host,
        local.http(index, node),
        ports,
        http_scheme(cluster),
    )


def programs(directory: DataDirectory, state: State) -> list[Program]:
    """Return the programs of all processes that *state* asks for."""
    cluster = state.desired.cluster
    found = [
        name_server_program(cluster, index, directory)
        for index in range(cluster.spec.name_servers.replicas)
    ]
    wanted = range(1, cluster.spec.replicas_per_group + 1)
    for group in cluster.group_names:
        nodes = sorted({*wanted, *state.replicas.get(group, {})})
        found += [
            replica_program(cluster, group, node, directory, nodes=nodes, join=False)
            for node in nodes
        ]
    return found


def peer_contexts(cluster: Cluster) -> ContextSource | None:
    """Return the TLS contexts for calls to the processes of a settled *cluster*; None for plain calls.

    Raises:
        RefusedError: a file of spec.tls cannot be used.
    """
    if cluster.spec.tls.mode != "Enforcing":
        return None
    try:
        return tls_contexts(cluster.spec.tls)
    except TlsError as error:
        raise RefusedError(f"spec.tls: {error}") from error


def tls_contexts(tls: Tls) -> ContextSource:
    """Return the TLS contexts for calls to processes; the host name is not verified, as among the processes.

    Raises:
        TlsError: a file cannot be used.
    """
    paths = (tls.certificate_file, tls.key_file, tls.ca_file)
    files = TlsFiles(*(Path(path) if path else None for path in paths))
    return following_client(files, verify_host=False)


def group_address(cluster: Cluster, group: str) -> str:
    """Return the stable client address of *group*."""
    local = cluster.spec.local
    return join_address(local.host, local.broker(group_index(group)))


def name_server_address(cluster: Cluster, index: int) -> str:
    """Return the client address of name server *index*."""
    return join_address(cluster.spec.local.host, cluster.spec.local.name_server(index))


def refuse_taken_ports(programs: Iterable[Program]) -> None:
    """Check that every port is free.

    Raises:
        RefusedError: names all taken ports, and the processes that have them.
    """
    if taken := taken_ports(programs):
        raise RefusedError(
            f"{'; '.join(taken)}; stop it, or choose other ports in spec.local of the Cluster"
        )


def refuse_wildcard_host(cluster: Cluster) -> None:
    """Check that the host is an address to which clients can connect.

    Raises:
        RefusedError: the host stands for all addresses of a machine, or for none of this one.
    """
    host = cluster.spec.local.host
    address = ipaddress.ip_address(_socket_address(host, 0)[-1][0].partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    if (mapped or address).is_unspecified:
        raise RefusedError(
            f"{host!r} stands for all addresses of a machine, and clients on another machine would connect to themselves; "
            "write one address of this machine into spec.local.host, because it cannot be changed later"
        )


def taken_ports(programs: Iterable[Program], running: Iterable[Program] = ()) -> list[str]:
    """Return for each taken port its purpose and the process that has it; ports of *running* programs are skipped.

    Raises:
        RefusedError: the host is not an address of this machine.
    """
    taken = []
    seen = {(program.host, port) for program in running for port, _ in program.ports}
    for program in programs:
        for port, purpose in program.ports:
            if (program.host, port) in seen:
                continue  # each replica lists the address of its raft group
            seen.add((program.host, port))
            if why := _obstacle(program.host, port):
                taken.append(f"port {port} ({program.name}, {purpose}) {why}")
    return taken


def unusable_ports(directory: DataDirectory, state: State, desired: Desired) -> list[Refuse]:
    """Return a refusal if *desired* adds processes to the cluster of *state* whose ports are taken."""
    cluster = desired.cluster
    if cluster.spec.local != state.desired.cluster.spec.local:
        return []  # this change is refused elsewhere
    added = programs(directory, State(desired, state.replicas))
    try:
        taken = taken_ports(added, programs(directory, state))
    except RefusedError as error:
        taken = [str(error)]
    if not taken:
        return []
    advice = "stop the process that uses it and apply again, or leave spec.groups and replicas as they are: spec.local cannot be changed"
    return [Refuse("Cluster", cluster.metadata.name, "spec", "; ".join(taken), advice)]


def _obstacle(host: str, port: int) -> str:
    """Return why a port cannot be bound; empty if it can.

    Raises:
        RefusedError: the host is not an address of this machine.
    """
    family, kind, protocol, address = _socket_address(host, port)
    try:
        with socket.socket(family, kind, protocol) as probe:
            # As the programs do: a port that only closed connections still use is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        if error.errno in _NO_ADDRESS:
            raise _no_address(host, str(error.strerror)) from error
        if error.errno == errno.EADDRINUSE:
            return f"is used by {_owner(port)}"
        return f"cannot be bound ({error.strerror})"
    return ""


def _socket_address(
    host: str, port: int
) -> tuple[socket.AddressFamily, socket.SocketKind, int, tuple[Any, ...]]:
    """Return how a socket is bound to *host* and *port*.

    Raises:
        RefusedError: the host is not an address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except ValueError as error:  # a name with an empty or too long part, or forbidden characters
        raise _no_address(host, str(error)) from error
    except socket.gaierror as error:
        raise _no_address(host, str(error.strerror)) from error
    return family, kind, protocol, address


def _no_address(host: str, why: str) -> RefusedError:
    return RefusedError(
        f"{host!r} is not an address of this machine ({why}); correct spec.local.host"
    )


def _owner(port: int) -> str:
    """Return which process has *port*, as far as this user may see; prefer one that listens."""
    try:
        having = [
            each
            for each in psutil.net_connections(kind="tcp")
            if each.pid and each.laddr and each.laddr.port == port
        ]
        # If no process listens, an outgoing connection has the port: the system gives such ports to any process.
        for each in sorted(having, key=lambda each: each.status != psutil.CONN_LISTEN):
            return f"process {each.pid} ({psutil.Process(each.pid).name()})"
    except (psutil.Error, OSError, RuntimeError):  # it has ended, or there is no /proc
        return "an unknown process"
    return "a process of another user"
