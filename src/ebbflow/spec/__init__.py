"""Pipelines as data: the model, its YAML form and everything that can be wrong with it.

    document   YAML text → plain data that remembers line and column
    model      Pipeline and MonoVertex; sections, fields, kubernetes   what they are made of
    validate   plain data → model, with every wrong field reported
    vertices, graph, monovertex, steps, support   rules about a model
    lint       puts these together: ``load``, ``lint``, ``check``
    words, parts   what the Python builders need
    targets    ``module:attribute`` → user code

Nothing is imported here, so that Spark's workers and the builders can use the last two lines
without the rest.
"""
