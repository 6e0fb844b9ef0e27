"""The command ``ebbflow``, with one module per command.

It may import every other package, and no package imports it. Start with ``main``.
"""
