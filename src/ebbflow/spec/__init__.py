"""Pipelines as data: the model, its YAML form and everything that can be wrong with it.

    document      YAML text → plain data that remembers line and column
    model         Pipeline and MonoVertex; ``sections`` and ``kubernetes`` are what they are made of
    validate      plain data → model, with every wrong field reported
    rules         the rules that a model must keep; a violation is a finding
    kinds         the kinds of document that a file may hold
    bindings      the code or program that runs instead of an image
    lint          puts these together: ``load``, ``lint``, ``check``
    from_python   the arguments of the Python builders → plain data, and a check of their names

Nothing is imported here: builders use ``from_python`` without the model, and so without pydantic.
Higher layers import this package. Start with ``lint``.
"""
