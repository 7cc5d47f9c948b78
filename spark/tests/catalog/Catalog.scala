// A catalog whose tables run MERGE INTO, UPDATE and DELETE by copy-on-write, with files on disk.
//
// A table is a folder. `N.version` holds its schema, properties and files after the N-th commit; a commit creates the
// next one, and fails if another has created it first. A file of rows is a number of columns, their ids, then rows of
// Spark. As in Delta, an empty text in a column by which the table is partitioned becomes null.
package multiclouddb.test

import java.io._
import java.nio.file.{FileAlreadyExistsException, Files, Path, Paths}
import java.util
import java.util.{ConcurrentModificationException, UUID}

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.analysis.{NoSuchTableException, TableAlreadyExistsException}
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.connector.catalog._
import org.apache.spark.sql.connector.expressions.{Expressions, Transform}
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.write._
import org.apache.spark.sql.types.{DataType, StructField, StructType}
import org.apache.spark.sql.util.CaseInsensitiveStringMap

case class Version(
    number: Int, schema: String, properties: Map[String, String], files: Vector[String],
    partitions: Vector[String], ids: Vector[Long]) {
  def columns: StructType = DataType.fromJson(schema).asInstanceOf[StructType]

  def without(name: String): Version = {
    val at = columns.fieldIndex(name)
    copy(schema = StructType(columns.patch(at, Nil, 1)).json, ids = ids.patch(at, Nil, 1))
  }
}

object Version {
  // A column that is added again with the name of an older one is another column.
  def newId(): Long = UUID.randomUUID().getMostSignificantBits

  def latest(folder: Path): Option[Version] = {
    val names = Option(folder.toFile.list()).getOrElse(Array.empty[String])
    val numbers = names.filter(_.endsWith(".version")).map(_.stripSuffix(".version").toInt)
    if (numbers.isEmpty) None
    else {
      val in = new ObjectInputStream(new FileInputStream(folder.resolve(s"${numbers.max}.version").toFile))
      try {
        val properties = in.readObject().asInstanceOf[util.HashMap[String, String]].asScala.toMap
        val schema = in.readObject().asInstanceOf[String]
        val files = in.readObject().asInstanceOf[Array[String]].toVector
        val partitions = in.readObject().asInstanceOf[Array[String]].toVector
        val ids = in.readObject().asInstanceOf[Array[Long]].toVector
        Some(Version(numbers.max, schema, properties, files, partitions, ids))
      } finally in.close()
    }
  }

  def commit(folder: Path, version: Version): Unit = {
    Files.createDirectories(folder)
    val draft = folder.resolve(UUID.randomUUID().toString + ".draft")
    val out = new ObjectOutputStream(new FileOutputStream(draft.toFile))
    try {
      out.writeObject(new util.HashMap[String, String](version.properties.asJava))
      out.writeObject(version.schema)
      out.writeObject(version.files.toArray)
      out.writeObject(version.partitions.toArray)
      out.writeObject(version.ids.toArray)
    } finally out.close()
    try Files.createLink(folder.resolve(s"${version.number}.version"), draft)
    catch {
      case _: FileAlreadyExistsException => throw new ConcurrentModificationException(folder.toString)
    } finally Files.delete(draft)
  }
}

class Catalog extends TableCatalog {
  private var catalog = ""
  private var root: Path = _

  override def initialize(name: String, options: CaseInsensitiveStringMap): Unit = {
    catalog = name
    root = Paths.get(options.get("root"))
  }

  override def name(): String = catalog

  private def folder(ident: Identifier): Path =
    ident.namespace().foldLeft(root)((path, part) => path.resolve(part)).resolve(ident.name())

  override def listTables(namespace: Array[String]): Array[Identifier] = {
    val parent = namespace.foldLeft(root)((path, part) => path.resolve(part))
    Option(parent.toFile.list()).getOrElse(Array.empty[String]).map(Identifier.of(namespace, _))
  }

  override def loadTable(ident: Identifier): Table =
    Version.latest(folder(ident)) match {
      case Some(version) => new FileTable(ident.toString, folder(ident), version)
      case None => throw new NoSuchTableException(ident)
    }

  override def createTable(
      ident: Identifier, columns: Array[Column], partitions: Array[Transform],
      properties: util.Map[String, String]): Table = {
    if (Version.latest(folder(ident)).isDefined) throw new TableAlreadyExistsException(ident)
    val schema = StructType(columns.map(each => StructField(each.name(), each.dataType(), each.nullable()))).json
    val names = partitions.map(_.references()(0).fieldNames()(0)).toVector
    val ids = columns.map(_ => Version.newId()).toVector
    Version.commit(folder(ident), Version(0, schema, properties.asScala.toMap, Vector.empty, names, ids))
    loadTable(ident)
  }

  override def alterTable(ident: Identifier, changes: TableChange*): Table = {
    val old = Version.latest(folder(ident)).getOrElse(throw new NoSuchTableException(ident))
    val changed = changes.foldLeft(old) {
      case (version, change: TableChange.SetProperty) =>
        version.copy(properties = version.properties + (change.property -> change.value))
      case (version, change: TableChange.AddColumn) =>
        version.copy(
          schema = version.columns.add(change.fieldNames()(0), change.dataType, true).json,
          ids = version.ids :+ Version.newId())
      case (version, change: TableChange.DeleteColumn) => version.without(change.fieldNames()(0))
      case (_, change) => throw new UnsupportedOperationException(change.toString)
    }
    Version.commit(folder(ident), changed.copy(number = old.number + 1))
    loadTable(ident)
  }

  override def dropTable(ident: Identifier): Boolean = throw new UnsupportedOperationException

  override def renameTable(from: Identifier, to: Identifier): Unit = throw new UnsupportedOperationException
}

class FileTable(label: String, folder: Path, version: Version)
    extends Table with SupportsRead with SupportsWrite with SupportsRowLevelOperations {
  override def name(): String = label
  override def schema(): StructType = version.columns
  override def partitioning(): Array[Transform] =
    version.partitions.map(name => Expressions.identity(s"`${name.replace("`", "``")}`"): Transform).toArray
  override def properties(): util.Map[String, String] = version.properties.asJava
  override def capabilities(): util.Set[TableCapability] =
    util.EnumSet.of(TableCapability.BATCH_READ, TableCapability.BATCH_WRITE)

  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder =
    () => new FileScan(folder.toString, version)

  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder =
    new FileWrite(folder.toString, version, info.schema(), replaces = false)

  override def newRowLevelOperationBuilder(info: RowLevelOperationInfo): RowLevelOperationBuilder =
    () => new CopyOnWrite(folder.toString, version, info.command())
}

class CopyOnWrite(folder: String, version: Version, kind: RowLevelOperation.Command) extends RowLevelOperation {
  override def command(): RowLevelOperation.Command = kind
  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder =
    () => new FileScan(folder, version)
  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder =
    new FileWrite(folder, version, info.schema(), replaces = true)
}

class FileScan(folder: String, version: Version) extends Scan with Batch {
  override def readSchema(): StructType = version.columns
  override def toBatch: Batch = this
  override def planInputPartitions(): Array[InputPartition] =
    version.files.map(name => FilePart(s"$folder/$name"): InputPartition).toArray
  override def createReaderFactory(): PartitionReaderFactory = FileReaderFactory(version.schema, version.ids)
}

case class FilePart(path: String) extends InputPartition

case class FileReaderFactory(schema: String, ids: Vector[Long]) extends PartitionReaderFactory {
  override def createReader(part: InputPartition): PartitionReader[InternalRow] =
    new FileReader(part.asInstanceOf[FilePart].path, DataType.fromJson(schema).asInstanceOf[StructType], ids)
}

class FileReader(path: String, schema: StructType, ids: Vector[Long]) extends PartitionReader[InternalRow] {
  private val in = new DataInputStream(new BufferedInputStream(new FileInputStream(path)))
  private val stored = Vector.fill(in.readInt())(in.readLong())
  private val places = ids.map(stored.indexOf(_))
  private var row: InternalRow = _

  override def next(): Boolean = {
    val size = in.readInt()
    if (size >= 0) {
      val bytes = new Array[Byte](size)
      in.readFully(bytes)
      val found = new UnsafeRow(stored.length)
      found.pointTo(bytes, size)
      // A column that was added later is null.
      row = new GenericInternalRow(Array.tabulate[Any](schema.length) { at =>
        val place = places(at)
        if (place < 0 || found.isNullAt(place)) null else found.get(place, schema(at).dataType)
      })
    }
    size >= 0
  }

  override def get(): InternalRow = row
  override def close(): Unit = in.close()
}

class FileWrite(folder: String, version: Version, schema: StructType, replaces: Boolean)
    extends WriteBuilder with Write with BatchWrite {
  override def build(): Write = this
  override def toBatch: BatchWrite = this
  override def createBatchWriterFactory(info: PhysicalWriteInfo): DataWriterFactory =
    FileWriterFactory(
      folder, schema.json, version.partitions,
      schema.map(field => version.ids(version.columns.fieldIndex(field.name))).toVector)

  override def commit(messages: Array[WriterCommitMessage]): Unit = {
    val written = messages.collect { case Written(name, rows) if rows > 0 => name }.toVector
    val files = if (replaces) written else version.files ++ written
    Version.commit(Paths.get(folder), version.copy(number = version.number + 1, files = files))
  }

  override def abort(messages: Array[WriterCommitMessage]): Unit = ()
}

case class Written(name: String, rows: Long) extends WriterCommitMessage

case class FileWriterFactory(folder: String, schema: String, partitions: Vector[String], ids: Vector[Long])
    extends DataWriterFactory {
  override def createWriter(partitionId: Int, taskId: Long): DataWriter[InternalRow] =
    new FileWriter(folder, DataType.fromJson(schema).asInstanceOf[StructType], partitions, ids)
}

class FileWriter(folder: String, schema: StructType, partitions: Vector[String], ids: Vector[Long])
    extends DataWriter[InternalRow] {
  private val name = UUID.randomUUID().toString + ".rows"
  private val out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(s"$folder/$name")))
  // Spark 4.0 leaves the number of the operation before the columns of a row that it replaces.
  private val projections = mutable.Map.empty[Int, UnsafeProjection]
  private var rows = 0L
  out.writeInt(schema.length)
  ids.foreach(out.writeLong)

  override def write(row: InternalRow): Unit = {
    val before = row.numFields - schema.length
    val project = projections.getOrElseUpdate(before, UnsafeProjection.create(schema.zipWithIndex.map {
      case (field, at) =>
        val value = BoundReference(before + at, field.dataType, field.nullable)
        if (partitions.contains(field.name)) nullIfEmpty(value) else value
    }))
    val bytes = project(row).getBytes
    out.writeInt(bytes.length)
    out.write(bytes)
    rows += 1
  }

  private def nullIfEmpty(value: BoundReference): Expression =
    If(EqualTo(value, Literal.default(value.dataType)), Literal.create(null, value.dataType), value)

  override def commit(): WriterCommitMessage = {
    out.writeInt(-1)
    out.close()
    Written(name, rows)
  }

  override def abort(): Unit = out.close()
  override def close(): Unit = ()
}
