"""A small shop. Its limits are in limits.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, WebSocket
from pydantic import BaseModel
from starlette.config import Config

from penstock.fastapi import MessageLimit, Messages, RateLimit, install

if TYPE_CHECKING:
    from penstock.asgi import Response

HERE = Path(__file__).parent
PASSWORDS = {"ada": "correct horse"}

app = FastAPI(title="A small shop")
install(
    app,
    limits=HERE / "limits.yaml",
    # From the environment: SHOP_STORE=shm://shop for several worker processes, or the URL of a
    # Redis server for several machines.
    store=Config()("SHOP_STORE", default="memory://"),
    # Trust X-Forwarded-For from a proxy on this machine. By default, it is ignored.
    trusted_proxies=["127.0.0.0/8", "::1"],
)


class Credentials(BaseModel):
    """The submitted credentials."""

    user: str
    password: str


def user(credentials: Credentials) -> str:
    """Return the user name for the limit's id."""
    return credentials.user


def failed(response: Response) -> bool:
    """Whether a login failed; only failed logins count."""
    return response.status_code == 401  # noqa: PLR2004  Unauthorized


def pages(number: Annotated[int, Query(alias="pages", ge=1)] = 1) -> int:
    """Return the number of pages, which is the cost."""
    return number


# A router's limit is shared by all of its routes.
orders = APIRouter(prefix="/orders", dependencies=[Depends(RateLimit("OrdersPerAddress"))])


@orders.get("")
async def list_orders() -> dict[str, list[str]]:
    """List the orders."""
    return {"orders": ["tea", "bread"]}


@orders.get("/{number}", dependencies=[Depends(RateLimit("30/minute"))])
async def show_order(number: int) -> dict[str, int]:
    """Show one order. The second limit is given as text, so it belongs to this route alone."""
    return {"order": number}


app.include_router(orders)


@app.post(
    "/login",
    dependencies=[
        Depends(RateLimit("LoginsPerAddress", deduct_when=failed)),
        Depends(RateLimit("LoginsPerUser", id=Depends(user), deduct_when=failed)),
    ],
)
async def login(credentials: Credentials) -> dict[str, str]:
    """Log in. Successful logins are not counted."""
    if PASSWORDS.get(credentials.user) != credentials.password:
        raise HTTPException(401, "wrong user or password")
    return {"welcome": credentials.user}


@app.get("/export", dependencies=[Depends(RateLimit("PagesPerAddress", cost=Depends(pages)))])
async def export(number: Annotated[int, Depends(pages)]) -> dict[str, int]:
    """Export some pages."""
    return {"pages": number}


@app.websocket("/chat", dependencies=[Depends(RateLimit("ChatsPerAddress"))])
async def chat(
    websocket: WebSocket,
    messages: Annotated[Messages, Depends(MessageLimit("MessagesPerAddress"))],
) -> None:
    """Echo messages, up to the limit."""
    await websocket.accept()
    async for text in websocket.iter_text():
        refused = await messages.ask()
        answer = text if refused is None else f"slowly: {refused.retry_after} s"
        await websocket.send_text(answer)
