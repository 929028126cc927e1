"""Apply the changes that a connector captured (`envelope=debezium`, …) to a table.

    from sparkkafka import cdc

    changes.writeStream.foreachBatch(lambda batch, _: cdc.apply(batch, "shop.orders"))

`latest` returns the last row of each key; `apply` merges a batch into a table. Both take the
DataFrame of a read with `envelope`: the columns of the row, then the struct `change`.
"""

from __future__ import annotations

from sparkkafka.cdc.net_changes import latest
from sparkkafka.cdc.spark_tables import apply

__all__ = ["apply", "latest"]
