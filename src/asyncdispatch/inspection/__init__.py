"""Looking inside a running dispatcher over HTTP: metrics, health, and a page of the queue. Needs aiohttp.

`Dispatcher.dump()` gives the same as JSON without any of this; `REASONS` says what its reasons mean.
"""

from asyncdispatch._dumping import SCHEMA_VERSION, dump
from asyncdispatch._reasons import REASONS
from asyncdispatch.inspection.app import debug_app

__all__ = ["REASONS", "SCHEMA_VERSION", "debug_app", "dump"]
