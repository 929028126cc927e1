# Databricks notebook source
# A notebook of Databricks in its source form. Each cell says whether this project's tests run it on
# plain Spark ("ran"), or whether it only follows Databricks' documentation ("documentation").

# COMMAND ----------
# documentation: parameters of the job
bootstrap_servers = dbutils.widgets.get("bootstrap_servers")
checkpoint = dbutils.widgets.get("checkpoint")

# COMMAND ----------
# documentation: a login by a secret scope; the options below then need kafka.security.protocol, too
# password = dbutils.secrets.get("kafka", "password")

# COMMAND ----------
# ran: the session may have listed its data sources before the package was installed
import sparkkafka

sparkkafka.register(spark)
kafka = {"kafka.bootstrap.servers": bootstrap_servers}

# COMMAND ----------
# ran: count the records of the topic
orders = spark.read.format("pykafka").options(**kafka, subscribe="orders").load()
print(orders.count(), "orders")

# COMMAND ----------
# ran: an exactly-once stream up to the present end of the topic, as serverless compute requires
query = (
    spark.readStream.format("pykafka")
    .options(**kafka, subscribe="orders", startingOffsets="earliest")
    .load()
    .selectExpr("key", "upper(CAST(value AS STRING)) AS value")
    .writeStream.format("pykafka")
    .options(**kafka, topic="shouted", deliveryGuarantee="exactly-once")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
if query.exception() is not None:
    raise query.exception()

# COMMAND ----------
# ran: the lag of the stream
print(sparkkafka.lag(query, kafka))
