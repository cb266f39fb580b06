"""A small shop. Its limits are in limits.yaml and overrides.yaml."""

from __future__ import annotations

from pathlib import Path

from flask import Flask, Response, jsonify, request

from penstock.flask import Penstock

HERE = Path(__file__).parent
PASSWORDS = {"ada": "correct horse"}

app = Flask(__name__)
# Options from the environment: FLASK_PENSTOCK_STORE=shm://shop for several worker processes.
app.config.from_prefixed_env()
limits = Penstock(
    app,
    limits=HERE / "limits.yaml",
    overrides=HERE / "overrides.yaml",
    # Trust X-Forwarded-For from a proxy on this machine. By default, it is ignored.
    trusted_proxies=["127.0.0.0/8", "::1"],
)


def failed(response: Response) -> bool:
    """Whether a login failed; only failed logins count."""
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
    """Log in. Successful logins are not counted."""
    if PASSWORDS.get(request.form["user"]) == request.form.get("password"):
        return jsonify(welcome=request.form["user"]), 200
    return jsonify(error="wrong user or password"), 401


@app.get("/search")
@limits.limit("60/hour, burst 30")
def search() -> Response:
    """Search. The limit is given as text, so it belongs to this view alone."""
    return jsonify(found=[], wanted=request.args.get("q", ""))
