# SPDX-License-Identifier: Apache-2.0
"""The command ``nova-accel``: show and check a host and device profiles.

It reads nova.conf if there is one. It does not need Nova or a running service,
but ``host check`` and ``metrics`` query Placement and libvirt.
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
from nova_accel.cmd import metrics
from nova_accel.cmd import profile
from nova_accel.core import errors


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    :param argv: arguments, default those of the process
    :returns: 0, or 1 if the item is missing or invalid; ``host check`` returns
        2 if it cannot tell
    """
    arguments = _parser().parse_args(argv)
    prepare_output()
    try:
        return arguments.run(arguments, _configuration(arguments))
    except (errors.AccelError, cfg.Error, OSError) as error:
        print(f'nova-accel: {error}', file=sys.stderr)
        return arguments.failed


def prepare_output() -> None:
    """Leave the terminal to the findings of a command."""
    # Discard log lines of the modules: the command prints its findings.
    logging.getLogger('nova_accel').addHandler(logging.NullHandler())
    # Print "?" for line characters that the terminal's encoding lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='replace')


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        'nova-accel', description='Accelerators for OpenStack Nova: show and '
        'check the devices of a host, and device profiles.')
    parser.set_defaults(failed=1, service=None)
    parser.add_argument(
        '--config-file', action='append', metavar='FILE',
        help='nova.conf to read; can be repeated (default: nova.conf in the '
             'directories where Nova looks for it)')
    parser.add_argument('--config-dir', action='append', metavar='DIR',
                        help='directory of *.conf files to read')
    topics = parser.add_subparsers(title='topics', required=True,
                                   metavar='host|metrics|profile')
    host.add_parser(topics)
    metrics.add_parser(topics)
    profile.add_parser(topics)
    return parser


def _configuration(arguments: argparse.Namespace) -> cfg.ConfigOpts:
    configuration = cfg.ConfigOpts()
    conf.register_opts(configuration)
    for directory in arguments.config_dir or ():
        # oslo.config checks this only for options that it parses itself.
        if not os.path.isdir(directory):
            raise cfg.ConfigDirNotFoundError(directory)
    try:
        configuration(
            [], project='nova', prog=arguments.service or 'nova-accel',
            # With None, oslo.config searches the default directories.
            default_config_files=arguments.config_file,
            default_config_dirs=arguments.config_dir)
    except UnicodeDecodeError as error:
        raise errors.AccelError(
            'nova.conf', f'cannot be read as text ({error})') from None
    nova_claims.register_opts(configuration)
    return configuration


if __name__ == '__main__':
    sys.exit(main())
