"""The command line: one file a verb, one row each in ``cli.main``."""

INTERRUPTED = 130  # precedent: what a shell says of a command that Ctrl-C ended
