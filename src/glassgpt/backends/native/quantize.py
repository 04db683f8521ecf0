"""Quantization by the compiled engine, for files."""

from __future__ import annotations

import numpy as np

from glassgpt.backends.native.library import floats_at, load_library
from glassgpt.backends.native.threads import thread_count


def quantize_int4(rows: np.ndarray, panels: np.ndarray) -> None:
    """Fill zeroed panels (cpp/layout.h) with float32 rows, (out, in), perhaps a transposed view."""
    library = load_library()
    assert rows.dtype == np.float32
    assert panels.flags.c_contiguous
    strides = (stride // 4 for stride in rows.strides)
    library.check_result(
        library.quantize_int4(
            *rows.shape, floats_at(rows), *strides, panels.ctypes.data, panels.nbytes, thread_count()
        )
    )
