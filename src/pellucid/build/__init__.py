"""From a recipe to a package, and from a package to what it can do on this device.

The job (this process) reads the recipe and writes the package; the worker (a fresh process without
network, thrown away after) is the only one that reads a model or runs a builder. Qualification runs
every engine in processes of its own too.
"""
