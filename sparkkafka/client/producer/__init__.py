"""The library's Producer: records from any thread -> chunks -> the sender, and their futures.

Begin with `producer.py`.
"""
