"""A TCP proxy that loses or holds requests and replies on demand."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

HOST = "127.0.0.1"

Fault = Literal["request", "reply"]


class Proxy:
    """Forwards connections to a port of this machine.

    `cut("request")` closes a connection in place of forwarding its next bytes to the server,
    `cut("reply")` in place of forwarding the next bytes to the client: the server has then done
    what it was asked. `is_refusing` closes new connections at once. `hold` keeps requests back
    until `resume`.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._open: set[socket.socket] = set()
        self.is_refusing = False
        self.cuts = 0
        """The number of cut connections."""
        self.accepted = 0
        """The number of forwarded connections."""
        self.is_holding_one = threading.Event()
        """Whether a request is kept back."""
        self._may_pass = threading.Event()
        self._may_pass.set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The store's URL through the proxy."""
        return f"redis://{HOST}:{self.port}"

    def cut(self, fault: Fault, times: int = 1) -> None:
        """Cut the next connection that carries a request, or a reply."""
        with self._lock:
            self._faults += [fault] * times

    def hold(self) -> None:
        """Keep back all requests from now on."""
        self._may_pass.clear()

    def resume(self) -> None:
        """Forward the requests that were kept back, and all that follow."""
        self._may_pass.set()

    def cut_all(self) -> None:
        """Close every connection now."""
        with self._lock:
            open_now = list(self._open)
        for one in open_now:
            _close(one)

    def _is_due(self, direction: Fault) -> bool:
        with self._lock:
            if self._faults and self._faults[0] == direction:
                self._faults.pop(0)
                self.cuts += 1
                return True
            return False

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.is_refusing:
                    client.close()
                    continue
                try:
                    server = socket.create_connection((HOST, self._target))
                except OSError:
                    client.close()
                    continue
                self.accepted += 1
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._open |= {client, server}
                ways: tuple[tuple[socket.socket, socket.socket, Fault], ...] = (
                    (client, server, "request"),
                    (server, client, "reply"),
                )
                for way in ways:
                    threading.Thread(target=self._forward, args=way, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, direction: Fault) -> None:
        with suppress(OSError):
            while (data := source.recv(65536)) and not self._is_due(direction):
                if direction == "request" and not self._may_pass.is_set():
                    self.is_holding_one.set()
                    self._may_pass.wait()
                target.sendall(data)
        for one in (source, target):
            _close(one)
        with self._lock:
            self._open -= {source, target}

    def close(self) -> None:
        """Close the listener and all connections."""
        # Wakes the thread that accepts, which closing alone does not.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.resume()
        self.cut_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
