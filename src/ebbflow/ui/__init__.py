"""The web UI of pipelines, its API, and the endpoints for metrics and health.

The command line imports it, and builders do for ``run(ui=True)``. Start with ``web_ui``.
"""
