"""Sphinx configuration; `make docs` builds with every warning an error."""

project = "replog"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_theme = "alabaster"
html_title = "replog"
