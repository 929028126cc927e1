"""The library's Producer: records of any thread become record_sets, then batches of a sender.

Begin with `producer.py`.
"""
