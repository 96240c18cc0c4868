"""Connections, which all objects with the same options share within a process."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Dict, Tuple, TypedDict

from ._skilld import Client

if TYPE_CHECKING:
    from typing_extensions import Unpack
elif sys.version_info >= (3, 11):
    from typing import Unpack
else:

    class Unpack:
        """Stands in for the class of ``typing``, so that annotations can be evaluated."""

        def __class_getitem__(cls, item: Any) -> Any:
            return item


_NAMES = ("endpoint", "token", "token_file", "ca_file", "cert_file", "key_file", "tenant")
_VARIABLES = tuple(f"SKILLD_{name.upper()}" for name in _NAMES)
_SHARED_MAX = 64
_shared: Dict[Tuple, Client] = {}


class ConnectionOptions(TypedDict, total=False):
    """Options of a connection. Those that are missing come from the variables ``SKILLD_ENDPOINT`` and so on."""

    endpoint: str
    """``unix:/path``, ``https://host:port`` or ``http://127.0.0.1:port``."""
    token: str
    token_file: str
    """File with the token, which is read again after it changed."""
    ca_file: str
    """PEM file with the authorities that sign the server's certificate."""
    cert_file: str
    key_file: str
    tenant: str
    """Tenant that calls mean; only admins may name another one than their own."""


def connect(blocking: bool, options: ConnectionOptions) -> Client:
    """Returns the connection with these options; it is made by its first call."""
    unknown = options.keys() - set(_NAMES)
    if unknown:
        raise TypeError(f"unexpected keyword argument {sorted(unknown)[0]!r}")
    values: Dict[str, Any] = dict(options)
    given = tuple(values.get(name) for name in _NAMES)
    key = (os.getpid(), blocking, given, tuple(map(os.environ.get, _VARIABLES)))
    client = _shared.get(key)
    if client is None:
        client = Client(blocking, *given)
        while len(_shared) >= _SHARED_MAX:
            _shared.pop(next(iter(_shared)), None)
        client = _shared.setdefault(key, client)
    return client
