"""One worker of the demonstration: serves the example app on an open socket.

`python -m flask_app.worker 3 1` is the worker number 1 on the socket with file descriptor 3.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from flask_app.app import app
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

if TYPE_CHECKING:
    from flask import Response


class _Quiet(WSGIRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Print nothing."""


def make(fd: int | None = None) -> BaseWSGIServer:
    """Create a server on a free port of the loopback interface, or on a socket that is open."""
    return make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet, fd=fd)


def main() -> None:
    """Serve until the process is terminated."""
    fd, number = sys.argv[1:]

    @app.after_request
    def name_worker(response: Response) -> Response:
        response.headers["X-Worker"] = number
        return response

    make(int(fd)).serve_forever()


if __name__ == "__main__":
    main()
