"""Where data sets come from: names, files and folders."""
