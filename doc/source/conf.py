# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration: ``tox -e docs``."""

import importlib.metadata
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from nova_accel import novas

project = 'nova-accel'
extensions = ['openstackdocstheme', 'oslo_config.sphinxext',
              'reno.sphinxext']
html_theme = 'openstackdocs'
html_theme_options = {'display_badge': False, 'display_toc': True}
openstackdocs_auto_name = False
# Left alone, the theme makes one up from the number of commits.
openstackdocs_auto_version = False
version = release = importlib.metadata.version('nova-accel')
# The Novas that are tested.
rst_epilog = f'.. |novas| replace:: {novas.text()}'
