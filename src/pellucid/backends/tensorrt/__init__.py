"""TensorRT-RTX: builds engines for NVIDIA GPUs on any machine, no GPU needed.

NVIDIA's library is an extra and never part of this project; its terms are the user's to read.
"""
