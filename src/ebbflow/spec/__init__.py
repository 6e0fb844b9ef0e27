"""Pipelines as data: the model, its YAML form and everything that can be wrong with it.

    document   YAML text → plain data that remembers line and column
    model      the Pipeline itself, field by field
    validate   plain data → model, with every wrong field reported
    vertices, graph, support   rules about a model
    lint       puts these together: ``load``, ``lint``, ``check``
    targets    ``module:attribute`` → user code

Nothing is imported here, so that Spark's workers can use ``targets`` without the rest.
"""
