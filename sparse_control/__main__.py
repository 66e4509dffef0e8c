"""`python -m sparse_control`."""

import sys

from sparse_control.cli import main

sys.exit(main())
