"""The shop in Python, with psycopg and no library of gapless: sells until the stock is gone, and
emits what is left in the statement that takes it. Start it with `examples/outbox/run python`."""

import os
import pathlib

import psycopg

SELL = """
WITH taken AS (
    UPDATE stock SET pieces = pieces - 1 WHERE item = %(item)s AND pieces > 0 RETURNING pieces
)
SELECT gapless.emit('shop.stock', %(item)s, 'upsert',
                    payload => jsonb_build_object('item', %(item)s::text, 'left', pieces))
FROM taken
"""

with psycopg.connect(os.environ["DSN"]) as connection:
    connection.execute(pathlib.Path(__file__).with_name("shop.sql").read_text())
    connection.commit()
    for item in ["tea", "milk", "tea", "milk", "milk"]:
        with connection.transaction():
            if connection.execute(SELL, {"item": item}).fetchone() is None:
                print(f"no {item} left")
                continue
            connection.execute("INSERT INTO orders (item, pieces) VALUES (%s, 1)", [item])
        print(f"sold {item}")
