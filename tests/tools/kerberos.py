"""`make kerberos` runs tests/kerberos with the package gssapi, in a folder of its own in .cache.

gssapi is not among the tools of .venv, because its build needs the system's Kerberos library.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.tools.compat import ROOT, python_with


def main() -> int:
    python = str(python_with("kerberos", "gssapi==1.12.0", "decorator==5.3.1"))
    environment = {**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "tests/kerberos"]
    return subprocess.run(command, cwd=ROOT, env=environment, timeout=1200).returncode


if __name__ == "__main__":
    sys.exit(main())
