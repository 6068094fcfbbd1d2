# SPDX-License-Identifier: Apache-2.0
"""The Profiles in ``[nova_accel] profile_dirs``, read again on changes."""

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
    """The last valid profiles of a file, and its current problems."""

    signature: safe_yaml.Signature | None = None
    profiles: tuple[device_profile.Profile, ...] = ()
    problems: tuple[errors.ProfileError, ...] = ()


class Store:
    """Profiles by name, read again when their files change.

    If a file or a profile becomes invalid, its last valid content is used
    further, and the error is logged once.

    :param directories: in order of precedence. Files in a directory are read
        in order of their names. If two files have a profile of one name, the
        first one is used
    """

    def __init__(self, directories: collections.abc.Iterable[str]):
        self.directories = tuple(directories)
        self._files: dict[str, _File] = {}
        self._profiles: dict[str, device_profile.Profile] = {}
        self._problems: tuple[errors.ProfileError, ...] = ()
        # Threads of nova-api share the files, which are updated in steps.
        self._lock = threading.Lock()

    def get(self, name: str) -> device_profile.Profile | None:
        """Return the current profile of this name, or None."""
        self.refresh()
        return self._profiles.get(name)

    def all(self) -> list[device_profile.Profile]:
        """Return the current profiles, sorted by name."""
        self.refresh()
        return [self._profiles[name] for name in sorted(self._profiles)]

    def problems(self) -> tuple[errors.ProfileError, ...]:
        """Return the current problems of the files."""
        self.refresh()
        return self._problems

    def missing(self) -> list[errors.ProfileError]:
        """Return an error for each directory that does not exist."""
        return [errors.ProfileError(errors.path(directory),
                                    'is not a directory')
                for directory in self.directories
                if not os.path.isdir(directory)]

    def empty(self) -> list[errors.ProfileError]:
        """Return an error for each directory without profile files."""
        found = []
        for directory in self.directories:
            # problems() has those that cannot be listed.
            with contextlib.suppress(OSError):
                if not names(directory):
                    found.append(errors.ProfileError(
                        errors.path(directory), 'has no profile file (name '
                        f'ending in {", ".join(SUFFIXES)})'))
        return found

    def refresh(self) -> None:
        """Read the files that changed, and log new problems."""
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
        self._profiles, duplicates = self._collect(files)
        problems.extend(duplicates)
        known = {str(error) for error in self._problems}
        for error in problems:
            if str(error) not in known:
                LOG.error('%s', error)
        self._problems = tuple(problems)

    def _paths(self) -> tuple[list[str], list[errors.ProfileError]]:
        paths: list[str] = []
        problems = []
        for directory in self.directories:
            try:
                found = names(directory)
            except FileNotFoundError:
                # The directory need not exist before the first profile.
                continue
            except OSError as error:
                problems.append(errors.ProfileError(
                    errors.path(directory),
                    f'cannot be listed ({error.strerror})'))
                # Keep the last valid content of its files.
                paths.extend(path for path in self._files if path.startswith(
                    os.path.join(directory, '')))
                continue
            paths.extend(os.path.join(directory, name) for name in found)
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
        # Keep the last valid content of broken profiles. If a broken document
        # has no name, it can be any of them, so keep all that are missing.
        broken = {problem.profile for problem in problems}
        kept = {profile.name: profile for profile in file.profiles
                if profile.name in broken or None in broken}
        kept.update((profile.name, profile) for profile in found)
        if file.problems and not problems:
            LOG.info('%s: is valid again', errors.path(path))
        file.profiles, file.problems = tuple(kept.values()), tuple(problems)

    @staticmethod
    def _collect(files: collections.abc.Mapping[str, _File],
                 ) -> tuple[dict[str, device_profile.Profile],
                            list[errors.ProfileError]]:
        owners: dict[str, str] = {}
        collected: dict[str, device_profile.Profile] = {}
        duplicates = []
        for path, file in files.items():
            for profile in file.profiles:
                first = owners.setdefault(profile.name, path)
                if first == path:
                    collected[profile.name] = profile
                elif collected[profile.name] != profile:
                    duplicates.append(errors.ProfileError(
                        f'profile {errors.quote(profile.name)} in '
                        f'{errors.path(path)}',
                        f'{errors.path(first)} has a profile of the same '
                        'name, which is used', 'rename one of them'))
        return collected, duplicates


def names(directory: str) -> list[str]:
    """Return the names of the profile files in a directory, sorted.

    :raises OSError: if it cannot be listed
    """
    return sorted(name for name in os.listdir(directory)
                  if name.endswith(SUFFIXES) and not name.startswith('.'))


def unreadable(path: str, error: OSError) -> errors.ProfileError:
    """Return the error for a file that cannot be read."""
    return errors.ProfileError(errors.path(path),
                               f'cannot be read ({error.strerror})')


def read_text(path: str) -> str:
    """Return the text of one file.

    :raises errors.ProfileError: if it cannot be used
    :raises OSError: if it cannot be read
    """
    try:
        return safe_yaml.read(path, document.MAX_BYTES)
    except safe_yaml.TooLarge as error:
        raise errors.ProfileError(
            errors.path(path), str(error),
            'split its profiles into several files') from None
    except ValueError as error:
        raise errors.ProfileError(errors.path(path), str(error)) from None


def read_file(path: str) -> tuple[list[device_profile.Profile],
                                  list[errors.ProfileError]]:
    """Return the valid profiles of one file, and the errors of the others.

    :raises errors.ProfileError: if the file as a whole cannot be used
    :raises OSError: if it cannot be read
    """
    label, text = errors.path(path), read_text(path)
    name, _suffix = os.path.splitext(os.path.basename(path))
    try:
        found, problems = document.read(text, label, name)
    except errors.ProfileError:
        raise
    except Exception as error:
        # A bug in parsing one file must not affect the other files.
        raise errors.ProfileError(
            label, f'cannot be parsed ({type(error).__name__}: '
            f'{safe_yaml.why(error)})', 'this is a bug in nova_accel; write '
            'the file in another way') from error
    unique: dict[str, device_profile.Profile] = {}
    for profile in found:
        if profile.name in unique:
            duplicate = errors.ProfileError(
                f'profile {errors.quote(profile.name)} in {label}',
                'is defined twice; the first definition is used')
            duplicate.profile = profile.name
            problems.append(duplicate)
        unique.setdefault(profile.name, profile)
    return list(unique.values()), problems
