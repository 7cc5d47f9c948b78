"""Runs short queries on databases with secrets, and keeps everything that Spark shows or writes about them.

    python database_life.py FOLDER OPTIONS COUNT

OPTIONS is JSON that maps the name of each query to its options; COUNT is the number of events in each
database. The program fixes the start of each query and then creates the file `pinned`. When the file
`written` exists, it continues until all events have arrived. At the end, the folder contains the rows, and
everything that Spark showed. The program also reads the data source of `foreign.py`.
"""

import contextlib
import io
import json
import sys
import time
from pathlib import Path
from urllib.request import urlopen

from pyspark_multiclouddb import caught_up, local_session

folder, databases, count = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
for name in ("shown", "events"):
    (folder / name).mkdir()
conf = {
    # Each task needs its own Python process.
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": str(folder / "events"),
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    # This program's standard error also contains the output of the workers.
    "spark.log.level": "INFO",
}
spark = local_session("database", **conf)


class Life:
    """Run the query on one database; every run except the first is a clean restart."""

    def __init__(self, name, options):
        self.name, self.options, self.rows = name, options, folder / "rows" / name
        self.rows.mkdir(parents=True)
        self.stream = spark.readStream.format("multiclouddb").options(**options).load()

    def keep(self, frame, batch_id):
        rows = [row.event_id for row in frame.select("event_id").collect()]
        (self.rows / str(batch_id)).write_text(json.dumps(rows))

    def run(self):
        writer = self.stream.writeStream.foreachBatch(self.keep)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint" / self.name))
        query = writer.queryName(self.name).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def run_all(self):
        while True:
            query = self.run()
            if caught_up(query) and sum(len(json.loads(f.read_text())) for f in self.rows.iterdir()) >= count:
                return query

    def show(self, query):
        show(f"{self.name}-explain", printed(lambda: self.stream.explain(True)))
        show(f"{self.name}-explain-query", printed(lambda: query.explain(True)))
        show(f"{self.name}-progress", query.recentProgress)
        show(f"{self.name}-repr", repr(self.stream) + repr(query) + repr(query.status))
        options = {key: value for key, value in self.options.items() if key != "maxRecordsPerTrigger"}
        if options["startingPosition"] != "now":
            batch = spark.read.format("multiclouddb").options(**options).load()
            show(f"{self.name}-explain-batch", printed(lambda: batch.explain(True)))
            batch.createOrReplaceTempView(self.name)
            show(f"{self.name}-batch", spark.sql(f"SELECT count(*) FROM {self.name}").collect())
        try:
            spark.read.format("multiclouddb").options(**{**options, "startingPosition": "later"}).load()
        except Exception as error:  # noqa: BLE001 - it is looked into for secrets
            show(f"{self.name}-error", error)


def show(name, text):
    (folder / "shown" / name).write_text(str(text))


def printed(print_it):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_it()
    return out.getvalue()


[row] = spark.read.format("foreign").load().collect()
show("foreign", row.n)
lives = [Life(*each) for each in databases.items()]
for life in lives:
    life.run()
(folder / "pinned").touch()
while not (folder / "written").exists():
    time.sleep(0.02)
for life in lives:
    life.show(life.run_all())
root = spark.sparkContext.uiWebUrl
pages = ["jobs", "stages", "storage", "environment", "executors", "SQL", "StreamingQuery"]
pages += [f"SQL/execution/?id={number}" for number in range(4)]
api = f"api/v1/applications/{spark.sparkContext.applicationId}"
pages += [f"{api}/sql?details=true", f"{api}/environment", f"{api}/jobs"]
for number, page in enumerate(pages):
    with urlopen(f"{root}/{page.rstrip('/')}{'' if '?' in page or 'api' in page else '/'}") as answer:
        show(f"page-{number}", answer.read().decode())
spark.stop()
