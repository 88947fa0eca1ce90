"""``python -m pellucid``."""

from pellucid.cli.main import main

main()
