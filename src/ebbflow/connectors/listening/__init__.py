"""What sources with a web server share: where they listen, and how posts are stored.

The HTTP and the serving source import it, and nothing else does. Start with ``feed``.
"""
