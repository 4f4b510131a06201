"""Keeping the memory of one round for the next."""

import ctypes

# Numbers of the parameters in glibc's malloc.h, and what they are set to here.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEEP_ALL = 2**31 - 1
_GROW_BY = 64 * 2**20
_LARGEST_KEPT = 32 * 2**20  # glibc takes no more


def keep_memory() -> bool:
    """Tells the C library to keep freed memory instead of returning it.

    A round frees tensors of the model's size and asks for as many again. Handed back to
    the system in between, each of their pages costs a fault and a clearing when it is
    touched next, which takes longer than the arithmetic on it. The process's memory
    stays at its peak.

    Returns:
      Whether it worked; False where the C library is not glibc.

    Example:
      >>> keep_memory()  # doctest: +SKIP
      True
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = (
        (_MMAP_THRESHOLD, _LARGEST_KEPT),
        (_TRIM_THRESHOLD, _KEEP_ALL),
        (_TOP_PAD, _GROW_BY),
    )
    return all([library.mallopt(name, value) == 1 for name, value in settings])
