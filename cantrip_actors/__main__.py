"""`python -m cantrip_actors` is the command `cantrip`, of this interpreter's environment."""

import sys

from cantrip_actors.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
