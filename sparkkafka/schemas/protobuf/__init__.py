"""Protobuf: .proto text without a system protoc, messages to columns, and columns to messages.

Begin with `format.py`, the interface. `compiler.py` compiles a schema's text to descriptors, and
`plan.py` decides which field is read or written as which of the `types.py`.

`decode.py` reads: `wire.py` finds the fields of many messages at once, and `normalizer.py` rewrites
messages that need protobuf's own runtime. `encode.py` writes messages, and `types.py` the
.proto of an Arrow type.
"""
