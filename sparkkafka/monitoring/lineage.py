"""`lineage`: OpenLineage events about the topics that a session's jobs read and write.

OpenLineage's agent for Spark knows the JVM connector by its Java classes. Of a Python data source
it sees a table named pykafka and no dataset, and its extensions are Java classes too. So this
listener reads the plans of finished executions and micro-batches, and emits what the agent emits
for `format("kafka")`: the same names of jobs, datasets and facets.

Of a plan's options only the bootstrap servers and the topics are read: no event has a secret.
"""

from __future__ import annotations

import atexit
import json
import logging
import queue
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from sparkkafka.errors import KafkaError, OptionError, needs_extra
from sparkkafka.spark.stream.group_committer import wait_for_listeners
from sparkkafka.spark.stream.progress import end_offsets

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import RunEvent
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

FORMAT: Final = "pykafka"
PRODUCER: Final = "sparkkafka"
MAX_WAITING: Final = 1_000
"""Maximum number of events that wait for the transport; more are dropped."""

Topic = tuple[str, str, Mapping[str, Any]]
"""A dataset: namespace, name, and Spark's JSON of its schema."""


def lineage(
    spark: SparkSession,
    client: OpenLineageClient | None = None,
    *,
    namespace: str | None = None,
    job: str | None = None,
) -> Lineage:
    """Emit OpenLineage events about the session's jobs that read or write topics with this format.
    Call it before they start.

    An execution that reads or writes a topic is a run, and so is each micro-batch with rows. START
    and COMPLETE (or FAIL) are emitted when it has ended. The topics of a read are those of
    `subscribe` and `assign`, in a stream also those that match `subscribePattern`; that of a write
    is the option `topic`.

    `client` has the transport. The default is configured by openlineage.yml or the environment
    (OPENLINEAGE_URL, …). `namespace` and `job` are the job's, by default those of
    spark.openlineage.namespace and spark.app.name. With spark.openlineage.parentRunId,
    parentJobNamespace and parentJobName, the runs have this parent.

    Errors of the transport are logged; they fail no job. Raises OptionError for a session of Spark
    Connect, and ImportError without the extra lineage.
    """
    needs = "sparkkafka.lineage needs openlineage-python, which is not here"
    with needs_extra(needs, "lineage", "openlineage"):
        from openlineage.client import OpenLineageClient
    if not hasattr(spark, "_jsparkSession"):
        raise OptionError(
            "sparkkafka.lineage reads the plans in Spark's JVM, which a client of Spark Connect "
            "cannot: call it in the program that starts the server"
        )
    return Lineage(spark, client or OpenLineageClient(), namespace, job)


class Lineage(StreamingQueryListener):
    """The result of `lineage`: listens until it is closed."""

    def __init__(
        self, spark: SparkSession, client: OpenLineageClient, namespace: str | None, job: str | None
    ) -> None:
        self._spark: Any = spark
        self._client = client
        conf: Any = spark.sparkContext.getConf()
        self._namespace = namespace or conf.get("spark.openlineage.namespace", "default")
        name = job or str(spark.sparkContext.appName)
        self._job = re.sub(r"[^a-z0-9]+", "_", name.lower())
        self._parent = [
            conf.get(f"spark.openlineage.{name}", "")
            for name in ("parentRunId", "parentJobNamespace", "parentJobName")
        ]
        self._queries: dict[str, Any] = {}  # by run id: Spark's StreamExecution
        self._last_progress: dict[str, Any] = {}  # by run id
        self._waiting: queue.Queue[RunEvent | None] = queue.Queue(MAX_WAITING)
        self._has_ended = threading.Event()  # Thread.join fails after Ctrl-C (bpo-45274)
        threading.Thread(target=self._emit, name="sparkkafka-lineage", daemon=True).start()
        jvm: Any = spark._jvm
        spark.streams.addListener(self)  # this also starts py4j's callback server
        # Spark removes a listener by its identity: the list returns the Java object that py4j made.
        made = jvm.java.util.ArrayList()
        made.add(_ExecutionListener(self))
        self._executions = made.get(0)
        self._spark._jsparkSession.listenerManager().register(self._executions)
        atexit.register(self.close)

    def __repr__(self) -> str:
        return f"Lineage({self._namespace!r}, {self._job!r})"

    def close(self) -> None:
        """Stop listening, and wait until the events so far are emitted, for 10 seconds. May be
        repeated."""
        atexit.unregister(self.close)
        wait_for_listeners(self._spark)
        with suppress(Exception):  # the session may be gone, or its JVM
            self._spark._jsparkSession.listenerManager().unregister(self._executions)
            self._spark.streams.removeListener(self)
        if not self._has_ended.is_set():
            self._put_waiting(None)
            self._has_ended.wait(10.0)

    # --- called by Spark: these must neither raise nor wait for the transport --------------------

    def on_execution(self, plan: Any, duration: timedelta, *, failed: bool) -> None:
        """Emit the run of a batch execution with this analyzed plan, if it has topics."""
        name, outputs = _snake(_class(plan)), []
        if _class(plan) in ("AppendData", "OverwriteByExpression") and _is_ours(plan.table()):
            name = "execute_save_into_data_source_command"
            outputs = _topics(plan.table().options().get, plan.query().schema())
        inputs = [
            topic
            for leaf in self._leaves(plan)
            if _is_ours(leaf)
            for topic in _topics(leaf.options().get, leaf.schema())
        ]
        self._put(name, "BATCH", inputs, outputs, duration, failed=failed)

    def onQueryStarted(self, event: Any) -> None:
        """Keep the query of this run: its plan is read when it has processed a batch."""

        def keep() -> None:
            """Keep Spark's object of the query, from which its plan is read at the end of each
            batch."""
            query = self._spark._jsparkSession.streams().get(str(event.id))
            if query is not None:
                self._queries[str(event.runId)] = query.streamingQuery()

        _attempt("look at a query", keep)

    def onQueryProgress(self, event: Any) -> None:
        """Keep a query's last progress, and make an event of a micro-batch that has rows."""
        progress = event.progress
        self._last_progress[str(progress.runId)] = progress
        if progress.numInputRows:
            duration = timedelta(milliseconds=progress.batchDuration or 0)
            _attempt("look at a micro-batch", lambda: self._batch(progress, duration, failed=False))

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        """Emit the event of a failed run."""
        progress = self._last_progress.pop(str(event.runId), None)
        if event.exception is not None:
            last = progress or event  # without a progress report: the event has the ids, too
            _attempt("look at a query", lambda: self._batch(last, timedelta(0), failed=True))
        self._queries.pop(str(event.runId), None)

    def _batch(self, progress: Any, duration: timedelta, *, failed: bool) -> None:
        """Emit the run of a micro-batch, if it has topics."""
        query = self._queries.get(str(progress.runId))
        if query is None:
            return
        inputs = []
        for leaf in self._leaves(query.analyzedPlan()):
            if _class(leaf) == "StreamingRelationV2" and leaf.sourceName() == FORMAT:
                inputs += _topics(leaf.extraOptions().get, leaf.schema(), progress)
        outputs = []
        sink = query.logicalPlan()
        # Sinks of version 1 raise for their name: that of foreachBatch.
        is_v2 = _class(sink) == "WriteToMicroBatchDataSource"
        if is_v2 and query.sink().name() == FORMAT and query.lastExecution() is not None:
            options = dict(self._java(sink.writeOptions()))
            lowered = {name.lower(): value for name, value in options.items()}
            outputs = _topics(lowered.get, sink.query().schema())
        # The agent's names of jobs that write with `format("kafka")`.
        self._put("write_to_data_source_v2", "STREAMING", inputs, outputs, duration, failed=failed)

    def _leaves(self, plan: Any) -> Iterator[Any]:
        """Yield the leaves (relations and scans) of a query plan and of its subqueries. Plans and
        leaves are Spark's objects in the JVM."""
        for node in (plan, *self._java(plan.subqueriesAll())):
            # In a list: a generator that is not exhausted would close Java's iterator, which has no
            # such method.
            yield from list(self._java(node.collectLeaves()))

    def _java(self, collection: Any) -> Any:
        """Return a collection of Scala as one of Java, which Python can iterate over."""
        return self._spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(collection)

    # --- events ----------------------------------------------------------------------------------

    def _put(
        self,
        name: str,
        processing: str,
        inputs: list[Topic],
        outputs: list[Topic],
        duration: timedelta,
        *,
        failed: bool,
    ) -> None:
        """Queue the START and COMPLETE (or FAIL) events of a run that ends now and took `duration`.
        Without topics nothing is queued."""
        if not inputs and not outputs:
            return
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.generated import job_type_job, parent_run, processing_engine_run
        from openlineage.client.uuid import generate_new_uuid

        from sparkkafka import __version__

        facets: dict[str, Any] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                self._spark.version, "spark", __version__, producer=PRODUCER
            )
        }
        run_id, job_namespace, job_name = self._parent
        if run_id:
            facets["parent"] = parent_run.ParentRunFacet(
                parent_run.Run(run_id), parent_run.Job(job_namespace, job_name), producer=PRODUCER
            )
        job_type = job_type_job.JobTypeJobFacet(processing, "SPARK", "SQL_JOB", producer=PRODUCER)
        job = Job(self._namespace, f"{self._job}.{name}", {"jobType": job_type})
        run = Run(str(generate_new_uuid()), facets)
        now = datetime.now(UTC)
        end = RunState.FAIL if failed else RunState.COMPLETE
        for state, time in ((RunState.START, now - duration), (end, now)):
            self._put_waiting(
                RunEvent(
                    eventTime=time.isoformat(timespec="milliseconds"),
                    producer=PRODUCER,
                    run=run,
                    job=job,
                    eventType=state,
                    inputs=_datasets(inputs, "InputDataset"),
                    outputs=_datasets(outputs, "OutputDataset"),
                )
            )

    def _put_waiting(self, event: RunEvent | None) -> None:
        """Queue an event for the transport, or the None that ends its thread. If MAX_WAITING events
        wait, drop it with a warning."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            log.warning(
                "an OpenLineage event is dropped: %d wait for the transport, is it slow?",
                MAX_WAITING,
            )

    def _emit(self) -> None:
        """Pass queued events to the transport until there is a None. Runs in its own thread."""
        try:
            while (event := self._waiting.get()) is not None:
                _attempt("emit an OpenLineage event", partial(self._client.emit, event))
        finally:
            self._has_ended.set()


class _ExecutionListener:
    """Spark's QueryExecutionListener, which py4j calls."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage

    def onSuccess(self, function: str, execution: Any, duration_ns: int) -> None:
        """Emit the run of an execution that has succeeded, as Spark's interface calls it."""
        self._attempt(execution, timedelta(microseconds=duration_ns / 1000), failed=False)

    def onFailure(self, function: str, execution: Any, exception: Any) -> None:
        """Emit the run of an execution that has failed."""
        self._attempt(execution, timedelta(0), failed=True)

    def _attempt(self, execution: Any, duration: timedelta, *, failed: bool) -> None:
        emit = self._lineage.on_execution
        _attempt(
            "look at an execution", lambda: emit(execution.analyzed(), duration, failed=failed)
        )

    class Java:
        implements: Final = ["org.apache.spark.sql.util.QueryExecutionListener"]


def _attempt(purpose: str, work: Callable[[], object]) -> None:
    """Call `work`. If it raises, log a warning with the purpose: lineage must fail no job."""
    try:
        work()
    except Exception as error:
        # The text of an error of the JVM may have anything in it.
        text = str(error) if isinstance(error, KafkaError) else type(error).__name__
        log.warning("lineage: failed to %s, the job is not affected: %s", purpose, text)
        log.debug("lineage", exc_info=True)


def _class(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _snake(name: str) -> str:
    """Return the name that OpenLineage's agent gives to a plan's class: `append_data` for
    AppendData, with execute_ before the names of commands."""
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    return f"execute_{snake}" if snake.endswith("_command") else snake


def _is_ours(relation: Any) -> bool:
    """Return whether a plan's node is a table of this format."""
    return _class(relation) == "DataSourceV2Relation" and relation.table().name() == FORMAT


def _topics(option: Callable[[str], Any], schema: Any, progress: Any = None) -> list[Topic]:
    """Return the topics that the options name or, for subscribePattern, those of a micro-batch that
    match it. `option` returns an option by its name in lower case, and `progress` is Spark's report
    of the batch (or of a run that failed before its first one, which names no topics)."""
    names: list[str] = [option("topic")] if option("topic") else []
    names += [name.strip() for name in str(option("subscribe") or "").split(",") if name.strip()]
    if option("assign"):
        names += json.loads(option("assign"))
    if not names and hasattr(progress, "sources"):
        pattern = str(option("subscribepattern") or "")
        read = sorted({tp.topic for tp in end_offsets(progress)})
        names = [name for name in read if re.search(pattern, name)]
    first_server = str(option("kafka.bootstrap.servers") or "").split(",")[0].strip()
    namespace = f"kafka://{first_server.rpartition('://')[2]}"
    columns = json.loads(schema.json())
    return [(namespace, name, columns) for name in names]


def _fields(schema: Mapping[str, Any]) -> list[Any]:
    """Return OpenLineage's objects for the fields of a schema, with types named as the agent names
    them."""
    from openlineage.client.generated.schema_dataset import SchemaDatasetFacetFields

    fields = []
    for field in schema["fields"]:
        kind, nested = field["type"], []
        if isinstance(kind, dict):
            inner = kind.get("elementType", kind)
            nested = _fields(inner) if isinstance(inner, dict) and "fields" in inner else []
            kind = kind["type"]
        fields.append(SchemaDatasetFacetFields(field["name"], kind, fields=nested))
    return fields


def _datasets(topics: list[Topic], kind: str) -> list[Any]:
    """Return OpenLineage's objects for topics, each once."""
    from openlineage.client import event_v2
    from openlineage.client.generated import datasource_dataset, schema_dataset

    found = {}
    for namespace, name, schema in topics:
        facets = {
            "dataSource": datasource_dataset.DatasourceDatasetFacet(
                namespace, namespace, producer=PRODUCER
            ),
            "schema": schema_dataset.SchemaDatasetFacet(fields=_fields(schema), producer=PRODUCER),
        }
        found[namespace, name] = getattr(event_v2, kind)(namespace, name, facets=facets)
    return list(found.values())
