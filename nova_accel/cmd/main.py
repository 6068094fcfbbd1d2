# SPDX-License-Identifier: Apache-2.0
"""The command ``nova-accel``: look at a host, look at profiles.

It reads nova.conf where there is one, and needs neither Nova nor a service;
only ``host check`` asks Placement and libvirt.
"""

import argparse
import io
import logging
import os
import sys

from oslo_config import cfg

from nova_accel import conf
from nova_accel import nova_claims
from nova_accel.cmd import host
from nova_accel.cmd import profile
from nova_accel.core import errors


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    :param argv: arguments, default those of the process
    :returns: 0, or 1 where what was asked for is not there or not right; a
        verb can have its own code for not being able to tell
    """
    arguments = _parser().parse_args(argv)
    # What services log, this command prints.
    logging.getLogger('nova_accel').addHandler(logging.NullHandler())
    # That a terminal has no sign for a line is no reason to draw nothing.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='replace')
    try:
        return arguments.run(arguments, _configuration(arguments))
    except (errors.AccelError, cfg.Error, OSError) as error:
        print(f'nova-accel: {error}', file=sys.stderr)
        return arguments.failed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        'nova-accel', description='Accelerators for OpenStack Nova: what a '
        'host offers, and what profiles ask for.')
    parser.set_defaults(failed=1, service=None)
    parser.add_argument(
        '--config-file', action='append', metavar='FILE',
        help='nova.conf to read; can be repeated (default: where Nova\'s is)')
    parser.add_argument('--config-dir', action='append', metavar='DIR',
                        help='directory of *.conf files to read')
    topics = parser.add_subparsers(title='topics', required=True,
                                   metavar='host|profile')
    host.add_parser(topics)
    profile.add_parser(topics)
    return parser


def _configuration(arguments: argparse.Namespace) -> cfg.ConfigOpts:
    configuration = cfg.ConfigOpts()
    conf.register_opts(configuration)
    for directory in arguments.config_dir or ():
        # oslo.config minds this only on a command line of its own.
        if not os.path.isdir(directory):
            raise cfg.ConfigDirNotFoundError(directory)
    try:
        configuration(
            [], project='nova', prog=arguments.service or 'nova-accel',
            # None lets oslo.config look in the usual places.
            default_config_files=arguments.config_file,
            default_config_dirs=arguments.config_dir)
    except UnicodeDecodeError as error:
        raise errors.AccelError(
            'nova.conf', f'cannot be read as text ({error})') from None
    nova_claims.register_opts(configuration)
    return configuration


if __name__ == '__main__':
    sys.exit(main())
