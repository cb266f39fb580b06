"""Settings for development; a public site needs a secret key and no DEBUG."""

from __future__ import annotations

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent

ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}}
DEBUG = True
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "rest_framework",
    "penstock.django",
    "django_app",
]
LOGIN_URL = "/login/"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "penstock.django.PenstockMiddleware",
]
ROOT_URLCONF = "django_app.urls"
SECRET_KEY = "an example has no secrets"  # noqa: S105  it has none
STATIC_URL = "static/"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "django.template.context_processors.request",
            ]
        },
    }
]
USE_TZ = True
WSGI_APPLICATION = "django_app.wsgi.application"

PENSTOCK = {
    # In BASE_DIR.
    "LIMITS": "limits.yaml",
    # From the environment: SHOP_STORE=shm://shop for several worker processes, or the URL of a
    # Redis server for several machines.
    "STORE": os.environ.get("SHOP_STORE", "memory://"),  # noqa: TID251  see above
    # For every view that is not exempt, in addition to its own limits.
    "DEFAULT": "RequestsPerAddress",
    # Trust X-Forwarded-For from a proxy on this machine. By default, it is ignored.
    "TRUSTED_PROXIES": ["127.0.0.0/8", "::1"],
    "ON_DENIED": "django_app.views.too_many",
    "EXPECTED_PROCESSES": 1,
}
