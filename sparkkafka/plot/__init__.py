"""Plots for people who run streams, with matplotlib (the extra `plot`).

    sparkkafka.plot.lag(query)                     the lag of a query over time
    sparkkafka.plot.throughput(query)              its rows per second over time
    sparkkafka.plot.partitions("orders", options)  records, bytes and keys of each partition
    sparkkafka.plot.style(dark=True)               the style of this project, for your own plots

Each plot draws into `ax`, if it is given, else into a new figure of pyplot, in the current style.
"""

from sparkkafka.plot.canvas import style
from sparkkafka.plot.skew import partitions
from sparkkafka.plot.streams import lag, throughput

__all__ = ["lag", "partitions", "style", "throughput"]
