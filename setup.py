# SPDX-License-Identifier: Apache-2.0
"""The packages; all else is in setup.cfg.

A list of packages cannot be found and added to in setup.cfg, and the driver's
module is installed below Nova's (see package_dir there).
"""

import setuptools

setuptools.setup(packages=[
    *setuptools.find_packages(include=['nova_accel', 'nova_accel.*'],
                              exclude=['nova_accel.shim']),
    'nova.virt.accel'])
