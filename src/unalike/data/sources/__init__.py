"""Sources of data sets: registered names, file formats and folder layouts.

Start at `load.py`. `published.py`, `natural.py`, `natural_arrays.py`, `speech.py`, `amazon.py` and `synthetic.py` hold data sets by
name; `table_files.py`, `arrays.py`, `idx.py`, `cifar.py` and `image_folders.py` read files and folders; `hub.py` fetches from the
Hugging Face hub.
`registry.py` holds the registries and the functions that the readers share.
Importing this package imports all its modules, so that a new reader needs no entry in a list. They are imported in alphabetical
order: where several files fit a name, the format that was registered first is read.
May import the modules of `unalike.data`.
"""

from unalike._utils.registry import import_with_modules

import_with_modules(__name__)
