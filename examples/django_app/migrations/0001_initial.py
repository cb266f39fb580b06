"""The table of overrides."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="LimitOverride",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "name",
                    models.CharField(
                        help_text="The name of a limit.", max_length=100, verbose_name="limit"
                    ),
                ),
                (
                    "client",
                    models.CharField(
                        help_text="Who has it: an address, a user.",
                        max_length=200,
                        verbose_name="id",
                    ),
                ),
                ("burst", models.PositiveBigIntegerField(help_text="How many at once.")),
                (
                    "count",
                    models.PositiveBigIntegerField(help_text="How many more in each period."),
                ),
                ("period", models.CharField(help_text="Such as 1m, 1h30m or 7d.", max_length=40)),
                ("comment", models.CharField(blank=True, help_text="Why.", max_length=400)),
                ("enabled", models.BooleanField(default=True)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("name", "client"), name="one_override_for_each_id"
                    )
                ]
            },
        ),
    )
