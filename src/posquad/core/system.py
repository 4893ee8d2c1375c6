"""Machine, versions and time of a computation."""

from __future__ import annotations

import os
import platform
import time
from typing import Any

import numpy as np
import scipy

from posquad._version import __version__

__all__ = ["now", "system_information"]


def system_information() -> dict[str, Any]:
    """Versions and hardware that a result may depend on.

    >>> sorted(system_information())[:3]
    ['cores', 'devices', 'machine']
    """
    import torch  # `now` does not need it

    count = torch.cuda.device_count()
    return {
        "posquad": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(k) for k in range(count)],
    }


def now() -> str:
    """Current date and time in UTC, to the second, in ISO format.

    >>> len(now()), now()[-1]
    (20, 'Z')
    """
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
