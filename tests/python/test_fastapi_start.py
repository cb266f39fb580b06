"""Errors at startup, and the OpenAPI document."""

from __future__ import annotations

import gc
import weakref
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, WebSocket
from fastapi_app import hello
from guards import PEER
from starlette.testclient import TestClient

import penstock
from penstock._web.guard import Guard
from penstock.fastapi import MessageLimit, RateLimit, install, rate_limited_responses
from penstock.identity import shared

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


UNKNOWN = "'PerAdress'.*'PerAddress'"


async def echo(websocket: WebSocket) -> None:
    await websocket.accept()


def on_route(app: FastAPI, wrong: Any) -> None:
    app.get("/", dependencies=[Depends(wrong)])(hello)


def on_router(app: FastAPI, wrong: Any) -> None:
    inner = APIRouter()
    inner.get("/")(hello)
    outer = APIRouter()
    outer.include_router(inner, dependencies=[Depends(wrong)])
    app.include_router(outer, prefix="/v1")


def on_websocket(app: FastAPI, wrong: Any) -> None:
    router = APIRouter(dependencies=[Depends(wrong)])
    router.websocket("/chat")(echo)
    app.include_router(router)


def in_mounted_application(app: FastAPI, wrong: Any) -> None:
    inside = FastAPI()
    on_router(inside, wrong)
    app.mount("/inside", inside)


def below_another_dependency(app: FastAPI, wrong: Any) -> None:
    def account(_: None = Depends(wrong)) -> str:
        return "ada"

    app.get("/", dependencies=[Depends(account)])(hello)


PLACES = [on_route, on_router, on_websocket, in_mounted_application, below_another_dependency]


@pytest.mark.parametrize("wrong", [RateLimit("PerAdress"), MessageLimit("PerAdress")])
@pytest.mark.parametrize("place", PLACES)
def test_unknown_limit_is_found_by_install(
    limiter: penstock.Limiter, place: Callable[[FastAPI, Any], None], wrong: Any
) -> None:
    app = FastAPI()
    place(app, wrong)
    with pytest.raises(penstock.ConfigError, match=UNKNOWN):
        install(app, limiter)


@pytest.mark.parametrize("place", PLACES)
def test_limit_of_a_later_route_is_found_when_the_application_starts(
    limiter: penstock.Limiter, place: Callable[[FastAPI, Any], None]
) -> None:
    app = FastAPI()
    install(app, limiter)
    place(app, RateLimit("PerAdress"))
    with pytest.raises(penstock.ConfigError, match=UNKNOWN), TestClient(app):
        pass


def test_limit_of_a_later_route_is_found_by_whichever_request_comes_first(
    limiter: penstock.Limiter,
) -> None:
    app = FastAPI()
    install(app, limiter)
    app.get("/fine", dependencies=[Depends(RateLimit("PerAddress"))])(hello)
    on_route(app, RateLimit("PerAdress"))
    for _ in range(2):
        # A server that runs no lifespan, and another page.
        with pytest.raises(penstock.ConfigError, match=UNKNOWN):
            TestClient(app).get("/fine")


def test_route_added_while_the_application_runs_is_limited(limiter: penstock.Limiter) -> None:
    app = FastAPI()
    install(app, limiter)
    with TestClient(app, client=(PEER, 50000)) as client:
        assert client.get("/").status_code == 404
        on_route(app, RateLimit("PerAddress"))
        assert client.get("/").headers["ratelimit"] == '"PerAddress";r=1;t=30'


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (RateLimit, "limit"),
        (lambda: RateLimit(RateLimit), "limit"),  # type: ignore[arg-type]
        (
            lambda: FastAPI().get("/", dependencies=[RateLimit("A")])(hello),  # type: ignore[list-item]
            r"Depends\(",
        ),
        # As decorators, above and below that of the route.
        (lambda: FastAPI().get("/")(RateLimit("A")(hello)), r"Depends\("),  # type: ignore[type-var]
        (lambda: MessageLimit("PerAddress")(hello), "parameter"),
    ],
)
def test_invalid_option_is_an_error_where_it_is_written(
    wrong: Callable[[], Any], message: str
) -> None:
    with pytest.raises(penstock.ConfigError, match=message):
        wrong()


def test_error_of_a_missing_file_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(penstock.ConfigError, match=str(tmp_path / "limits.yaml")):
        install(FastAPI(), limits="limits.yaml")


def test_install_is_called_once(limiter: penstock.Limiter) -> None:
    app = FastAPI()
    guard = install(app, limiter)
    assert isinstance(guard, Guard)
    assert app.state.penstock is guard
    with pytest.raises(penstock.ConfigError, match="install"):
        install(app, limiter)


def test_install_in_the_lifespan_is_too_late() -> None:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        install(app, limits={"PerAddress": "1/minute"})
        yield

    with (
        pytest.raises(penstock.ConfigError, match="where the application is created"),
        TestClient(FastAPI(lifespan=lifespan)),
    ):
        raise AssertionError


def test_limit_without_install_is_an_error() -> None:
    app = FastAPI()
    on_route(app, RateLimit("PerAddress"))
    with pytest.raises(penstock.ConfigError, match=r"penstock\.fastapi\.install"):
        TestClient(app).get("/")


def test_lifespan_of_the_application_runs(limiter: penstock.Limiter) -> None:
    begun: list[str] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, int]]:
        begun.append("begun")
        yield {"pool": 1}
        begun.append("ended")

    app = FastAPI(lifespan=lifespan)
    install(app, limiter)
    with TestClient(app):
        assert begun == ["begun"]
    assert begun == ["begun", "ended"]


def test_application_is_garbage_collected(limiter: penstock.Limiter) -> None:
    per_address = RateLimit("PerAddress")

    def make() -> weakref.ref[FastAPI]:
        app = FastAPI()
        install(app, limiter)
        on_route(app, per_address)
        TestClient(app, client=(PEER, 50000)).get("/")
        return weakref.ref(app)

    gone = make()
    gc.collect()
    assert gone() is None


# OpenAPI


def operation(app: FastAPI, path: str, method: str = "get") -> dict[str, Any]:
    """Return the entry of a route in the document."""
    found: dict[str, Any] = app.openapi()["paths"][path][method]
    return found


def test_document_lists_the_refusals_of_limited_routes(limiter: penstock.Limiter) -> None:
    app = FastAPI()
    install(app, limiter, headers=["ietf", "github"])
    router = APIRouter(prefix="/v1", dependencies=[Depends(RateLimit("PerAddress"))])
    router.get("/orders/{number}")(hello)
    router.post("/orders/{number}")(hello)
    app.include_router(router)
    app.get("/free")(hello)
    for method in ("get", "post"):
        refusal = operation(app, "/v1/orders/{number}", method)["responses"]["429"]
        assert refusal == rate_limited_responses(["ietf", "github"])[429]
        assert {"Retry-After", "RateLimit", "X-RateLimit-Used"} <= set(refusal["headers"])
        assert list(refusal["content"]) == ["application/problem+json"]
    assert "429" not in operation(app, "/free")["responses"]
    # A route that is added later is included.
    app.get("/later", dependencies=[Depends(RateLimit("PerUser", id=shared("ada")))])(hello)
    assert "429" in operation(app, "/later")["responses"]


def test_document_keeps_responses_of_the_application(limiter: penstock.Limiter) -> None:
    app = FastAPI()
    install(app, limiter)
    app.get(
        "/",
        dependencies=[Depends(RateLimit("PerAddress"))],
        responses={429: {"description": "Slowly, please"}},
    )(hello)
    assert operation(app, "/")["responses"]["429"] == {"description": "Slowly, please"}


def test_document_can_be_unchanged(limiter: penstock.Limiter) -> None:
    app = FastAPI()
    install(app, limiter, openapi=False)
    limit = Depends(RateLimit("PerAddress"))
    app.get("/silent", dependencies=[limit])(hello)
    app.get("/said", dependencies=[limit], responses=rate_limited_responses(None))(hello)
    assert "429" not in operation(app, "/silent")["responses"]
    said = operation(app, "/said")["responses"]["429"]
    assert list(said["headers"]) == ["Retry-After"]


def test_document_has_no_limits_as_parameters(limiter: penstock.Limiter) -> None:
    app = FastAPI()
    install(app, limiter)

    def token(key: str) -> str:
        return key

    on_route(app, RateLimit("PerUser", id=Depends(token)))
    names = [parameter["name"] for parameter in operation(app, "/")["parameters"]]
    assert names == ["key"]


@pytest.mark.parametrize("kind", [RateLimit, MessageLimit])
def test_limit_class_without_a_call_is_an_error_at_startup(kind: Any) -> None:
    # FastAPI would take its arguments from the query.
    app = FastAPI()
    app.get("/", dependencies=[Depends(kind)])(len)
    with pytest.raises(penstock.ConfigError, match=rf"Depends\({kind.__name__}\('PerAddress'\)\)"):
        install(app)


def by_annotation(_: Annotated[None, RateLimit("PerAddress")] = None) -> str:
    return "hello"


def by_default(_: Any = RateLimit("PerAddress")) -> str:  # noqa: B008  the mistake
    return "hello"


@pytest.mark.parametrize("endpoint", [by_annotation, by_default])
def test_limit_of_a_parameter_without_depends_is_an_error(endpoint: Callable[..., str]) -> None:
    app = FastAPI()
    app.get("/")(endpoint)
    with pytest.raises(penstock.ConfigError, match=r"write Depends\(RateLimit\('PerAddress'\)\)"):
        install(app, limits={"PerAddress": "1/minute"})


def test_limit_of_messages_on_a_route_is_an_error() -> None:
    app = FastAPI()
    app.get("/", dependencies=[Depends(MessageLimit("1/minute"))])(hello)
    with pytest.raises(penstock.ConfigError, match="use RateLimit"):
        install(app)


@pytest.mark.parametrize("of_router", [False, True])
def test_limit_of_messages_that_no_parameter_gets_is_an_error(*, of_router: bool) -> None:
    app = FastAPI()
    depends = [Depends(MessageLimit("1/minute"))]
    router = APIRouter(dependencies=depends if of_router else [])
    router.websocket("/chat", dependencies=[] if of_router else depends)(echo)
    app.include_router(router)
    with pytest.raises(penstock.ConfigError, match=r"/chat: .* a parameter"):
        install(app)


def of_header(account: Annotated[str, Header()]) -> str:
    return account


def of_dependency(account: str = Depends(of_header)) -> str:
    return account


@pytest.mark.parametrize("option", ["id", "cost", "exempt_when"])
@pytest.mark.parametrize("source", [of_header, of_dependency])
def test_dependency_that_is_not_wrapped_is_an_error(option: str, source: Any) -> None:
    options: Any = {option: source}
    with pytest.raises(penstock.ConfigError, match=rf"{option}=Depends\({source.__name__}\)"):
        RateLimit("1/minute", **options)


@pytest.mark.parametrize("option", ["id", "cost"])
def test_alias_of_a_parameter_is_not_an_option(option: str) -> None:
    options: Any = {option: Annotated[str, Depends(of_header)]}
    with pytest.raises(penstock.ConfigError, match=rf"write {option}=Depends\(of_header\)"):
        RateLimit("1/minute", **options)


def annotated(_: Annotated[None, Depends(RateLimit("PerAddress"))]) -> str:
    return repr(_)


def defaulted(_: None = Depends(RateLimit("PerAddress"))) -> str:
    return repr(_)


@pytest.mark.parametrize("endpoint", [annotated, defaulted])
@pytest.mark.parametrize("around", [[], [Depends(RateLimit("Large"))]], ids=["alone", "router"])
def test_limit_may_be_a_parameter_of_an_endpoint(endpoint: Any, around: Any) -> None:
    app = FastAPI()
    install(app, limits={"PerAddress": "1/minute", "Large": "9/minute"})
    router = APIRouter(dependencies=around)
    router.get("/")(endpoint)
    app.include_router(router)
    client = TestClient(app, client=(PEER, 50000))
    answers = [client.get("/") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[0].json() == "None"
