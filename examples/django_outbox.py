"""Orders in Django's database, and each of them exactly once in a log: by an outbox, and a relay that may be killed at any time.

python examples/django_outbox.py DIRECTORY order     one order in each line of standard input
python examples/django_outbox.py DIRECTORY relay     moves what is in the outbox into the log, as it comes
"""

from __future__ import annotations

import json
import sys
import time

import django
from django.conf import settings
from django.db import connection, models, transaction

from replog import Position, blocking

DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{sys.argv[1]}/shop.sqlite3"}
settings.configure(DATABASES={"default": DATABASE}, DEFAULT_AUTO_FIELD="django.db.models.BigAutoField")
django.setup()


class Model(models.Model):
    class Meta:
        abstract, app_label = True, "shop"


class Order(Model):
    item = models.CharField(max_length=100)


class Outbox(Model):  # rows come in the transaction that they tell of, and go once they are in the log
    message = models.JSONField()


class Relayed(Model):  # one row: up to here, what is in the log has left the outbox
    position = models.CharField(max_length=50)


def place_order(item: str) -> None:
    with transaction.atomic():  # both or neither
        order = Order.objects.create(item=item)
        Outbox.objects.create(message={"order": order.pk, "item": item})


def note(position: Position, rows: list[int]) -> None:
    with transaction.atomic():
        Outbox.objects.filter(pk__in=rows).delete()
        Relayed.objects.update_or_create(pk=1, defaults={"position": str(position)})


def relay(client: blocking.Client) -> None:
    with client.write_log("orders") as log:  # fences a relay that still runs, so nothing is added behind our back
        known = Relayed.objects.filter(pk=1).first()
        with client.read_log("orders", after=known and known.position) as reader:
            for record in reader:  # in the log, and still in the outbox: a relay was killed in between
                note(record.position, [json.loads(record.data)["row"]])
        while True:
            rows = list(Outbox.objects.order_by("pk")[:100])
            if rows:
                positions = log.extend([json.dumps({"row": row.pk, **row.message}).encode() for row in rows])
                print("in the log up to", positions[-1], flush=True)
                note(positions[-1], [row.pk for row in rows])
            time.sleep(0 if rows else 0.05)


if __name__ == "__main__":
    if sys.argv[2] == "relay":
        with blocking.embed(f"{sys.argv[1]}/log") as embedded:
            relay(embedded)
    tables = connection.introspection.table_names()
    with connection.schema_editor() as editor:  # a real project has migrations
        for model in (Order, Outbox, Relayed):
            if model._meta.db_table not in tables:
                editor.create_model(model)
    for line in sys.stdin:
        place_order(line.strip())
        print("ok", flush=True)
