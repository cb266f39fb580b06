"""Limits in FastAPI's dependencies, through its own test client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Response, WebSocket
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi_app import get, hello, limited
from guards import PEER, left
from starlette.testclient import TestClient

from penstock._web.identity import per_route
from penstock.asgi import PenstockMiddleware
from penstock.fastapi import MessageLimit, Messages, RateLimit, RequestRefused, install
from penstock.identity import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from conftest import MakeLimiter

    import penstock


@pytest.fixture
def app(limiter: penstock.Limiter) -> FastAPI:
    app = FastAPI()
    install(app, limiter)
    return app


async def account(_: Annotated[None, limited("PerUser", id=shared("ada"))]) -> str:
    return "ada"


# One route


def test_limits_are_decided_together_wherever_they_are(limiter: penstock.Limiter) -> None:
    app = FastAPI(dependencies=[limited("Large", id=shared("all"))])
    install(app, limiter)

    @app.get("/", dependencies=[limited("PerAddress")])
    async def view(name: Annotated[str, Depends(account)]) -> str:
        return name

    first = get(app)
    assert first.json() == "ada"
    assert (
        first.headers["ratelimit"] == '"Large";r=99;t=1, "PerAddress";r=1;t=30, "PerUser";r=4;t=720'
    )
    assert get(app).status_code == 200
    assert get(app).status_code == 429
    # All or nothing: a refusal by the last limit spends nothing of the first.
    assert (left(limiter, "Large", "all"), left(limiter, "PerUser", "ada")) == (98, 3)


def test_repeated_limit_counts_once(app: FastAPI, limiter: penstock.Limiter) -> None:
    same = RateLimit("PerAddress")
    fresh = Depends(same, use_cache=False)
    app.get("/", dependencies=[Depends(same), fresh, limited("PerAddress")])(hello)
    assert get(app).headers["ratelimit"] == '"PerAddress";r=1;t=30'
    assert left(limiter) == 1


def test_routers_limit_their_routes_and_those_of_routers_inside(
    app: FastAPI, limiter: penstock.Limiter
) -> None:
    inner = APIRouter(prefix="/inner", dependencies=[limited("PerUser", id=shared("ada"))])
    inner.get("/{number}", dependencies=[limited("PerAddress")])(hello)
    outer = APIRouter(prefix="/outer", dependencies=[limited("Large", id=shared("all"))])
    outer.get("/")(hello)
    outer.include_router(inner)
    app.include_router(outer, dependencies=[limited("Other", id=shared("all"))])
    assert (
        get(app, "/outer/inner/7").headers["ratelimit"]
        == '"Other";r=8;t=7, "Large";r=99;t=1, "PerUser";r=4;t=720, "PerAddress";r=1;t=30'
    )
    assert get(app, "/outer/").headers["ratelimit"] == '"Other";r=7;t=7, "Large";r=98;t=1'
    get(app, "/outer/inner/8")
    assert get(app, "/outer/inner/9").status_code == 429
    assert (left(limiter, "Large", "all"), left(limiter, "Other", "all")) == (97, 6)


def test_mounted_application_is_limited_by_the_one_around_it(app: FastAPI) -> None:
    inside = FastAPI()
    inside.get("/", dependencies=[limited("PerAddress")])(hello)
    app.mount("/inside", inside)
    first, _, refused = (get(app, "/inside/") for _ in range(3))
    assert first.headers["ratelimit"] == '"PerAddress";r=1;t=30'
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "30")
    assert refused.headers.get_list("ratelimit") == ['"PerAddress";r=0;t=30']
    # It has no handler of penstock, and responds as to any HTTP error.
    assert PEER in refused.json()["detail"]


def test_mounted_application_can_have_its_own_limits(
    app: FastAPI, make_limiter: MakeLimiter
) -> None:
    inside = FastAPI()
    install(inside, make_limiter({"Inside": "1/minute"}))
    inside.get("/", dependencies=[limited("Inside")])(hello)
    app.mount("/inside", inside)
    first, refused = (get(app, "/inside/") for _ in range(2))
    assert first.headers["ratelimit"] == '"Inside";r=0;t=60'
    assert refused.headers["content-type"] == "application/problem+json"


# Texts


async def search() -> str:
    return "found"


def test_text_belongs_to_the_route(app: FastAPI, limiter: penstock.Limiter) -> None:
    router = APIRouter(dependencies=[limited("3/minute")])
    router.get("/hello")(hello)
    router.get("/search", dependencies=[limited("7/minute")])(search)
    app.include_router(router)
    assert get(app, "/hello").headers["ratelimit"] == '"hello";r=2;t=20'
    assert get(app, "/search").headers["ratelimit"] == '"search";r=2;t=20, "search-2";r=6;t=9'
    assert "search-2" in limiter.limits


def test_text_on_an_endpoint_with_two_paths_counts_each(app: FastAPI) -> None:
    router = APIRouter()
    router.get("/search", dependencies=[limited("1/minute")])(search)
    for prefix in ("/v1", "/v2"):
        app.include_router(router, prefix=prefix)
    first, second = get(app, "/v1/search"), get(app, "/v2/search")
    assert first.headers["ratelimit"] == '"search";r=0;t=60'
    assert second.headers["ratelimit"] == '"search /v2/search";r=0;t=60'
    assert get(app, "/v1/search").status_code == 429


def test_text_with_a_scope_is_shared(app: FastAPI) -> None:
    router = APIRouter(dependencies=[limited("3/minute", scope="shop")])
    router.get("/hello")(hello)
    router.get("/search")(search)
    app.include_router(router)
    assert get(app, "/hello").headers["ratelimit"] == '"shop";r=2;t=20'
    assert get(app, "/search").headers["ratelimit"] == '"shop";r=1;t=20'


# All kinds of responses


class Broken(Exception):
    """Raised by a view and handled by the application."""


@pytest.mark.parametrize(
    ("path", "status"), [("/value", 200), ("/value?number=many", 422), ("/handled", 418)]
)
def test_every_response_has_headers(app: FastAPI, path: str, status: int) -> None:
    @app.get("/{how}", dependencies=[limited("Large", id=shared("all"))])
    async def view(how: str, response: Response, number: int = 0) -> str:
        response.headers["X-Mine"] = f"{number}"
        if how == "handled":
            raise Broken
        return how

    @app.exception_handler(Broken)
    async def teapot(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({}, 418)

    answer = get(app, path)
    assert answer.status_code == status
    assert answer.headers.get_list("ratelimit") == ['"Large";r=99;t=1']


# Ids and costs


def test_callables_take_the_request_or_nothing_and_can_be_awaited(
    app: FastAPI, limiter: penstock.Limiter
) -> None:
    async def who(request: Request) -> str:
        return str(request.path_params["name"])

    def price(request: Request) -> int:
        return int(request.query_params["pages"])

    async def is_free() -> bool:
        return False

    options = {"id": who, "cost": price, "exempt_when": is_free}
    app.get("/{name}", dependencies=[limited("PerUser", **options)])(hello)
    assert get(app, "/ada?pages=3").status_code == 200
    assert left(limiter, "PerUser", "ada") == 2
    assert get(app, "/ada?pages=3").status_code == 429
    assert get(app, "/ada?pages=2").status_code == 200
    # A cost above the burst is a bad request.
    assert get(app, "/ada?pages=6").status_code == 400


def test_route_is_known_with_all_its_prefixes(app: FastAPI, limiter: penstock.Limiter) -> None:
    everywhere = limited("PerUser", id=per_route(shared("all")))
    inner = APIRouter(prefix="/shop", dependencies=[everywhere])
    inner.get("/orders/{number}")(hello)
    app.include_router(inner, prefix="/v1")
    assert get(app, "/v1/shop/orders/7").status_code == 200
    assert left(limiter, "PerUser", "/v1/shop/orders/{number} all") == 4


@pytest.mark.parametrize("installs", [True, False])
def test_route_is_known_with_the_path_of_its_mounted_application(
    app: FastAPI, limiter: penstock.Limiter, *, installs: bool
) -> None:
    for path in ("/one", "/two", "/tenants/{tenant}"):
        inside = FastAPI()
        if installs:
            install(inside, limiter)
        inside.get("/orders", dependencies=[limited("PerUser", id=per_route(shared("all")))])(hello)
        around = FastAPI()
        around.mount("/v1", inside)
        app.mount(path, around)
    for path in ("/one", "/one", "/two", "/tenants/acme", "/tenants/other"):
        assert get(app, f"{path}/v1/orders").status_code == 200
    routes = ("/one", "/two", "/tenants/{tenant}")
    ids = [f"{route}/v1/orders all" for route in routes]
    assert [left(limiter, "PerUser", id) for id in ids] == [3, 4, 3]


def test_text_counts_each_mounted_application(app: FastAPI) -> None:
    for path in ("/one", "/two"):
        inside = FastAPI()
        inside.get("/search", dependencies=[limited("1/minute")])(search)
        app.mount(path, inside)
    assert get(app, "/one/search").headers["ratelimit"] == '"search";r=0;t=60'
    assert get(app, "/two/search").headers["ratelimit"] == '"search /two/search";r=0;t=60'
    assert get(app, "/one/search").status_code == 429


# Refusals


def test_application_can_handle_a_refusal(limiter: penstock.Limiter) -> None:
    async def wait(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestRefused)
        return JSONResponse({"wait": error.outcome.retry_after}, 429, headers=error.headers)

    async def plain(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"plain": True}, 429)

    before = FastAPI(exception_handlers={RequestRefused: wait})
    install(before, limiter)
    after = FastAPI()
    install(after, limiter)
    after.add_exception_handler(429, plain)
    for app, body in ((before, {"wait": 30}), (after, {"plain": True})):
        limiter.reset("PerAddress", PEER)
        app.get("/", dependencies=[limited("PerAddress")])(hello)
        *_, refused = (get(app) for _ in range(3))
        assert refused.json() == body
        # Once, whether the handler copied them or not.
        assert refused.headers.get_list("retry-after") == ["30"]
        assert refused.headers.get_list("ratelimit") == ['"PerAddress";r=0;t=30']


def test_middleware_outside_joins_the_routes_limits(
    app: FastAPI, limiter: penstock.Limiter
) -> None:
    app.get("/", dependencies=[limited("PerAddress")])(hello)
    app.add_middleware(PenstockMiddleware, limiter, limit="Large")
    assert get(app).headers.get_list("ratelimit") == ['"Large";r=99;t=1, "PerAddress";r=1;t=30']


# Tests of users


def test_limit_can_be_replaced(app: FastAPI, limiter: penstock.Limiter) -> None:
    per_address = RateLimit("PerAddress")
    app.get("/", dependencies=[Depends(per_address), limited("PerUser", id=shared("ada"))])(hello)
    app.dependency_overrides[per_address] = lambda: None
    assert get(app).headers["ratelimit"] == '"PerUser";r=4;t=720'
    app.dependency_overrides[per_address] = RateLimit("Other")
    assert get(app).headers["ratelimit"] == '"Other";r=8;t=7, "PerUser";r=3;t=720'
    app.dependency_overrides.clear()
    assert get(app).headers["ratelimit"] == '"PerAddress";r=1;t=30, "PerUser";r=2;t=720'


# WebSockets


@pytest.fixture
def chat(app: FastAPI) -> FastAPI:
    router = APIRouter(dependencies=[limited("PerAddress")])

    @router.websocket("/chat/{room}")
    async def chat(
        websocket: WebSocket,
        messages: Annotated[Messages, Depends(MessageLimit("Other", id=room, cost=price))],
    ) -> None:
        await websocket.accept()
        async for _ in websocket.iter_text():
            refused = await messages.ask()
            await websocket.send_json(None if refused is None else refused.retry_after)

    app.include_router(router)
    return app


def room(websocket: WebSocket) -> str:
    return str(websocket.path_params["room"])


async def price() -> int:
    return 3


def connect(app: FastAPI, path: str = "/chat/tea") -> Any:
    return TestClient(app, client=(PEER, 50000)).websocket_connect(path)


def test_messages_of_a_websocket_are_limited(
    chat: FastAPI, clock: penstock.ManualClock, limiter: penstock.Limiter
) -> None:
    with connect(chat) as websocket:

        def say() -> Any:
            websocket.send_text("")
            return websocket.receive_json()

        assert [say() for _ in range(4)] == [None, None, None, 20]
        clock.advance(20)
        assert say() is None
    assert left(limiter, "Other", "tea") == 0
    with connect(chat, "/chat/bread") as websocket:
        assert say() is None


def test_unhandled_error_has_headers_of_the_outermost_middleware(
    limiter: penstock.Limiter,
) -> None:
    app = FastAPI()
    guard = install(app, limiter)

    @app.get("/", dependencies=[Depends(RateLimit("Large"))])
    async def fail() -> None:
        raise LookupError

    outermost = PenstockMiddleware(app, guard)
    client = TestClient(outermost, client=(PEER, 50000), raise_server_exceptions=False)
    answer = client.get("/")
    assert answer.status_code == 500
    assert answer.headers.get_list("ratelimit") == ['"Large";r=99;t=1']


# Around the route


@pytest.mark.parametrize("is_included", [False, True])
def test_refused_request_is_refused_before_its_body_is_read(
    app: FastAPI, limiter: penstock.Limiter, *, is_included: bool
) -> None:
    router = APIRouter() if is_included else app

    @router.post("/", dependencies=[limited("PerAddress")])
    async def create(body: dict[str, int]) -> dict[str, int]:
        return body

    if isinstance(router, APIRouter):
        app.include_router(router)
    client = TestClient(app, client=(PEER, 50000))
    # A body that is not JSON counts, and is an error only as long as the client may send one.
    answers = [client.post("/", content=b"{").status_code for _ in range(3)]
    assert answers == [422, 422, 429]
    assert left(limiter) == 0


def test_what_comes_before_the_limit_prepares_its_id(app: FastAPI) -> None:
    async def authenticate(request: Request) -> None:
        request.state.account = request.headers["authorization"]

    def account(request: Request) -> str:
        return str(request.state.account)

    depends = [Depends(authenticate), limited("PerAddress", id=account)]
    app.get("/", dependencies=depends)(hello)
    client = TestClient(app)
    answers = [client.get("/", headers={"authorization": x}).status_code for x in "aaab"]
    assert answers == [200, 200, 429, 200]


def test_route_class_of_the_application_runs_before_the_limit(app: FastAPI) -> None:
    class Prepared(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def prepare(request: Request) -> Response:
                request.state.account = "ada"
                return await handle(request)

            return prepare

    def account(request: Request) -> str:
        return str(request.state.account)

    app.router.route_class = Prepared
    app.get("/", dependencies=[limited("PerAddress", id=account)])(hello)
    assert [get(app).status_code for _ in range(3)] == [200, 200, 429]


def test_limit_is_replaced_after_requests_were_served(app: FastAPI) -> None:
    limit = RateLimit("PerAddress")
    app.get("/", dependencies=[Depends(limit)])(hello)
    assert [get(app).status_code for _ in range(3)] == [200, 200, 429]
    replacements = []
    app.dependency_overrides[limit] = lambda: replacements.append(1)
    assert get(app).status_code == 200
    assert replacements == [1]
    app.dependency_overrides.clear()
    assert get(app).status_code == 429
