"""Loaded by the server that jobs are forked from: imports what every job would else import by
itself.

What a module does as it is imported must not end the server: it is said, and each job imports it
again and is told.
"""

import ctypes
import gc
import importlib
import json
import os
import sys
import warnings
from contextlib import suppress

from evalsuite.plugins import find
from evalsuite.reading import look
from evalsuite.run.tree import adopt, outlive_parent

sys.path[:] = json.loads(os.environ.pop("EVALSUITE_PATH", "null")) or sys.path
adopt()  # what a job leaves whose guard was killed, so that the driver finds it here and ends it
for _name in filter(None, os.environ.pop("EVALSUITE_PRELOAD", "").split(",")):
    try:
        importlib.import_module(_name)
    except ImportError:
        pass  # An optional library is missing, say.
    except (Exception, SystemExit) as error:
        print(
            f"evalsuite: {_name} is not loaded ahead: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
with suppress(Exception):  # damaged metadata of some distribution: the job that needs them is told
    find()
look()
# Of each process that it adopted and that ends before the driver finds it, the server would tell
# the user's terminal.
warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")
# A job's collector would go through all that was loaded here, and so copy the pages that jobs
# share.
gc.collect()
gc.freeze()
# Memory that a batch has freed, the next takes again; were it given back to the system, that would
# clear it anew.
_TRIM, _MMAP = -1, -3  # of malloc.h
with suppress(AttributeError):  # another C library than glibc
    _libc = ctypes.CDLL(None)
    _libc.mallopt(_TRIM, 256 << 20)
    _libc.mallopt(_MMAP, 32 << 20)  # more than that is given back at once
# see evalsuite.forked: the thread that began it may end now, and it hears of its program's end
outlive_parent()
