"""The library's Producer: records by topic, then batches by partition, then requests.

Begin with `producer.py`.
"""
