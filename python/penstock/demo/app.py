"""A small shop: what may be asked how often stands in limits.yaml beside it."""

from __future__ import annotations

from pathlib import Path

from flask import Flask, Response, jsonify, request

from penstock.flask import Penstock

HERE = Path(__file__).parent
PASSWORDS = {"ada": "correct horse"}

app = Flask(__name__)
limits = Penstock(
    app,
    limits=HERE / "limits.yaml",
    overrides=HERE / "overrides.yaml",
    # A proxy on this machine says who asks. Without this line, X-Forwarded-For is not believed.
    trusted_proxies=["127.0.0.0/8", "::1"],
)


def failed(response: Response) -> bool:
    """Whether a log-in failed: only such count."""
    return response.status_code == 401  # noqa: PLR2004  Unauthorized


@app.get("/orders")
@limits.limit("OrdersPerAddress")
def orders() -> Response:
    """List the orders."""
    return jsonify(orders=["tea", "bread"])


@app.post("/login")
@limits.limit("LoginsPerAddress", deduct_when=failed)
@limits.limit("LoginsPerUser", id=lambda: request.form["user"], deduct_when=failed)
def login() -> tuple[Response, int]:
    """Log in; the right password is never refused for having been right often."""
    if PASSWORDS.get(request.form["user"]) == request.form.get("password"):
        return jsonify(welcome=request.form["user"]), 200
    return jsonify(error="wrong user or password"), 401


@app.get("/search")
@limits.limit("30/minute")
def search() -> Response:
    """Search; this limit has no name but the view's, and belongs to it alone."""
    return jsonify(found=[], wanted=request.args.get("q", ""))
