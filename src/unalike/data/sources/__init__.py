"""Sources of data sets: registered names, file formats and folder layouts.

Start at `load.py`. `published.py`, `natural.py`, `speech.py`, `amazon.py`, `glyphs.py` and `synthetic.py` hold data sets by name;
`table_files.py`, `arrays.py`, `idx.py`, `cifar.py` and `image_folders.py` read files and folders; `hub.py` fetches from the Hugging
Face hub.
`registry.py` holds the registries and the functions that the readers share.
May import the modules of `unalike.data`.
"""
