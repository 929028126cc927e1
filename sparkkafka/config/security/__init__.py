"""Security settings: security.*, ssl.* and sasl.*.

`options.py` is what a user set, `settings.py` what a connection needs. `sasl.py` and `oauth.py`
choose the mechanism and the source of tokens, `java.py` reads what Java's clients write,
`references.py` resolves values that are stored elsewhere.
"""
