"""The web UI of pipelines, its API, and the endpoints for metrics and health.

The command line and, for ``run(ui=True)``, the builders import it. Start with ``web_ui``.
"""
