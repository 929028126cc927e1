"""Security settings: security.*, ssl.* and sasl.*.

`options.py` is what a user set, `settings.py` what a connection needs. `sasl.py` chooses the
mechanism, the user and the source of tokens, `java.py` reads what Java's clients write,
`references.py` resolves values that are stored elsewhere.
"""
