"""The kinds of value that a spec is made of: fields, literals, secrets, TLS."""
