"""The headers of frames between replicas that are not raft messages; ``frames.py`` splits the bytes into frames."""

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from orderlymq_broker.settings import HOST_LENGTH_MAX, PORT_MAX
from orderlymq_broker.settings import Host as PeerHost
from orderlymq_broker.settings import Port as PeerPort

NodeNumber: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]
# The host of a client, which may have no name.
Host: TypeAlias = Annotated[str, Meta(max_length=HOST_LENGTH_MAX)]
# The name of a cluster or a broker group.
Name: TypeAlias = Annotated[str, Meta(max_length=255)]
Port: TypeAlias = Annotated[int, Meta(ge=0, le=PORT_MAX)]
# Numbers of connections rise for as long as a process lives.
ConnectionNumber: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

NONCE_SIZE: Final = 32
PROOF_SIZE: Final = 32  # of SHA-256
PROCESS_SIZE: Final = 16
# A greeting of version 1 has no nonce. It is refused because of its version.
Nonce: TypeAlias = Annotated[bytes, Meta(max_length=NONCE_SIZE)]
Proof: TypeAlias = Annotated[bytes, Meta(min_length=PROOF_SIZE, max_length=PROOF_SIZE)]


# The purpose of a connection. A heartbeat, on the one for raft, never waits behind an entry or a client's
# message.
Purpose: TypeAlias = Literal["raft", "log", "clients", "snapshot"]


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of every connection: who calls, and which replica the caller expects."""

    version: int
    cluster: Name
    group: Name
    sender: NodeNumber
    target: int
    purpose: Purpose
    host: PeerHost  # the address at which peers reach the caller
    port: PeerPort
    is_recovering: bool = False  # the caller has lost its log and recovers
    nonce: Nonce = b""


class Challenge(msgspec.Struct, frozen=True, array_like=True):
    """The answer of the called replica: a nonce that the caller's proof must contain."""

    nonce: Annotated[bytes, Meta(min_length=NONCE_SIZE, max_length=NONCE_SIZE)]


class CallerProof(msgspec.Struct, frozen=True, array_like=True):
    """Proves that the greeting comes from a process of the cluster."""

    proof: Proof


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    """The called replica accepts the caller's proof, proves itself, and says whether it has lost its log.

    *process* is a number of the called process. Replicas of earlier versions send none, because they have no
    connection for the log. The proof does not cover it: it says nothing that later frames could not say.
    """

    is_recovering: bool
    proof: Proof
    process: Annotated[bytes, Meta(max_length=PROCESS_SIZE)] = b""


class Clock(msgspec.Struct, frozen=True, array_like=True):
    """The sender's time of day in ms since 1970, until the year 9999, and more about the sender.

    *hears* tells whether it hears the receiver on the connection that the receiver makes for the same
    purpose. *sticks_ms* is for how long at least the sender sticks to a leader that it hears. *takes_in* is
    the last entry of the state that it receives or installs; 0 if there is none. Replicas of earlier versions
    send neither of these two.
    """

    wall_ms: Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
    hears: bool
    sticks_ms: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    takes_in: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


class Forward(msgspec.Struct, frozen=True, array_like=True):
    """A frame of a client, forwarded to the leader; the frame itself is the payload.

    *connection* is the caller's own number of the client's connection. *host* and *port* are the client's,
    because locks and group membership identify a client by them. *listener* is the additional listener that
    accepted it; replicas of earlier versions do not send it.
    """

    connection: ConnectionNumber
    host: Host
    port: Port
    listener: Name = ""


class ForwardedConnection(msgspec.Struct, frozen=True, array_like=True):
    """Identifies the client connection of a reply or a close."""

    connection: ConnectionNumber
