"""Which partition a key goes to, by columns: murmur2 as Java, CRC-32 and FNV-1a as librdkafka.

Begin with `partitioner.py`.
"""
