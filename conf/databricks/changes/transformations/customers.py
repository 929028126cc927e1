"""A declarative pipeline that keeps a table at the rows of Debezium's source (AUTO CDC).

The same file is for Databricks (Lakeflow Declarative Pipelines) and for plain Spark 4.3 or later.
"""

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.temporary_view
def customer_changes():
    changes = (
        spark.readStream.format("pykafka")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.shop.bootstrap.servers"))
        .options(subscribe="shop.public.customers", startingOffsets="earliest")
        .options(valueFormat="json", envelope="debezium")
        .schema(
            "id int, city string,"
            " change struct<op string, kind string, position string, key struct<id int>>"
        )
        .load()
    )
    # A tombstone follows the delete of its key, and has no position.
    rows = changes.where("change.kind = 'row'")
    return rows.select("id", "city", "change.position", F.expr("change.op = 'd'").alias("deleted"))


dp.create_streaming_table("customers")
dp.create_auto_cdc_flow(
    target="customers",
    source="customer_changes",
    keys=["id"],
    sequence_by="position",
    apply_as_deletes="deleted",
    except_column_list=["position", "deleted"],
    stored_as_scd_type=1,  # 2 keeps each row's history
)
