"""Shared by sources with a web server: listening on ports, and storing posts.

Only the HTTP and the serving source import it. Start with ``feed``.
"""
