"""Sphinx configuration; `make docs` builds with every warning an error."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "replog"
author = "the replog authors"
project_copyright = f"%Y, {author}"
found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
assert found, "pyproject.toml has no version"
version = release = found[1]

extensions = ["myst_parser", "sphinx_copybutton", "state_diagrams"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"replog {release}"
html_static_path = ["_static"]
html_css_files = ["replog.css"]
html_favicon = "_static/replog.svg"
html_last_updated_fmt = None  # a build of the same text is the same, whenever it is made
html_theme_options = {
    "light_logo": "replog.svg",
    "dark_logo": "replog.svg",
    "light_css_variables": {"color-brand-primary": "#0b6e69", "color-brand-content": "#0b6e69"},
    "dark_css_variables": {"color-brand-primary": "#4fd1c5", "color-brand-content": "#4fd1c5"},
    "top_of_page_buttons": [],
}
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = False
