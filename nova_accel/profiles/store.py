# SPDX-License-Identifier: Apache-2.0
"""The Profiles of ``[nova_accel] profile_dirs``, kept true to their files."""

import collections.abc
import contextlib
import dataclasses
import os
import threading

from oslo_log import log as logging

from nova_accel import safe_yaml
from nova_accel.core import errors
from nova_accel.core.request import device_profile
from nova_accel.profiles import document

LOG = logging.getLogger(__name__)

SUFFIXES = ('.yaml', '.yml', '.json')


@dataclasses.dataclass
class _File:
    """What a file last said, and what it last said that made sense."""

    signature: tuple | None = None
    profiles: tuple[device_profile.Profile, ...] = ()
    problems: tuple[errors.ProfileError, ...] = ()


class Store:
    """Profiles by name, read again when their files change.

    A file, or a profile in one, that breaks keeps its last good content:
    servers go on being created from it, and the log says once what is wrong.

    :param directories: in order; so are the files in each, by name. Where two
        files have the same profile, the first one's is used
    """

    def __init__(self, directories: collections.abc.Iterable[str]):
        self.directories = tuple(directories)
        self._files: dict[str, _File] = {}
        self._profiles: dict[str, device_profile.Profile] = {}
        self._problems: tuple[errors.ProfileError, ...] = ()
        # A file's entry is filled step by step, and nova-api has threads.
        self._lock = threading.Lock()

    def get(self, name: str) -> device_profile.Profile | None:
        """The profile as its file has it now, or None."""
        self.refresh()
        return self._profiles.get(name)

    def all(self) -> list[device_profile.Profile]:
        self.refresh()
        return [self._profiles[name] for name in sorted(self._profiles)]

    def problems(self) -> tuple[errors.ProfileError, ...]:
        """What is wrong with the files as they are now."""
        self.refresh()
        return self._problems

    def missing(self) -> list[errors.ProfileError]:
        """Which of its directories are not there."""
        return [errors.ProfileError(errors.path(directory), 'is no directory')
                for directory in self.directories
                if not os.path.isdir(directory)]

    def empty(self) -> list[errors.ProfileError]:
        """Which of its directories have no file of profiles."""
        found = []
        for directory in self.directories:
            # One that cannot be listed is among the problems.
            with contextlib.suppress(OSError):
                if not _names(directory):
                    found.append(errors.ProfileError(
                        errors.path(directory), 'has no file of profiles, '
                        f'whose name ends in {", ".join(SUFFIXES)}'))
        return found

    def refresh(self) -> None:
        """Read what changed, and report what is newly wrong."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        paths, problems = self._paths()
        files = {}
        for path in paths:
            files[path] = file = self._files.get(path) or _File()
            self._update(path, file)
            problems.extend(file.problems)
        self._files = files
        self._profiles, doubles = self._collect(files)
        problems.extend(doubles)
        known = {str(error) for error in self._problems}
        for error in problems:
            if str(error) not in known:
                LOG.error('%s', error)
        self._problems = tuple(problems)

    def _paths(self) -> tuple[list[str], list[errors.ProfileError]]:
        paths, problems = [], []
        for directory in self.directories:
            try:
                names = _names(directory)
            except FileNotFoundError:
                # Most hosts, and every cloud before its first profile.
                continue
            except OSError as error:
                problems.append(errors.ProfileError(
                    errors.path(directory),
                    f'cannot be listed ({error.strerror})'))
                # Its files are as good as they were.
                paths.extend(path for path in self._files if path.startswith(
                    os.path.join(directory, '')))
                continue
            paths.extend(os.path.join(directory, name) for name in names)
        return paths, problems

    def _update(self, path: str, file: _File) -> None:
        try:
            signature = safe_yaml.signature(path)
            if signature == file.signature:
                return
            file.signature = signature
            found, problems = read_file(path)
        except errors.ProfileError as error:
            found, problems = [], [error]
        except OSError as error:
            file.signature = None
            found, problems = [], [unreadable(path, error)]
        # What broke keeps what it was; what is fine is what it is now, and
        # what was taken out has gone. Without a name it can be any that broke.
        broken = {problem.profile for problem in problems}
        kept = {profile.name: profile for profile in file.profiles
                if profile.name in broken or None in broken}
        kept.update((profile.name, profile) for profile in found)
        if file.problems and not problems:
            LOG.info('%s: can be read again', errors.path(path))
        file.profiles, file.problems = tuple(kept.values()), tuple(problems)

    @staticmethod
    def _collect(files):
        owners: dict[str, str] = {}
        collected: dict[str, device_profile.Profile] = {}
        doubles = []
        for path, file in files.items():
            for profile in file.profiles:
                first = owners.setdefault(profile.name, path)
                if first == path:
                    collected[profile.name] = profile
                elif collected[profile.name] != profile:
                    doubles.append(errors.ProfileError(
                        f'profile {errors.quote(profile.name)} in '
                        f'{errors.path(path)}',
                        f'{errors.path(first)} has one of the same name, '
                        'which is used',
                        'give one of them another name'))
        return collected, doubles


def _names(directory: str) -> list[str]:
    """The files of profiles in a directory, in order.

    :raises OSError: if it cannot be listed
    """
    return sorted(name for name in os.listdir(directory)
                  if name.endswith(SUFFIXES) and not name.startswith('.'))


def unreadable(path: str, error: OSError) -> errors.ProfileError:
    """A file that cannot be read, as a problem."""
    return errors.ProfileError(errors.path(path),
                               f'cannot be read ({error.strerror})')


def read_file(path: str) -> tuple[list[device_profile.Profile],
                                  list[errors.ProfileError]]:
    """The profiles of one file.

    :raises errors.ProfileError: if the file as a whole cannot be used
    :raises OSError: if it cannot be read
    """
    label = errors.path(path)
    try:
        text = safe_yaml.read(path, document.MAX_BYTES)
    except safe_yaml.TooLarge as error:
        raise errors.ProfileError(
            label, str(error),
            'spread its profiles over several files') from None
    except ValueError as error:
        raise errors.ProfileError(label, str(error)) from None
    name, _suffix = os.path.splitext(os.path.basename(path))
    try:
        found, problems = document.read(text, label, name)
    except errors.ProfileError:
        raise
    except Exception as error:
        # Whatever it is, the other files are as good as they were.
        raise errors.ProfileError(
            label, f'cannot be understood ({type(error).__name__}: '
            f'{safe_yaml.why(error)})', 'this is a bug of nova_accel; write '
            'the file in another way') from error
    unique: dict[str, device_profile.Profile] = {}
    for profile in found:
        if profile.name in unique:
            double = errors.ProfileError(
                f'profile {errors.quote(profile.name)} in {label}',
                'is there twice; the first one is used')
            double.profile = profile.name
            problems.append(double)
        unique.setdefault(profile.name, profile)
    return list(unique.values()), problems
