"""Everything that touches the user's code: calling it, its contract, its columns, its prints.

It runs on workers. It decides nothing about messages: that is ``engine``, which it imports. Start
with ``calling``.
"""
