"""Free memory between what is in use, filled before a process forks.

The library that hands memory out gives such holes away first.  They lie on pages that all forks
share, so each of them would get a copy of a page for a few bytes: 3 MB in a task's host.
"""

from __future__ import annotations

import ctypes
import platform

__all__ = ["fill_holes"]

#: Bytes of the largest and of the smallest pieces that holes are filled with.
_LARGEST, _SMALLEST = 1 << 16, 24
_SMALLER = 0.8
#: No more than this is taken.
_MOST = 64 << 20


def fill_holes() -> None:
    """Take all free memory below the end of the heap, and never give it back.

    It does nothing where the C library is another one than glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    libc.malloc.argtypes, libc.sbrk.argtypes = [ctypes.c_size_t], [ctypes.c_ssize_t]
    # Small pieces that were given back are put together first.
    libc.malloc_trim(0)
    size, taken = _LARGEST, 0
    while size >= _SMALLEST and taken < _MOST:
        end = libc.sbrk(0)
        # The heap grows when no hole of this size is left.
        while libc.malloc(size) and libc.sbrk(0) == end and taken < _MOST:
            taken += size
        size = int(size * _SMALLER)
