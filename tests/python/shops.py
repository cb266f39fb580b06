"""Applications of one page, `/orders/<client>`, for tests that run them on real servers.

`OPTIONS` stands for the options of the application, and `LIMITS` for the limits of the page. The
page is what `answer(client)` returns.
"""

from __future__ import annotations

FLASK = """
from flask import Flask
from penstock.flask import Penstock

app = Flask(__name__)
limits = Penstock(app, OPTIONS)

@app.get("/orders/<client>")
@limits.limit(LIMITS)
def orders(client):
    return answer(client)
"""
DJANGO = """
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["penstock.django"],
    LOGGING_CONFIG=None,
    MIDDLEWARE=["penstock.django.PenstockMiddleware"],
    PENSTOCK={key.upper(): value for key, value in dict(OPTIONS).items()},
    ROOT_URLCONF=__name__,
)

from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from penstock.django import limit

@limit(LIMITS)
def orders(request, client):
    return HttpResponse(answer(client))

urlpatterns = [path("orders/<str:client>", orders)]
app = get_wsgi_application()
"""
FASTAPI = """
from fastapi import Depends, FastAPI
from fastapi.responses import PlainTextResponse
from penstock.fastapi import RateLimit, install

app = FastAPI()
install(app, OPTIONS)

@app.get("/orders/{client}", dependencies=[Depends(RateLimit(LIMITS))])
async def orders(client: str):
    return PlainTextResponse(answer(client))
"""
ASGI = """
from penstock.asgi import PenstockMiddleware

async def serve(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    body = answer(scope["path"].rpartition("/")[2]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})

def is_another_page(scope):
    return not scope["path"].startswith("/orders/")

app = PenstockMiddleware(serve, OPTIONS, limit=[LIMITS], exempt_when=is_another_page)
"""


def shop(app: str, *, limits: str, options: str = "", answer: str) -> str:
    """Return the module of an application; `answer` defines the function of this name."""
    return answer + app.replace("OPTIONS", options).replace("LIMITS", limits)
