"""``python -m ebbflow``: the same as the command ``ebbflow``."""

from ebbflow.cli.main import main

main()
