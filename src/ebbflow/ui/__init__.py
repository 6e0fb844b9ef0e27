"""The web UI of pipelines, its API, and the endpoints for metrics and health."""
