"""``python -m pellucid``."""

from pellucid.cli.start import main

main()
