# SPDX-License-Identifier: Apache-2.0
"""Nova's test cases for stestr, for one side of the comparison."""

import importlib
import os
import pkgutil
import sys
import types

from tests.suite import side

_PACKAGE = 'nova.tests.functional.libvirt'


def load_tests(loader, _tests, _pattern):
    with_ours = os.environ[side.VARIABLE] == side.OURS
    if not with_ours:
        # Nova loads the module of the entry point. Replace it, so that Nova
        # runs without nova_accel.
        sys.modules['nova_accel.api.extra_specs'] = types.SimpleNamespace(
            register=list)
    # The package monkey-patches. Import nothing of Nova before it.
    package = importlib.import_module(_PACKAGE)
    cases = loader.loadTestsFromNames([
        f'{_PACKAGE}.{module.name}'
        for module in pkgutil.iter_modules(package.__path__)
        if module.name.startswith('test_')])
    from tests.suite import harness
    harness.prepare()
    if with_ours:
        from tests.suite import ours
        harness.configure(ours.nova_conf)
        ours.replace_driver()
    return cases
