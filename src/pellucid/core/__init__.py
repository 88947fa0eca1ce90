"""The truth, pure: bytes in, values out.

Nothing here uses a clock, a file, a socket, a thread, randomness, a logger or numpy. Tensors are
bytes, so that the base install can verify everything.
"""
