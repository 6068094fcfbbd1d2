# SPDX-License-Identifier: Apache-2.0
"""What each service logs at its start."""

import pytest

from nova_accel import conf
from nova_accel.api import expansion
from nova_accel.compute.state import local_host
from nova_accel.scheduler import filter as scheduler_filter


@pytest.mark.parametrize('start', [
    expansion.install, scheduler_filter.AcceleratorFilter,
    local_host.LocalHost])
def test_option_that_does_not_exist_is_logged_once(
        monkeypatch, tmp_path, caplog, start):
    file = tmp_path / 'nova.conf'
    file.write_text('[nova_accel]\ndevicespec = {}\n')
    monkeypatch.setattr(conf, 'files', lambda _conf: [str(file)])
    monkeypatch.setattr(expansion.get_flavor_by_flavor_id, 'install',
                        lambda: None)
    start()
    assert [(record.levelname, record.getMessage())
            for record in caplog.records] == [(
                'WARNING', f'[nova_accel] devicespec in {file}: there is no '
                'such option, and it is ignored; the nearest option is '
                'device_spec')]
