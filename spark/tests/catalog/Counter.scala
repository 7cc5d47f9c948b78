// Counts the rows that the queries of a session return to the driver.
package multiclouddb.test

import java.util.concurrent.atomic.AtomicLong

import org.apache.spark.sql.execution.{CommandResultExec, LocalTableScanExec, QueryExecution, SparkPlan}
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec
import org.apache.spark.sql.util.QueryExecutionListener

object Counter {
  val rows = new AtomicLong()
  val queries = new AtomicLong()
}

class Counter extends QueryExecutionListener {
  override def onSuccess(name: String, query: QueryExecution, nanoseconds: Long): Unit = {
    // The rows of a command and of a checkpoint stay on the executors.
    if (!Set("command", "save", "localCheckpoint").contains(name)) {
      Counter.queries.incrementAndGet()
      Counter.rows.addAndGet(returned(query.executedPlan))
    }
  }

  override def onFailure(name: String, query: QueryExecution, error: Exception): Unit = ()

  /** The rows of the topmost node that counts them; very many if none does. */
  private def returned(plan: SparkPlan): Long = plan match {
    case each: AdaptiveSparkPlanExec => returned(each.executedPlan)
    case each: CommandResultExec => each.rows.size
    case each: LocalTableScanExec => each.rows.size
    case each if each.metrics.contains("numOutputRows") => each.metrics("numOutputRows").value
    case each if each.children.size == 1 => returned(each.children.head)
    case _ => 1000000000L
  }
}
