"""The same model for CPUs, in C++: float32 to int4, no torch needed.

Read cpp/layout.h (how weights lie in memory), cpp/kernels_impl.h (every kernel, once for all instruction
sets), cpp/engine.cpp (the forward pass), then weights.py, cache.py and backend.py, which implements the
protocol of `glassgpt.backends.protocol`. build.py compiles it; library.py loads what was compiled.
"""

from glassgpt.backends.native.backend import NativeBackend, is_available, why_unavailable
from glassgpt.backends.native.weights import why_not

__all__ = ["NativeBackend", "is_available", "why_not", "why_unavailable"]
