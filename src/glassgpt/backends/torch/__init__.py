"""model/gpt2.py behind the backend protocol, on any device.

Read in this order: backend.py; fast_path.py (which models the faster ways are for), decode.py, cuda_graphs.py
with triton_kernels.py (one token at a time), scoring.py with scoring_batches.py (many texts), threads.py and
openmp.py (CPUs).
"""
