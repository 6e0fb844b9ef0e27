"""The serving source and its sink: requests over HTTP, and their answers.

The registry of connectors loads ``spec``; code that shows requests and answers imports the rest.
Start with ``book``, which knows every open request.
"""
