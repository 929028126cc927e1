"""The library's Producer: records by topic (`SendBuffer`), then batches by partition
(`RecordAccumulator`), then requests (`Sender`).

Begin with `producer.py`.
"""
