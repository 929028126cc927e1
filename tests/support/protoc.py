"""protoc, of grpcio-tools: .proto texts become descriptors and message classes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import Message
from grpc_tools import protoc


def compiled(
    text: str, name: str = "order.proto", imports: Mapping[str, str] | None = None
) -> list[FileDescriptorProto]:
    """The text's descriptor, after those of all that it imports. `imports`: texts by name."""
    with tempfile.TemporaryDirectory() as folder:
        for file, content in {**(imports or {}), name: text}.items():
            Path(folder, file).write_text(content)
        known = Path(protoc.__file__).parent / "_proto"
        command = ["protoc", f"-I{folder}", f"-I{known}", "--include_imports"]
        assert (
            protoc.main([*command, f"--descriptor_set_out={folder}/out", f"{folder}/{name}"]) == 0
        )
        content = Path(folder, "out").read_bytes()
    return list(descriptor_pb2.FileDescriptorSet.FromString(content).file)


def message_class(text: str, message: str) -> type[Message]:
    """The class of a message by its full name, in a pool of its own."""
    pool = descriptor_pool.DescriptorPool()
    for file in compiled(text):
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
