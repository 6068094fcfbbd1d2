# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration: ``tox -e docs``."""

project = 'nova-accel'
extensions = ['openstackdocstheme', 'oslo_config.sphinxext',
              'reno.sphinxext']
html_theme = 'openstackdocs'
html_theme_options = {'display_badge': False, 'display_toc': True}
openstackdocs_auto_name = False
