"""Everything that touches the user's code: calling it, its contract, its columns, its prints.

It runs on workers. It does not decide about messages: ``engine``, which it imports, does. Start
with ``calling``.
"""
