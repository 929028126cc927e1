"""Protobuf: .proto text without a system protoc, messages to columns, and columns to messages.

Begin with `format.py`: what others call. A schema's text becomes descriptors (`compiler.py`,
`descriptors.py`), and these a `plan.py`: which field is read or written, as which of `types.py`.

Reading: `tokens.py` finds the fields of all messages at once (`wire.py`), `columns.py` makes
columns of them. What is not plain goes through protobuf's own runtime first (`normal.py`).
Writing: `encode.py` puts together what `inputs.py` makes of columns; `text.py` writes a .proto.
"""
