"""The rules that a model must keep, one module per subject. A violation is a finding.

vertices   a vertex or MonoVertex: its source, udf and sink, their user code and their retries,
           steps that work on whole batches, and fields that the runtime does not support yet
graph      edges, the conditions on them, and the graph that they make
serving    sinks that answer, their store, and pipelines that answer requests
functions  user code that is missing, or cannot be called as its place requires

Only ``lint`` imports it. Start with ``vertices``.
"""
