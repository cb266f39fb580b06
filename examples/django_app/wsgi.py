"""What a server runs: the site, with its table of overrides in force."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_app.settings")  # noqa: TID251  Django's
application = get_wsgi_application()

from django_app.overrides import refresher  # noqa: E402  models are there from here on

# It goes on in the workers that a server forks, each for itself.
refresher().start()
