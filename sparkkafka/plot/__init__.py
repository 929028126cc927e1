"""Pictures by matplotlib (the extra `plot`) for people who run streams.

    sparkkafka.plot.lag(query)                     how far it is behind, over time
    sparkkafka.plot.throughput(query)              rows a second, over time
    sparkkafka.plot.partitions("orders", options)  what is in which partition; also of a DataFrame

Each draws into `ax` if that is given, else into a new figure of pyplot's, in the style that is set.
"""

from sparkkafka.plot.skew import partitions
from sparkkafka.plot.streams import lag, throughput

__all__ = ["lag", "partitions", "throughput"]
