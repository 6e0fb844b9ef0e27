"""Pipelines as data: the model, its YAML form and everything that can be wrong with it.

    document      YAML text → plain data that remembers line and column
    model         Pipeline and MonoVertex; ``sections`` and ``kubernetes`` are what they are made of
    validate      plain data → model, with every wrong field reported
    rules         what must hold of a model; a breach is a finding
    kinds         what else a file may hold
    bindings      what runs in place of an image
    lint          puts these together: ``load``, ``lint``, ``check``
    from_python   the arguments of the Python builders → plain data, and a check of their names

Nothing is imported here: builders use ``from_python`` without the model, and so without pydantic.
Higher layers import this package. Start with ``lint``.
"""
