"""The shop's API, with REST framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.response import Response
from rest_framework.views import APIView

from penstock.django.drf import PenstockThrottle

if TYPE_CHECKING:
    from rest_framework.request import Request


class Exports(APIView):
    """All orders in one response, limited to a few per hour."""

    throttle_classes = (PenstockThrottle,)
    throttle_scope = "ExportsPerUser"

    def get(self, request: Request) -> Response:  # noqa: ARG002  required by the framework
        """Return the export."""
        return Response({"rows": [["tea", 3], ["bread", 4]]})
