# SPDX-License-Identifier: Apache-2.0
"""The command ``nova-accel``, for the host and the configuration of Nova.

It reads nova.conf if there is one. It does not need Nova or a running service,
but ``host check`` and ``metrics`` query Placement and libvirt.
"""

import argparse
from importlib import metadata
import io
import logging
import os
import sys
import typing

from cliff import app
from cliff import command
from cliff import commandmanager
from oslo_config import cfg

from nova_accel import conf
from nova_accel import nova_claims
from nova_accel.core import errors

NAME = 'nova-accel'


class Application(app.App):
    """The command; its subcommands are entry points of ``nova_accel.cli``."""

    NAME = NAME
    LOG = logging.getLogger(NAME)
    CONSOLE_MESSAGE_FORMAT = f'{NAME}: %(message)s'

    def __init__(self) -> None:
        super().__init__(
            'Accelerators for OpenStack Nova: show and check the devices of a '
            'host, and device profiles.', metadata.version(NAME),
            commandmanager.CommandManager('nova_accel.cli'),
            deferred_help=True)

    def build_option_parser(
            self, description: str | None, version: str | None,
            argparse_kwargs: dict[str, typing.Any] | None = None,
            ) -> argparse.ArgumentParser:
        parser = super().build_option_parser(
            description, version, {'prog': NAME, **(argparse_kwargs or {})})
        parser.add_argument(
            '--config-file', action='append', metavar='FILE',
            help='nova.conf to read; can be repeated (default: nova.conf in '
                 'the directories where Nova looks for it)')
        parser.add_argument('--config-dir', action='append', metavar='DIR',
                            help='directory of *.conf files to read')
        return parser

    def configure_logging(self) -> None:
        """Show what the command says, and other logs only if asked to.

        The modules log what the command prints.
        """
        prepare_output()
        level = self.options.verbose_level
        if level > self.DEFAULT_VERBOSE_LEVEL or self.options.log_file:
            super().configure_logging()
            return
        console = logging.StreamHandler(self.stderr)
        console.setFormatter(logging.Formatter(self.CONSOLE_MESSAGE_FORMAT))
        self.LOG.handlers = [console]
        self.LOG.propagate = False
        self.LOG.setLevel(logging.INFO if level else logging.WARNING)

    def interact(self) -> None:
        """Show the help; there is no shell."""
        self.run_subcommand(['help'])

    def configuration(self, service: str = NAME) -> cfg.ConfigOpts:
        """Return the options in nova.conf; warn of those that do not exist.

        :param service: a file of this name is read after nova.conf
        :raises errors.AccelError, cfg.Error: if a file cannot be read
        """
        found = cfg.ConfigOpts()
        conf.register_opts(found)
        for directory in self.options.config_dir or ():
            # oslo.config checks this only for options that it parses itself.
            if not os.path.isdir(directory):
                raise cfg.ConfigDirNotFoundError(directory)
        try:
            # With None, oslo.config searches the default directories.
            found([], project='nova', prog=service,
                  default_config_files=self.options.config_file,
                  default_config_dirs=self.options.config_dir)
        except UnicodeDecodeError as error:
            raise errors.AccelError(
                'nova.conf', f'cannot be read as text ({error})') from None
        nova_claims.register_opts(found)
        for unknown in conf.unknown(found):
            self.LOG.warning(unknown)
        return found


class Command(command.Command):
    """A subcommand."""

    app: Application


def prepare_output() -> None:
    """Leave the terminal to the findings of a command."""
    # Discard log lines of the modules: the command prints its findings.
    logging.getLogger('nova_accel').addHandler(logging.NullHandler())
    # Print "?" for line characters that the terminal's encoding lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='replace')


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    :param argv: arguments, default those of the process
    :returns: 0, or 1 if the item is missing or invalid; ``host check`` returns
        2 if it cannot tell
    """
    return Application().run(sys.argv[1:] if argv is None else argv)


if __name__ == '__main__':
    sys.exit(main())
