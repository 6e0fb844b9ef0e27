"""The command ``ebbflow``: one module a command."""
