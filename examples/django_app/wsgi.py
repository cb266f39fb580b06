"""The WSGI application, with the overrides from the database."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_app.settings")  # noqa: TID251  Django's
application = get_wsgi_application()

from django_app.overrides import refresher  # noqa: E402  needs the models

# It continues in each worker that a server forks.
refresher().start()
