"""The command line: one file a verb, one row each in ``cli.main``."""
