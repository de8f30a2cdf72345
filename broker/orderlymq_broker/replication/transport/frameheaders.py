"""The headers of frames between replicas that are not raft messages; ``frames.py`` cuts the frames."""

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from orderlymq_broker.settings import HOST_LENGTH_MAX, PORT_MAX
from orderlymq_broker.settings import Host as PeerHost
from orderlymq_broker.settings import Port as PeerPort

NodeNumber: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]
# A client's, which may have no name.
Host: TypeAlias = Annotated[str, Meta(max_length=HOST_LENGTH_MAX)]
# A cluster's or a group's.
Name: TypeAlias = Annotated[str, Meta(max_length=255)]
Port: TypeAlias = Annotated[int, Meta(ge=0, le=PORT_MAX)]
# Numbers of connections rise for as long as a process lives.
ConnectionNumber: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

NONCE_SIZE: Final = 32
PROOF_SIZE: Final = 32  # of SHA-256
PROCESS_SIZE: Final = 16
# A greeting of version 1 has no nonce, and is refused for its version.
Nonce: TypeAlias = Annotated[bytes, Meta(max_length=NONCE_SIZE)]
Proof: TypeAlias = Annotated[bytes, Meta(min_length=PROOF_SIZE, max_length=PROOF_SIZE)]


# What a connection is for. A heartbeat, on that for raft, waits behind no entry and behind no message of a client.
Purpose: TypeAlias = Literal["raft", "log", "clients", "snapshot"]


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of every connection: who calls, and whom it expects to reach."""

    version: int
    cluster: Name
    group: Name
    sender: NodeNumber
    target: int
    purpose: Purpose
    host: PeerHost  # where the caller itself is reached by its peers
    port: PeerPort
    is_recovering: bool = False  # the caller has lost its log and recovers
    nonce: Nonce = b""


class Challenge(msgspec.Struct, frozen=True, array_like=True):
    """The answer of the called side: the challenge that the caller's proof must contain."""

    nonce: Annotated[bytes, Meta(min_length=NONCE_SIZE, max_length=NONCE_SIZE)]


class CallerProof(msgspec.Struct, frozen=True, array_like=True):
    """Proves that the greeting comes from a process of the cluster."""

    proof: Proof


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    """The called has believed the caller, proves itself, and says whether it has lost its log.

    *process* is a number of the called's process. Replicas of earlier versions send none: they know no connection for
    the log. The proof does not cover it: it says nothing that the frames behind the handshake could not say.
    """

    is_recovering: bool
    proof: Proof
    process: Annotated[bytes, Meta(max_length=PROCESS_SIZE)] = b""


class Clock(msgspec.Struct, frozen=True, array_like=True):
    """The sender's time of day in ms since 1970, until the year 9999, and whether it hears the receiver on the way back.

    *hears* is about the connection that the receiver makes for the same purpose. *sticks_ms* is how long the sender
    sticks to a leader that it hears, at least. *takes_in* is the entry up to which the state goes that it receives, or puts
    in the place of its own; 0 when there is none. Replicas of earlier versions send neither.
    """

    wall_ms: Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
    hears: bool
    sticks_ms: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    takes_in: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


class Forward(msgspec.Struct, frozen=True, array_like=True):
    """A frame of a client, handed to the leader; the frame itself is the payload.

    *connection* is the caller's own number of the client's connection; *host* and *port* are the
    client's, because locks and membership know a client by them. *listener* is the further listener that
    accepted it, and replicas of earlier versions do not send it.
    """

    connection: ConnectionNumber
    host: Host
    port: Port
    listener: Name = ""


class ForwardedConnection(msgspec.Struct, frozen=True, array_like=True):
    """Names the client connection that a reply, or a close, is about."""

    connection: ConnectionNumber
