"""The types of values in a spec: fields, literals, secrets, TLS.

Connectors and ``spec`` import it; it imports nothing but ``domain`` and ``usercode``. Start with
``fields``.
"""
