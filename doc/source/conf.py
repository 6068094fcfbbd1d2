# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration: ``tox -e docs``."""

import importlib.metadata
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from nova_accel import novas

project = 'nova-accel'
extensions = ['oslo_config.sphinxext', 'reno.sphinxext', 'sphinx.ext.autodoc']
autodoc_default_options = {'members': True, 'imported-members': True}
autodoc_typehints_format = 'short'
# For light and dark, wide and narrow screens, and nobody's brand.
html_theme = 'furo'
html_title = project
html_copy_source = False
# Prompts are no comments.
highlight_language = 'console'
version = release = importlib.metadata.version('nova-accel').partition('+')[0]
# The Novas that are tested.
rst_epilog = f'.. |novas| replace:: {novas.text()}'
