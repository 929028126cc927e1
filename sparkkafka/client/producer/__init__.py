"""The library's Producer: records of any thread become chunks, then batches of a sender.

Begin with `producer.py`.
"""
