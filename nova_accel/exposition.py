# SPDX-License-Identifier: Apache-2.0
"""Writes metrics as text for Prometheus, with prometheus_client.

Commands that have metrics work without this library, except those that print
them, so it is imported only here and when it is needed.
"""

import argparse
import collections.abc
import importlib
import typing

from nova_accel.core import errors

#: Values of the labels of one sample, and its value.
Sample = tuple[*tuple[str, ...], float]

#: ``prometheus_client.metrics_core.Metric``
Metric = typing.Any


class Collector(typing.Protocol):
    """What has metrics."""

    def collect(self) -> collections.abc.Iterable[Metric]:
        """Return metrics, as :func:`gauge` makes them."""


def gauge(name: str, text: str, labels: collections.abc.Sequence[str],
          samples: collections.abc.Iterable[Sample]) -> Metric:
    """Return a metric.

    :param name: without ``nova_accel_``
    :param text: what it is, for people
    :param labels: the names of the labels
    """
    from prometheus_client import metrics_core
    family = metrics_core.GaugeMetricFamily(f'nova_accel_{name}', text,
                                            labels=labels)
    for *values, amount in samples:
        family.add_metric(values, amount)
    return family


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that :func:`write` takes."""
    parser.add_argument(
        '--textfile', metavar='FILE',
        help='write this file instead, at once, for the textfile collector '
             'of node_exporter; its name must end in .prom there')


def check() -> None:
    """Raise an error if the library is missing.

    :raises errors.AccelError: if it cannot be loaded
    """
    _library()


def write(collector: Collector, textfile: str | None,
          stdout: typing.TextIO) -> None:
    """Write metrics to a file, replacing it at once, or to a stream.

    :raises errors.AccelError: if the library cannot be loaded
    :raises OSError: if the file cannot be written
    """
    library = _library()
    registry = library.CollectorRegistry()
    registry.register(collector)
    if textfile:
        library.write_to_textfile(textfile, registry)
    else:
        stdout.write(library.generate_latest(registry).decode())


def _library() -> typing.Any:
    try:
        return importlib.import_module('prometheus_client')
    except ImportError as error:
        raise errors.AccelError(
            'prometheus_client', f'cannot be loaded: {error}', 'install the '
            'extra "metrics" of nova-accel, or prometheus_client, into the '
            'Python that runs this command') from None
