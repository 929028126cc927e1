"""A ColumnProducer to which tests send columns of one partition."""

from __future__ import annotations

from sparkkafka.client.producer.column_producer import ColumnProducer
from sparkkafka.client.producer.partitioner import PartitionedRecords
from sparkkafka.client.values import TopicPartition
from sparkkafka.protocol.columns.encode import RecordColumns


class PartitionProducer(ColumnProducer):
    """Sends records of one partition with each call."""

    def send(self, topic: str, partition: int, columns: RecordColumns) -> None:
        """Check and append the records."""
        count = len(columns.timestamps_ms)
        if count:
            tps = [TopicPartition(topic, partition)]
            records = PartitionedRecords(columns, tps, [count], range(count))
            self.check_sizes(records)
            self.append(records)
