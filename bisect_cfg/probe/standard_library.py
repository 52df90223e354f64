"""The standard library as it was before the script: what the probe uses cannot be taken from it.

Scripts and their libraries put functions of their own in the place of others' (``json.dumps = ...``, a frozen
``time.time``, a faked ``open``, gevent's ``threading``), and some take whole modules away. So the probe's modules use
copies of these modules' names, made when the probe is loaded: ``from .standard_library import json, os``. What a script
is meant to see changed (``os.putenv``, ``sys.excepthook``) is changed in the modules themselves.
"""

import dataclasses
import faulthandler
import functools
import gc
import hashlib
import json
import math
import mmap
import os
import re
import select
import signal
import socket
import sys
import threading
import time
import traceback

__all__ = (
    "_getframe", "dataclasses", "faulthandler", "functools", "gc", "hashlib", "json", "math", "mmap", "open", "os",
    "re", "select", "signal", "socket", "threading", "time", "traceback",
)  # fmt: skip

_getframe, open = sys._getframe, open


def _copy(module):
    copy = type(sys)(module.__name__, module.__doc__)
    vars(copy).update(vars(module))
    return copy


dataclasses, faulthandler, functools, gc, hashlib = map(_copy, (dataclasses, faulthandler, functools, gc, hashlib))
json, math, mmap, os, re, select, signal = map(_copy, (json, math, mmap, os, re, select, signal))
socket, threading, time, traceback = map(_copy, (socket, threading, time, traceback))
json.dumps = json.JSONEncoder().encode  # type: ignore[assignment]  # its own asks one that everybody can exchange
os.path = _copy(os.path)
