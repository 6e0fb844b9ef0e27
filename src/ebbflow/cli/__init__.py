"""The command ``ebbflow``: one module a command.

It may import every other package, and no package imports it. Start with ``main``.
"""
