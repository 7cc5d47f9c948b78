"""A program that serves clients of Spark Connect until its standard input is closed.

python serving.py PORT
"""

import os
import sys

from pyspark_multiclouddb import local_session

conf = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.port": sys.argv[1],
}
if "EVENTS" in os.environ:
    conf |= {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": os.environ["EVENTS"],
        "spark.eventLog.compress": "false",
    }
with local_session("serving", **conf) as spark:
    spark.sparkContext.setLogLevel("OFF")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
