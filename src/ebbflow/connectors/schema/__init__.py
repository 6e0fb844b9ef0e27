"""The kinds of value that a spec is made of: fields, literals, secrets, TLS.

Connectors and ``spec`` import it; it imports nothing but ``domain`` and ``usercode``. Start with
``fields``.
"""
