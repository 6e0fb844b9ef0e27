"""A small web server on asyncio: for sources that take requests in, and for the web UI."""
