"""Sphinx configuration; `make docs` builds with every warning an error."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(Path(__file__).parent / "_extensions"), str(ROOT / "src")]

project = "replog"
author = "the replog authors"
found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
assert found, "pyproject.toml has no version"
version = release = found[1]
project_copyright = f"%Y, {author}; Apache License 2.0; version {version}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "docstrings", "state_diagrams"]

# Docstrings are plain text with `code` in single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # as they are written: os.environ is not for everybody
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures: of Python, of trio, and names that are not public

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
pygments_style = "tango"
pygments_dark_style = "github-dark"
html_show_sphinx = False
html_theme_options = {
    "light_logo": "replog.svg",
    "dark_logo": "replog.svg",
    "light_css_variables": {"color-brand-primary": "#0b6e69", "color-brand-content": "#0b6e69"},
    "dark_css_variables": {"color-brand-primary": "#4fd1c5", "color-brand-content": "#4fd1c5"},
    "top_of_page_buttons": [],
}
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = False
