"""Runs a short query on a database with secrets, and keeps everything that Spark shows or writes.

    python database_life.py FOLDER OPTIONS COUNT [die | pin]

OPTIONS are the options of the source, as JSON; COUNT is the number of events. With `die`, the program kills
itself (driver and JVM) in its second batch, after the sink. With `pin`, the program only fixes the start of
the query. Without either, the program ends when all events have arrived. The files of the rows and everything
that was shown are in the folder.
"""

import contextlib
import io
import json
import os
import signal
import sys
from pathlib import Path
from urllib.request import urlopen

from pyspark_multiclouddb import caught_up, local_session

folder, options, count = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
dies = "die" in sys.argv
(folder / "rows").mkdir(exist_ok=True)
(folder / "shown").mkdir(exist_ok=True)
(folder / "events").mkdir(exist_ok=True)
conf = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": str(folder / "events"),
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    # What workers say goes to the standard error of this program.
    "spark.log.level": "INFO",
}
spark = local_session("database", **conf)
jvm = spark.sparkContext._gateway.proc.pid


def keep(frame, batch_id):
    rows = [row.event_id for row in frame.select("event_id").collect()]
    (folder / "rows" / str(batch_id)).write_text(json.dumps(rows))
    if dies and any(batch != str(batch_id) and read(batch) for batch in os.listdir(folder / "rows")):
        for pid in (jvm, os.getpid()):
            os.kill(pid, signal.SIGKILL)


def read(batch):
    return json.loads((folder / "rows" / batch).read_text())


def show(name, text):
    (folder / "shown" / name).write_text(str(text))


def printed(print_it):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_it()
    return out.getvalue()


stream = spark.readStream.format("multiclouddb").options(**options).load()
while True:
    query = (
        stream.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .queryName("life")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    if "pin" in sys.argv:
        spark.stop()
        sys.exit()
    if sum(len(read(batch)) for batch in os.listdir(folder / "rows")) >= count and caught_up(query):
        break
show("explain", printed(lambda: stream.explain(True)))
show("explain-query", printed(lambda: query.explain(True)))
show("progress", query.recentProgress)
show("repr", repr(stream) + repr(query) + repr(query.status))
del options["maxRecordsPerTrigger"]
if options.get("startingPosition") != "now":
    batch = spark.read.format("multiclouddb").options(**options).load()
    show("explain-batch", printed(lambda: batch.explain(True)))
    batch.createOrReplaceTempView("changes")
    show("batch", spark.sql("SELECT count(*) FROM changes").collect())
root = spark.sparkContext.uiWebUrl
pages = ["jobs", "stages", "storage", "environment", "executors", "SQL", "StreamingQuery"]
pages += [f"SQL/execution/?id={number}" for number in range(4)]
api = f"api/v1/applications/{spark.sparkContext.applicationId}"
pages += [f"{api}/sql?details=true", f"{api}/environment", f"{api}/jobs"]
for number, page in enumerate(pages):
    with urlopen(f"{root}/{page.rstrip('/')}{'' if '?' in page or 'api' in page else '/'}") as answer:
        show(f"page-{number}", answer.read().decode())
try:
    spark.read.format("multiclouddb").options(**{**options, "startingPosition": "later"}).load()
except Exception as error:  # noqa: BLE001 - it is looked into for secrets
    show("error", error)
spark.stop()
