"""Follow a page literally, in the current folder: Python in this process, each command by bash.

python follow_page.py PAGE [--network]
"""

import sys
from pathlib import Path
from types import ModuleType

from page_blocks import follow, run_in_shell

if __name__ == "__main__":
    page = Path(sys.argv[1])
    module = ModuleType(f"page_{page.stem}")
    sys.modules[module.__name__] = module  # a class is found by the name of its module
    for block in follow(page, module, network="--network" in sys.argv):
        for command in block.commands:
            run_in_shell(command, block)
