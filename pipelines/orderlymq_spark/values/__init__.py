"""
Bodies decoded by a schema: JSON, Avro and protobuf as the column `value`, decoding errors as `value_error`.

This package has the Spark types of a schema and the decoding; `source` reads the bodies.
Begin with `decoder`.
"""
