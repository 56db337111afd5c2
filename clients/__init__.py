"""Flower clients: what runs where the data is.

Importing this package inside Flower's simulation process changes to the folder the package is
in. Ray puts the working directory of that process first on its workers' import path, and the
process inherits it from whoever started the local SuperLink: without the change, workers could
import the packages of another checkout. The original folder is kept in ``FEDFORGET_CWD``, which
relative paths in a configuration refer to. Both apps import it first, and so it keeps
bitsandbytes' warnings out of their logs too.
"""

import os
import sys
from pathlib import Path

from fedforget.progress import quiet_bitsandbytes

quiet_bitsandbytes()
if Path(sys.argv[0]).stem == "flwr-simulation":
    os.environ.setdefault("FEDFORGET_CWD", os.getcwd())
    os.chdir(Path(__file__).resolve().parents[1])
