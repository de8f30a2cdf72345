"""
Bodies by a schema: JSON, Avro and protobuf as the column `value`, and why a body is none as `value_error`.

Spark's types of a schema and the decoding live here; where bodies come from lives in `source`.
Begin with `decoder`.
"""
