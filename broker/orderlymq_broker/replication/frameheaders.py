"""The headers of frames between replicas that are not raft messages; ``frames.py`` cuts the frames."""

import msgspec


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of every connection: who calls, and whom it expects to reach."""

    version: int
    cluster: str
    group: str
    sender: int
    target: int
    purpose: str  # "raft" or "snapshot"
    host: str  # where the caller itself is reached by its peers
    port: int
    has_forgotten: bool = False  # the caller has lost its log and begins anew


class Forward(msgspec.Struct, frozen=True, array_like=True):
    """A frame of a client, handed to the leader; the frame itself is the payload.

    *connection* is the caller's own number of the client's connection; *host* and *port* are the
    client's, because locks and membership know a client by them.
    """

    connection: int
    host: str
    port: int


class ForwardedConnection(msgspec.Struct, frozen=True, array_like=True):
    """Names the client connection that a reply, or a close, is about."""

    connection: int
