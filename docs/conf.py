"""How Sphinx builds this documentation; `make docs` treats every warning as an error."""

from importlib.metadata import version as installed_version

project = "asyncdispatch"
author = "The asyncdispatch developers"
copyright = author
version = release = installed_version("asyncdispatch")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"asyncdispatch {version}"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Pages are written for people; the reference is drawn from docstrings, in the order of the source.
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
default_role = "code"
