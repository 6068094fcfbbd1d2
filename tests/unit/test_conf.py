# SPDX-License-Identifier: Apache-2.0
"""Our options, and Nova's options that claim devices."""

import pathlib
import re

from oslo_config import cfg
from oslo_config import generator
from oslo_privsep import capabilities
from oslo_privsep import priv_context
import pytest

from nova_accel import conf
from nova_accel import nova_claims
from nova_accel.core import model
from nova_accel.host import privileged
from nova_accel.host import reader
from tests.unit import build

_GPU = build.function('0000:81:00.0', '10de:2330',
                      mdev_types=(model.MdevType('nvidia-474'),
                                  model.MdevType('nvidia-475')))


@pytest.fixture
def configured(tmp_path):
    """Return a function that parses the text of a nova.conf."""
    def make(text=''):
        path = tmp_path / 'nova.conf'
        path.write_text(text)
        configuration = cfg.ConfigOpts()
        configuration(['--config-file', str(path)], project='nova')
        return configuration
    return make


def test_defaults_offer_no_devices(configured):
    configuration = configured()
    conf.register_opts(configuration)
    conf.register_opts(configuration)
    assert configuration.nova_accel.device_spec == []
    assert configuration.nova_accel.profile_dirs == [
        '/etc/nova/device_profiles.d']
    assert configuration.nova_accel.sysfs_root == '/sys'
    assert configuration.nova_accel.link_domains == ''


def test_device_spec_can_be_given_several_times(configured):
    configuration = configured('[nova_accel]\n'
                               'device_spec = {"vendor_id": "10de"}\n'
                               'device_spec = {"vendor_id": "8086"}\n')
    conf.register_opts(configuration)
    assert configuration.nova_accel.device_spec == [
        '{"vendor_id": "10de"}', '{"vendor_id": "8086"}']


def test_options_of_nova_compute_are_read_again(configured, tmp_path):
    """As Nova's services do it when they get SIGHUP."""
    configuration = configured('[nova_accel]\ncheck_interval = 60\n')
    conf.register_opts(configuration)
    (tmp_path / 'nova.conf').write_text(
        '[nova_accel]\ndevice_spec = {"vendor_id": "10de"}\n'
        'sysfs_root = /elsewhere\n')
    configuration.mutate_config_files()
    assert configuration.nova_accel.device_spec == ['{"vendor_id": "10de"}']
    assert configuration.nova_accel.check_interval == 600
    assert configuration.nova_accel.sysfs_root == '/sys'


_MISSPELT = '[nova_accel]\ndevicespec = {}\n'


@pytest.mark.parametrize('names, arguments', [
    (['b.conf', 'x/a.conf'], ['--config-file', 'b.conf', '--config-dir',
                              'x']),
    (['nova.conf', 'x/a.conf', 'y/c.conf'], ['--config-dir', 'x',
                                             '--config-dir', 'y']),
    (['nova.conf', 'nova.conf.d/b.conf'], []),
    ([], ['--config-file', 'other']),
])
def test_unknown_options_are_those_of_all_files_that_are_read(
        tmp_path, monkeypatch, names, arguments):
    monkeypatch.chdir(tmp_path)
    for name in (*names, 'x/read.me', 'other'):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(_MISSPELT if name in names else '')
    configuration = cfg.ConfigOpts()
    configuration(arguments, project='nova',
                  default_config_files=['nova.conf'],
                  default_config_dirs=['nova.conf.d', 'missing'])
    conf.register_opts(configuration)
    assert [error.thing for error in conf.unknown(configuration)] == [
        f'[nova_accel] devicespec in {name}' for name in names]


def test_registered_options_and_their_old_names_are_known(configured):
    configuration = configured(
        '[nova_accel]\nprofile_dirs = x\nof_a_plugin = 1\nold = 2\n'
        '[nova_accel_privileged]\nuser = nova\nnobody = x\n'
        '[placement]\nx = 1\n')
    conf.register_opts(configuration)
    configuration.register_opt(cfg.StrOpt('of_a_plugin'), 'nova_accel')
    option = cfg.StrOpt('new', deprecated_name='old')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conf, 'OPTIONS', [*conf.OPTIONS, option])
        [error] = conf.unknown(configuration)
    assert error.thing.startswith('[nova_accel_privileged] nobody in ')


def test_a_program_without_configuration_has_no_unknown_options():
    assert [*conf.unknown(cfg.ConfigOpts())] == []


def test_example_of_device_spec_is_valid():
    text = next(option.help for option in conf.OPTIONS
                if option.name == 'device_spec')
    examples = re.findall('^    device_spec = (.*)$', text, re.M)
    entries, problems = reader.parse(examples)
    assert problems == []
    assert [entry.resource_class for entry in entries] == ['CUSTOM_GPU']


def test_privileged_options_match_the_privsep_contexts():
    _ours, *groups = conf.list_opts()
    for (group, options), context in zip(groups, privileged.CONTEXTS,
                                         strict=True):
        assert group.name == context.cfg_section
        assert {option.name for option in options} == {
            option.name for option in priv_context.OPTS}
        assert context.conf.capabilities == [
            capabilities.CAPS_BYNAME[name]
            for name in conf.CAPABILITIES[group.name]]


def test_listing_options_does_not_change_oslo_privsep():
    conf.list_opts()
    assert not any(option.name == 'capabilities' and option.sample_default
                   for option in priv_context.OPTS)


def test_sample_is_current(tmp_path):
    written = tmp_path / 'sample'
    root = pathlib.Path(__file__).parents[2] / 'etc' / 'nova_accel'
    generator.main(['--config-file', str(root / 'config-generator.conf'),
                    '--output-file', str(written)])
    assert written.read_text() == (
        root / 'nova_accel.conf.sample').read_text()


def _claims(configuration):
    nova_claims.register_opts(configuration)
    return nova_claims.claims(configuration)


def test_novas_device_spec_is_a_claim(configured):
    [claim] = _claims(configured(
        '[pci]\ndevice_spec = {"vendor_id": "10de", '
        '"physical_network": "net1"}\n'))
    assert claim.label == '[pci] device_spec #1'
    assert claim.matches(_GPU)


@pytest.mark.parametrize('text', [
    '[pci]\npassthrough_whitelist = {"vendor_id": "10de"}\n',
    '[DEFAULT]\npci_passthrough_whitelist = {"vendor_id": "10de"}\n'])
def test_deprecated_names_of_device_spec_are_a_claim(configured, text):
    [claim] = _claims(configured(text))
    assert claim.label == '[pci] device_spec #1'
    assert claim.matches(_GPU)


@pytest.mark.parametrize('text, matches', [
    ('enabled_mdev_types = nvidia-474', True),
    ('enabled_mdev_types = nvidia-1', False),
    ('enabled_mdev_types = nvidia-474\n[mdev_nvidia-474]\n'
     'device_addresses = 0000:81:00.0,0000:82:00.0', True),
    ('enabled_mdev_types = nvidia-474\n[mdev_nvidia-474]\n'
     'device_addresses = 0000:82:00.0', False),
    # By their deprecated names.
    ('enabled_vgpu_types = nvidia-474', True),
    ('enabled_vgpu_types = nvidia-474\n[vgpu_nvidia-474]\n'
     'device_addresses = 0000:82:00.0', False),
    ('enabled_mdev_types = nvidia-1\n[vgpu_nvidia-1]\n'
     'device_addresses = 0000:81:00.0', True),
])
def test_enabled_mdev_type_is_a_claim(configured, text, matches):
    [claim] = _claims(configured(f'[devices]\n{text}\n'))
    assert claim.label.startswith('[devices] enabled_mdev_types nvidia-')
    assert claim.matches(_GPU) is matches


def test_nova_without_device_options_claims_nothing(configured):
    assert _claims(configured()) == []


def test_claimed_device_is_refused(configured):
    claims = _claims(configured(
        '[devices]\nenabled_mdev_types = nvidia-475\n'))
    host = build.host([_GPU], {}, foreign=claims)
    assert host.devices == ()
    assert '[devices] enabled_mdev_types nvidia-475' in build.refusals(host)[
        '0000:81:00.0']
