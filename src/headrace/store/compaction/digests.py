"""Digests of keys: sixteen bytes that stand for a key of any length."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KeyDigest"]

_SIZE = 16
#: BLAKE2b takes no longer key.
_MAX_SECRET = 64


class KeyDigest:
    """Turns keys into digests, by one algorithm and secret.

    Equal digests count as equal keys.  With ``"blake2b"`` nobody who does not know the secret can
    make two keys collide; with ``"md5"`` everybody can.

    Examples
    --------
    >>> KeyDigest("md5", b"").of(b"a").hex()
    '0cc175b9c0f1b6a831c399e269772661'
    >>> KeyDigest("blake2b", b"one").of(b"a") == KeyDigest("blake2b", b"two").of(b"a")
    False
    """

    def __init__(self, algorithm: Literal["blake2b", "md5"], secret: bytes) -> None:
        if len(secret) > _MAX_SECRET:
            secret = hashlib.blake2b(secret).digest()
        self.algorithm = algorithm
        self._empty: hashlib._Hash | hashlib.blake2b
        if algorithm == "blake2b":
            self._empty = hashlib.blake2b(digest_size=_SIZE, key=secret)
            mark = hashlib.blake2b(b"headrace key sidecar", digest_size=8, key=secret).digest()
        else:
            self._empty = hashlib.md5(usedforsecurity=False)
            mark = b"md5".ljust(8, b"\0")
        #: Tells sidecars of this algorithm and secret from all others, without giving it away.
        self.mark = mark

    def of(self, key: bytes) -> bytes:
        """Digest of one key.

        >>> len(KeyDigest("blake2b", b"secret").of(b"key"))
        16
        """
        return self._digests([key])

    def column(self, keys: pa.BinaryArray) -> npt.NDArray[np.uint64]:
        """Digests of many keys, two numbers each; zeros for null.

        >>> import pyarrow as pa
        >>> KeyDigest("md5", b"").column(pa.array([None, b"a"], pa.binary())).tolist()[0]
        [0, 0]
        """
        present = keys.drop_null()
        digests = np.frombuffer(self._digests(present.to_pylist()), "<u8").reshape(-1, 2)
        if len(present) == len(keys):
            return digests
        placed = np.zeros((len(keys), 2), np.uint64)
        placed[keys.is_valid().to_numpy(zero_copy_only=False)] = digests
        return placed

    def _digests(self, keys: list[bytes]) -> bytes:
        copy = self._empty.copy
        digests = bytearray()
        for key in keys:
            one = copy()
            one.update(key)
            digests += one.digest()
        return bytes(digests)
