"""
TLS: contexts that follow their files, and a listener that serves plain and TLS connections on one port.

Rules: the first byte decides (a TLS handshake begins with 0x16, a frame with the high byte of its length). A connection that
the policy does not allow is closed before anything is read. Certificates are read again when their files
change; if a file cannot be used, the present certificate stays effective. Only files say who is trusted:
without a CA file, a server asks for no client certificate and a client trusts any server.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias

from orderlymq_runtime.followedfiles import FollowedFiles
from orderlymq_runtime.process.supervisor import Supervisor
from orderlymq_runtime.sockets.inputbudget import InputBudget

_log = logging.getLogger(__name__)

TlsMode = Literal["disabled", "permissive", "enforcing"]
ClientAuth = Literal["none", "optional", "required"]
# Returns the context for the next handshake.
ContextSource: TypeAlias = Callable[[], ssl.SSLContext]

HANDSHAKE_BYTE: Final = b"\x16"
# The header of the record, then that of the handshake: type and length of the ClientHello.
_HELLO_HEAD_SIZE: Final = 9
_CLIENT_HELLO: Final = b"\x01"
# The largest ClientHello. OpenSSL would gather 128 KiB of one. Those of clients have some hundred bytes, with new key shares under 2 KiB.
HELLO_SIZE_MAX: Final = 16 << 10
# Memory under uvloop; 4 KiB were measured for a silent connection, and 79 KiB for a handshake with half a greeting.
SILENT_BYTES: Final = 8 << 10
HANDSHAKE_BYTES: Final = 128 << 10
HANDSHAKE_TIMEOUT_S: Final = 10.0
# A client may open a connection long before it sends something, as pools do.
SILENCE_MAX_S: Final = 120.0
# Connections that have not sent anything, or whose handshake is under way; beyond this the oldest is closed.
GREETINGS_MAX: Final = 1024
# Accepting pauses when the process has no file left, instead of spinning.
_PAUSE_S: Final = 0.1


class TlsError(ValueError):
    """Files or settings cannot be used; the text says which and what to do."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of key material, as PEM.

    Attributes:
        certificate: the process's own certificate and the chain to its CA; None for a client without one.
        key: its private key, without a passphrase.
        ca: certificates of the trusted authorities.
    """

    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def paths(self) -> list[Path]:
        """Return the paths that are set."""
        return [path for path in (self.certificate, self.key, self.ca) if path is not None]


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The TLS of one of our processes, from its settings file.

    Attributes:
        mode: disabled; permissive serves plain clients, too; enforcing serves none.
        client_auth: whether clients are asked for a certificate of the CA.
    """

    mode: TlsMode = "disabled"
    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    client_auth: ClientAuth = "none"

    @property
    def files(self) -> TlsFiles:
        """The paths of the key material."""
        return TlsFiles(self.certificate, self.key, self.ca)

    def server(self) -> "ServerTls | None":
        """Return the TLS of a server; None for a plain one.

        Raises:
            TlsError: A file cannot be used.
        """
        if self.mode == "disabled":
            return None
        return ServerTls(self.files, self.mode, self.client_auth)

    def between_peers(self) -> "PeerTls | None":
        """Return the TLS that the replicas of a raft group use with each other; None for plain connections.

        If a CA is named, both the caller and the called replica must show a certificate of it: a process that
        could join a group could write its log.

        Raises:
            TlsError: A file cannot be used.
        """
        if self.mode == "disabled":
            return None
        auth: ClientAuth = "none" if self.ca is None else "required"
        return PeerTls(ServerTls(self.files, self.mode, auth), self.files)

    def pages(self) -> "ServerTls | None":
        """Return the TLS of the HTTP pages; probes have no certificate, so none is asked for.

        Raises:
            TlsError: A file cannot be used.
        """
        return None if self.mode == "disabled" else ServerTls(self.files, self.mode)

    def peer_contexts(self) -> ContextSource | None:
        """Return the contexts with which our processes call each other: TLS if plain calls are refused, otherwise None.

        The host is not compared, because processes are called by address; they trust the CA.

        Raises:
            TlsError: A file cannot be used.
        """
        return following_client(self.files, verify_host=False) if self.mode == "enforcing" else None


@dataclass(frozen=True, slots=True)
class InternalTls:
    """Mutual TLS between the replicas of a cluster, whose own authority issues each a certificate with its name.

    Attributes:
        ca_file: the trusted authorities; several while one replaces the other.
        mode: permissive while some replicas have no certificate yet.
    """

    certificate_file: Path
    key_file: Path
    ca_file: Path
    mode: Literal["permissive", "enforcing"] = "enforcing"

    def between_peers(self) -> "PeerTls":
        """Return the TLS that the replicas of a raft group use with each other.

        Raises:
            TlsError: A file cannot be used.
        """
        files = TlsFiles(self.certificate_file, self.key_file, self.ca_file)
        return PeerTls(ServerTls(files, self.mode, "required"), files)


class _Following:
    """A context that is made again when a file has changed.

    Raises:
        TlsError: at the start, if a file cannot be used.
    """

    def __init__(self, files: TlsFiles, make: ContextSource) -> None:
        self._files = files
        self._make = make
        self._followed = FollowedFiles(
            *files.paths(), log=_log, stays="the previous certificate stays effective"
        )
        self._context = make()

    def context(self) -> ssl.SSLContext:
        """Return the context for the next handshake; the files are read again if one has changed."""
        fresh = self._followed.read_changed(self._make, TlsError)
        if fresh is not None:
            self._context = fresh
            _log.info(
                "certificate file %s was read again", self._files.certificate or self._files.ca
            )
        return self._context


class ServerTls(_Following):
    """The TLS side of a server: the policy, and the present context."""

    def __init__(self, files: TlsFiles, mode: TlsMode, client_auth: ClientAuth = "none") -> None:
        super().__init__(files, lambda: server_context(files, client_auth))
        self.mode = mode


class PeerTls(_Following):
    """Both sides of processes that call each other: *server* for accepted connections, contexts for calls.

    The host is not compared, because replicas are called by address; they trust the CA.
    """

    def __init__(self, server: ServerTls, files: TlsFiles) -> None:
        super().__init__(files, lambda: client_context(files, verify_host=False))
        self.server = server

    @property
    def is_enforced(self) -> bool:
        """Whether plain connections are refused, even with peers that speak nothing else."""
        return self.server.mode == "enforcing"


def server_context(files: TlsFiles, client_auth: ClientAuth = "none") -> ssl.SSLContext:
    """Return a context for accepted connections.

    Raises:
        TlsError: A file is missing or unusable, or clients are to be checked without a CA.
    """
    if files.certificate is None:
        raise TlsError("TLS needs a certificate and its key; name both files")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, files)
    if client_auth != "none":
        if files.ca is None:
            raise TlsError("client certificates can be checked only with a CA file; name it")
        context.verify_mode = ssl.CERT_REQUIRED if client_auth == "required" else ssl.CERT_OPTIONAL
    return context


def client_context(files: TlsFiles, *, verify_host: bool = True) -> ssl.SSLContext:
    """Return a context for connections to servers; without a CA file any server is trusted.

    Raises:
        TlsError: A file is missing or unusable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = verify_host and files.ca is not None
    context.verify_mode = ssl.CERT_NONE if files.ca is None else ssl.CERT_REQUIRED
    _load(context, files)
    return context


def checking_as_kubernetes(context: ssl.SSLContext) -> ssl.SSLContext:
    """Make *context* accept each API server certificate that Kubernetes' own clients accept; return it.

    From Python 3.13 on, contexts require key identifiers and key usages, which the authorities of many clusters lack.
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def following_client(files: TlsFiles, *, verify_host: bool = True) -> ContextSource:
    """Return a source of contexts like those of `client_context`, from the present files at each handshake.

    Raises:
        TlsError: A file is missing or unusable.
    """
    return _Following(files, lambda: client_context(files, verify_host=verify_host)).context


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if files.certificate is not None:
            context.load_cert_chain(files.certificate, files.key, password=lambda: "")
        if files.ca is not None:
            context.load_verify_locations(cafile=files.ca)
    except (OSError, ValueError) as error:
        raise TlsError(
            f"TLS: {files.certificate or files.ca} or a file that belongs to it cannot be used "
            f"({error}); name PEM files, and a key without a passphrase"
        ) from error


class SniffingListener:
    """Accepts on one socket and looks at the first byte before it decides.

    Args:
        make: returns the protocol of a connection.
        refused: receives the reason why a connection was closed before it was established.
        greetings_max: how many may be silent or in their handshake; the next one takes the place of the oldest.
        silence_max_s: how long the first byte may take.
        budget: the budget on which greetings draw; None if *greetings_max* is small enough.
        may_accept: asked for each connection before it costs anything.
    """

    def __init__(
        self,
        sock: socket.socket,
        tls: ServerTls,
        make: Callable[[], asyncio.BaseProtocol],
        refused: Callable[[str], None],
        *,
        greetings_max: int = GREETINGS_MAX,
        silence_max_s: float = SILENCE_MAX_S,
        budget: InputBudget | None = None,
        may_accept: Callable[[], bool] = lambda: True,
    ) -> None:
        self._budget = budget
        self._may_accept = may_accept
        self._greetings_max = greetings_max
        self._silence_max_s = silence_max_s
        self.sockets = (sock,)
        self._tls = tls
        self._make = make
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._supervisor = Supervisor()
        # Oldest first.
        self._greetings: dict[asyncio.Task[None], _Greeting] = {}
        self._accepting = self._supervisor.keep(
            "accept", partial(self._accept, sock), name="accept TLS or plain"
        )

    @property
    def greetings(self) -> int:
        """The number of accepted connections that are silent or in their handshake."""
        return len(self._greetings)

    def close(self) -> None:
        """Stop listening; connections that are silent or in their handshake are closed."""
        self._accepting.cancel()
        for greeting in self._greetings:
            greeting.cancel()
        self.sockets[0].close()

    def crowd_out(self) -> bool:
        """Close the oldest connection that is not established yet, to make room for a new one; return False if there is none."""
        if not self._greetings:
            return False
        oldest = next(iter(self._greetings))
        self._ended(oldest)
        oldest.cancel()
        self._refused(
            "the oldest connection that was not established yet, closed because there are too many"
        )
        return True

    async def _accept(self, sock: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(sock)
            except OSError as error:
                if sock.fileno() < 0:
                    return
                _log.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if not self._may_accept():
                accepted.close()
                await asyncio.sleep(0)
                continue
            holder = _Greeting(self._refused)
            greeting = self._supervisor.once("greet", self._greet(accepted, holder))
            holder.task = greeting
            self._greetings[greeting] = holder
            greeting.add_done_callback(self._ended)
            self._draw(holder, SILENT_BYTES, "silence")
            if len(self._greetings) > self._greetings_max:
                self.crowd_out()
            # This lets the task begin, so that its `finally` runs, and keeps a crowd of callers from occupying the loop.
            await asyncio.sleep(0)

    def _ended(self, greeting: "asyncio.Task[None]") -> None:
        holder = self._greetings.pop(greeting, None)
        if holder is not None and self._budget is not None:
            self._budget.release(holder)

    def _draw(self, holder: "_Greeting", size: int, use: str) -> None:
        if self._budget is not None:
            self._budget.hold(holder, size, use)

    async def _greet(self, accepted: socket.socket, holder: "_Greeting") -> None:
        handed_over = False
        try:
            async with asyncio.timeout(self._silence_max_s):
                first = await self._first_bytes(accepted)
            if not first:
                return
            is_tls = first[:1] == HANDSHAKE_BYTE
            if not is_tls and self._tls.mode == "enforcing":
                self._refused("a plain connection, but TLS is enforced")
                return
            is_hello = is_tls and first[5:6] == _CLIENT_HELLO
            if is_hello and (size := int.from_bytes(first[6:9])) > HELLO_SIZE_MAX:
                self._refused(f"the TLS greeting has {size} bytes, the limit is {HELLO_SIZE_MAX}")
                return
            context = self._tls.context() if is_tls else None
            if is_tls:
                self._draw(holder, HANDSHAKE_BYTES, "tls_handshake")
            handed_over = True
            await self._loop.connect_accepted_socket(
                self._make,
                accepted,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if is_tls else None,
            )
        except TimeoutError:
            self._refused("a connection on which nothing was sent")
        except (OSError, ssl.SSLError) as error:
            self._refused(f"a TLS handshake failed: {error}")
        finally:
            if not handed_over:
                accepted.close()

    async def _first_bytes(self, accepted: socket.socket) -> bytes:
        """Wait until enough bytes came to know the kind of connection, and look at them without taking them."""
        accepted.setblocking(False)
        # The socket is readable from this many bytes on, or at its end; a loop that waits for more would spin.
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _HELLO_HEAD_SIZE)
        found = _peek(accepted)
        if len(found) < _HELLO_HEAD_SIZE:
            readable: asyncio.Future[None] = self._loop.create_future()
            self._loop.add_reader(accepted, _resolve, readable)
            try:
                await readable
            finally:
                self._loop.remove_reader(accepted)
            found = _peek(accepted)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return found


class _Greeting:
    """A connection in its handshake, as a holder of the budget."""

    task: "asyncio.Task[None] | None" = None

    def __init__(self, refused: Callable[[str], None]) -> None:
        self._refused = refused

    def give_up(self, reason: str) -> None:
        """Close it, because the budget is full."""
        self._refused(reason)
        if self.task is not None:
            self.task.cancel()


def _peek(accepted: socket.socket) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return accepted.recv(_HELLO_HEAD_SIZE, socket.MSG_PEEK)
    return b""


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
