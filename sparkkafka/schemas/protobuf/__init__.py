"""Protobuf: .proto text without protoc, messages to columns, and columns to messages."""
