"""Real brokers for tests: find Java, fetch the jars, start and stop.

Begin with `cluster.py`.
"""
