"""Configuration of the documentation site; `make docs` builds it with warnings as errors."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path

# One thread, read when NumPy and torch are first imported: examples and figures are small.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

HERE = Path(__file__).parent
ROOT = Path(find_spec("posquad").origin).parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE)]

project = "posquad"
author = "The posquad developers"
project_copyright = "the posquad developers, BSD-3-Clause"
version = release = installed_version("posquad")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "sphinx_design",
    "sphinx_copybutton",
    "mathml",
    "drawing",
    "reference",
    "labelmap",
    "statustable",
]
exclude_patterns = ["_build", "gallery", "figures", "_extensions", "api/generated", "images"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

# Every cross-reference to posquad must resolve, except to the types of modules that offer no public
# names; those to torch and NumPy have no page here.
HELPERS = [
    ".".join(("posquad", *path.relative_to(ROOT).with_suffix("").parts))
    for path in ROOT.rglob("*.py")
    if path.stem != "__init__" and "__all__" not in path.read_text(encoding="utf-8")
]
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!posquad\.).*"),
    (r"py:.*", r"posquad\.(.*\.)?_.*"),
    *(("py:class", re.escape(name) + r"\.\w+") for name in HELPERS),
]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
myst_dmath_double_inline = True

html_math_renderer = "mathml"

autosummary_generate = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 92
add_module_names = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Fields", "params_style")]
toc_object_entries_show_parents = "hide"

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"[/\\]plot_",
    "backreferences_dir": "api/generated",
    "doc_module": ("posquad",),
    "reference_url": {"posquad": None},
    "abort_on_example_error": True,
    "show_memory": False,
    "min_reported_time": 10,
    "download_all_examples": False,
    "remove_config_comments": True,
    "image_scrapers": ("matplotlib",),
    "reset_modules": ("matplotlib", "house.reset"),
    "matplotlib_animations": False,
    "show_signature": False,
    "write_computation_times": False,  # its table is sorted by a script from the network
}
if "POSQUAD_DOCS_PLOTS" in os.environ:  # 0: build the text without running the examples
    plot_gallery = os.environ["POSQUAD_DOCS_PLOTS"]

html_theme = "pydata_sphinx_theme"
html_title = "posquad"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_extra_path = [str(ROOT / "report" / "explorer.html")]  # the page of `posquad explore`
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "posquad"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 8,
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
# Pages that are alone in their section have nothing to navigate.
ALONE = (
    "index",
    "start",
    "before-you-fit",
    "guide",
    "command-line",
    "explore",
    "which-function",
    "changelog",
    "search",
    "genindex",
)
# Examples give that room to their code.
html_sidebars = {name: [] for name in (*ALONE, "auto_gallery/plot_*")}
