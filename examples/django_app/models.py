"""Overrides of limits, with a comment, edited in the admin."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import models

import penstock
from penstock.django import get_limiter


class LimitOverride(models.Model):
    """Another limit for one id.

    The id is in the column `client`, for Django keeps `id` for the key of the row.
    """

    name: models.CharField[str, str] = models.CharField(
        "limit", max_length=100, help_text="The name of a limit."
    )
    client: models.CharField[str, str] = models.CharField(
        "id", max_length=200, help_text="Who has it: an address, a user."
    )
    burst: models.PositiveBigIntegerField[int, int] = models.PositiveBigIntegerField(
        help_text="How many at once."
    )
    count: models.PositiveBigIntegerField[int, int] = models.PositiveBigIntegerField(
        help_text="How many more in each period."
    )
    period: models.CharField[str, str] = models.CharField(
        max_length=40, help_text="Such as 1m, 1h30m or 7d."
    )
    comment: models.CharField[str, str] = models.CharField(
        max_length=400, blank=True, help_text="Why."
    )
    enabled: models.BooleanField[bool, bool] = models.BooleanField(default=True)

    class Meta:
        """At most one override per limit and id."""

        constraints = (
            models.UniqueConstraint(fields=["name", "client"], name="one_override_for_each_id"),
        )

    def __str__(self) -> str:
        return f"{self.name} of {self.client}: {self.limit}"

    @property
    def limit(self) -> str:
        """The limit as text."""
        return f"{self.count} per {self.period}, burst {self.burst}"

    def clean(self) -> None:
        """Reject rows that penstock would skip."""
        super().clean()
        try:
            penstock.Limit.token_bucket(burst=self.burst, count=self.count, period=self.period)
        except (penstock.LimitError, TypeError) as error:
            # A missing number is `None`, regardless of the field.
            raise ValidationError(str(error).partition("\n")[0]) from error
        try:
            get_limiter().limits.resolve(self.name, self.client)
        except penstock.Error as error:
            raise ValidationError(str(error)) from error
