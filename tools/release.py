# SPDX-License-Identifier: Apache-2.0
"""Make the files of a release in dist/: ``tox -e dist``.

They are the sdist, the wheel, and a software bill of materials (CycloneDX) of
the wheel and what is installed with it, in the versions that are tested with
the newest Nova.

The SBOM is not in the wheel (PEP 770). The wheel has no software of others,
and scanners would take its dependencies for parts of it.
"""

from email import message
from importlib import metadata
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

_ROOT = pathlib.Path(__file__).parents[1]
_DIST = _ROOT / 'dist'

# For cyclonedx-py, which takes the main component from such a file.
_PROJECT = """\
[project]
name = "{name}"
version = "{version}"
description = "{description}"
license = "{license}"
dependencies = {dependencies}
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        _run('-m', 'build', '--outdir', work / 'out', _ROOT)
        [wheel] = (work / 'out').glob('*.whl')
        _describe(wheel, work)
        _DIST.mkdir(exist_ok=True)
        for path in sorted((work / 'out').iterdir()):
            print(shutil.move(path, _DIST / path.name))


def _describe(wheel: pathlib.Path, work: pathlib.Path) -> None:
    """Write the SBOM of a wheel beside it."""
    python = _install(wheel, work / 'installed')
    own = _metadata(wheel)
    project = work / 'pyproject.toml'
    project.write_text(_PROJECT.format(
        name=own['Name'], version=own['Version'], description=own['Summary'],
        license=own['License-Expression'] or own['License'],
        dependencies=[needed for needed in own.get_all('Requires-Dist')
                      if 'extra ==' not in needed]))
    name = '-'.join(wheel.name.split('-')[:2])
    _run('-m', 'cyclonedx_py', 'environment', '--output-reproducible',
         '--mc-type', 'library', '--pyproject', project,
         '--output-file', wheel.with_name(f'{name}.cdx.json'), python)


def _install(wheel: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Install a wheel in an environment of its own; return its Python."""
    # The file of the newest Nova is the last.
    *_older, newest = sorted((_ROOT / 'constraints').glob('nova*.txt'))
    _run('-m', 'venv', '--without-pip', folder)
    python = folder / 'bin' / 'python'
    _run('-m', 'pip', '--python', python, 'install', '--quiet',
         '--constraint', newest, wheel)
    return python


def _metadata(wheel: pathlib.Path) -> message.Message:
    with zipfile.ZipFile(wheel) as archive:
        [folder] = {name.partition('/')[0] for name in archive.namelist()
                    if name.partition('/')[0].endswith('.dist-info')}
        return metadata.PathDistribution(
            zipfile.Path(archive, f'{folder}/')).metadata


def _run(*arguments: object) -> None:
    subprocess.run([sys.executable, *map(str, arguments)], check=True)


if __name__ == '__main__':
    main()
