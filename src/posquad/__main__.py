"""`python -m posquad`: what is installed here, in a form to paste into a bug report."""

import platform

import numpy
import scipy
import torch

from posquad import __version__


def main() -> None:
    """Print the versions that results depend on."""
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    print(f"posquad {__version__}: positive quadratic networks f_U(x) = x'UU'x")
    print(f"  python {platform.python_version()} on {platform.system()} {platform.machine()}")
    print(f"  torch {torch.__version__}, numpy {numpy.__version__}, scipy {scipy.__version__}")
    print(f"  devices: cpu ({torch.get_num_threads()} threads){''.join(', ' + d for d in devices)}")


if __name__ == "__main__":
    main()
