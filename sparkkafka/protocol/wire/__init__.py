"""Kafka's primitive types and messages made of them: bytes <-> values, by API version.

Begin with `schema.py`, how a message class describes its fields.
"""
