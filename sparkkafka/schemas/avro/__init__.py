"""Avro: its schemas as Arrow types, datums to columns by NumPy, and columns to datums."""
