# SPDX-License-Identifier: Apache-2.0
"""A request and one host as a constraint satisfaction problem (CSP).

A :class:`Problem` has numbers instead of names. Hosts that look alike are
therefore equal problems, and the answer for one is valid for all of them.
"""

import collections
import collections.abc
import dataclasses
import functools
import os.path

from nova_accel.core import model

LINKS = 'link_domain'
#: The levels of a host's topology, the widest first.
PARTS = tuple(level.key for level in model.LEVELS)
LEVELS = (*PARTS, 'device')
#: A part of the host, or a device.
Spot = collections.abc.Hashable
#: For each demand, the sources that may serve it.
Domains = list[list[int]]
#: Levels at which the part of a source can be unknown.
UNCERTAIN = tuple(level.key for level in model.LEVELS if not level.optional)


@dataclasses.dataclass(frozen=True)
class Demand:
    """The units that one group takes from one source.

    :param traits: by number; True if required, False if forbidden
    """

    resource_class: int
    amount: int
    traits: tuple[tuple[int, bool], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """The available units of one Region.

    :param fresh: whether no server holds any unit of it
    :param parts: its part of the host at each of :data:`PARTS`, by number;
        None if it is unknown, or if there is none at an optional level
    """

    resource_class: int
    traits: frozenset[int]
    free: int
    fresh: bool
    parts: tuple[int | None, ...]
    device: int


@dataclasses.dataclass(frozen=True)
class Constraint:
    """An affinity rule.

    :param members: indexes of demands
    :param weight: 0 for a hard constraint, more for a soft one
    """

    key: str
    same: bool
    members: tuple[int, ...]
    guest: bool = False
    network: bool = False
    weight: int = 0


@dataclasses.dataclass(frozen=True)
class Problem:
    """Demands, the sources of one host, constraints and the host's context.

    :param guest: the NUMA nodes of the guest, or None if it has none
    :param network: the same of its PCI network devices
    :param has_failed_links: whether sets of devices are missing whose links
        have failed
    :param pack: whether to keep large parts of the host whole
    """

    demands: tuple[Demand, ...]
    sources: tuple[Source, ...]
    constraints: tuple[Constraint, ...] = ()
    guest: frozenset[int] | None = None
    network: frozenset[int] | None = None
    partitions: tuple[frozenset[int], ...] = ()
    islands: tuple[frozenset[int], ...] = ()
    has_failed_links: bool = False
    pack: bool = True

    def __len__(self) -> int:
        return len(self.sources)


def merged(constraints: collections.abc.Iterable[Constraint],
           ) -> tuple[Constraint, ...]:
    """Return the constraints, hard "same" ones that share a member merged.

    "Same" is transitive for every key except link domains, which may overlap.
    """
    chains: list[Constraint] = []
    others = []
    for constraint in constraints:
        if constraint.weight or not constraint.same or constraint.key == LINKS:
            others.append(constraint)
            continue
        linked = [chain for chain in chains if chain.key == constraint.key
                  and set(chain.members) & set(constraint.members)]
        chains = [chain for chain in chains if chain not in linked]
        chains.append(_union([*linked, constraint]))
    return (*chains, *others)


def _union(linked: list[Constraint]) -> Constraint:
    members = {member for one in linked for member in one.members}
    return Constraint(
        linked[0].key, True, tuple(sorted(members)),
        any(one.guest for one in linked), any(one.network for one in linked))


class View:
    """Immutable lookup tables for the sources of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.sources = problem.sources
        self.sets = problem.partitions + problem.islands
        self.component = self._components()
        #: By key, the value of each source. An unknown place counts as unique
        #: to its device.
        self.values = self._values()
        #: By key, the place of each source for counting closeness.
        self.spots = self._spots()
        #: By key and spot, the free units.
        self.free: dict[str, collections.Counter[Spot]] = {
            key: collections.Counter() for key in self.spots}
        for key, spots in self.spots.items():
            for spot, source in zip(spots, self.sources, strict=True):
                self.free[key][spot] += source.free
        #: By device, whether no server holds any unit of it.
        self.fresh: dict[Spot, bool] = {}
        for source in self.sources:
            self.fresh[source.device] = (
                source.fresh and self.fresh.get(source.device, True))
        #: Bit masks of sets: by device, the unused sets that have it, and by
        #: size, the largest first, the sets of that size.
        self.whole, self.sizes = self._whole()

    @functools.cached_property
    def tree(self) -> '_Tree':
        """The parts of the host; only a search needs them."""
        return _Tree(self)

    def _values(self) -> dict[str, list[Spot]]:
        values: dict[str, list[Spot]] = {
            key: [_value(source.parts[depth], source.device)
                  for source in self.sources]
            for depth, key in enumerate(PARTS)}
        values['device'] = [source.device for source in self.sources]
        values[LINKS] = [('device', self.component[source.device])
                         for source in self.sources]
        return values

    def _spots(self) -> dict[str, list[Spot]]:
        spots: dict[str, list[Spot]] = {
            key: [source.parts[depth] for source in self.sources]
            for depth, key in enumerate(PARTS)}
        for depth, level in enumerate(model.LEVELS):
            if level.optional:
                # Without such a part, the part around it counts.
                spots[level.key] = [
                    ('outer', source.parts[depth - 1])
                    if source.parts[depth] is None else source.parts[depth]
                    for source in self.sources]
        spots['device'] = [source.device for source in self.sources]
        spots[LINKS] = [self.component[source.device]
                        for source in self.sources]
        return spots

    def _components(self) -> dict[Spot, int]:
        """By device, a number that all devices linked to it share."""
        parent = {source.device: source.device for source in self.sources}
        for devices in self.sets:
            parent.update({device: device for device in devices})

        def root(device: int) -> int:
            while parent[device] != device:
                device = parent[device]
            return device

        for devices in self.sets:
            members = sorted(devices)
            for other in members[1:]:
                low, high = sorted((root(members[0]), root(other)))
                parent[high] = low
        return {device: root(device) for device in parent}

    def _whole(self) -> tuple[dict[Spot, int], list[tuple[int, int]]]:
        """Return the unused sets by device, and all sets by size."""
        whole: dict[Spot, int] = collections.defaultdict(int)
        sizes: dict[int, int] = collections.defaultdict(int)
        # A set that is declared twice counts once.
        for number, devices in enumerate(dict.fromkeys(self.sets)):
            if len(devices) > 1:
                sizes[len(devices)] |= 1 << number
                if all(map(self.fresh.get, devices)):
                    for device in devices:
                        whole[device] |= 1 << number
        return dict(whole), sorted(sizes.items(), reverse=True)

    def broken(self, devices: collections.abc.Iterable[Spot],
               before: int = 0) -> list[int]:
        """Return how many unused sets of each size these devices break.

        :param before: bit mask of the sets that are broken already
        """
        sets = 0
        for device in devices:
            sets |= self.whole.get(device, 0)
        sets &= ~before
        return [(sets & alike).bit_count() for _size, alike in self.sizes]

    def nodes_missed(self, constraint: Constraint, index: int) -> int:
        """Count whether a source is off the nodes of guest and of network.

        :param index: of the source
        :returns: 0, 1 or 2
        """
        node = self.sources[index].parts[0]
        return sum(
            bool(asked and nodes is not None and node not in nodes)
            for asked, nodes in ((constraint.guest, self.problem.guest),
                                 (constraint.network, self.problem.network)))

    def may_grow(self, devices: collections.abc.Set[Spot],
                 more: int) -> bool:
        """Whether a set is legal, or can be with up to more members added."""
        return (len(devices) == 1
                or any(devices <= island for island in self.problem.islands)
                or any(devices <= partition
                       and len(partition) - len(devices) <= more
                       for partition in self.problem.partitions))

    def counted_values(self, constraint: Constraint) -> list[Spot]:
        """Return, by source, the values that :meth:`shortfall` counts."""
        if constraint.same and constraint.key == LINKS:
            return self.spots['device']
        if not constraint.same and constraint.key in UNCERTAIN:
            # Two unknown places are not known to differ.
            return self.spots[constraint.key]
        return self.values[constraint.key]

    def shortfall(self, constraint: Constraint,
                  values: collections.abc.Set[Spot], count: int,
                  more: int) -> int:
        """Return by how much members miss a constraint, or 0.

        :param values: of the members; devices for ``same link_domain``
        :param count: how many members have these values
        :param more: how many members are not assigned yet
        """
        if not constraint.same:
            return count - len(values)
        if constraint.key != LINKS:
            return len(values) - 1
        if self.may_grow(values, more):
            return 0
        return max(1, len({self.component[device] for device in values}) - 1)


def _value(value: Spot | None, device: int) -> Spot:
    return ('device', device) if value is None else value


# The part of a source at each level, with the parts around it.
_Path = tuple[tuple[int | None, ...], ...]


class _Tree:
    """NUMA node, root, switch and device of each source, and its twins.

    :ivar paths: for each source, a number for its part of the host at each
        level, the NUMA node first; () for all if the places form no tree
    :ivar shapes: for each source, a number for the shape of its part at each
        level, and of the source; parts that look alike have the same number
    """

    def __init__(self, view: View) -> None:
        sources = view.sources
        paths: list[_Path] = [tuple((*source.parts, source.device)[:depth + 1]
                       for depth in range(len(LEVELS))) for source in sources]
        self.paths: list[tuple[int, ...]] = [()] * len(sources)
        self.shapes: list[tuple[int, ...]] = []
        if not self._is_tree(sources, paths):
            return
        numbers: dict[Spot, int] = {}
        self.paths = [tuple(numbers.setdefault(part, len(numbers))
                            for part in path) for path in paths]
        self.shapes = self._shapes(view)

    @staticmethod
    def _is_tree(sources: tuple[Source, ...], paths: list[_Path]) -> bool:
        """Whether every known place is inside one place of the level above."""
        above: dict[Spot, Spot] = {}
        for source, path in zip(sources, paths, strict=True):
            for depth, value in enumerate((*source.parts, source.device)):
                if value is not None and above.setdefault(
                        (depth, value), path[depth]) != path[depth]:
                    return False
        return True

    def _shapes(self, view: View) -> list[tuple[int, ...]]:
        numbers: dict[Spot, int] = {}

        def number(*shape: collections.abc.Hashable) -> int:
            return numbers.setdefault(shape, len(numbers))

        leaves = [number(source.resource_class, source.traits, source.free)
                  for source in view.sources]
        marks = self._marks(view)
        below = collections.defaultdict(list)
        for path, leaf in zip(self.paths, leaves, strict=True):
            below[path[-1]].append(leaf)
        shape: dict[int, int] = {}
        for depth in reversed(range(len(LEVELS))):
            for part in dict.fromkeys(path[depth] for path in self.paths):
                shape[part] = number(depth, marks[part],
                                     tuple(sorted(below[part])))
            for path in dict.fromkeys(path[:depth + 1]
                                      for path in self.paths):
                if depth:
                    below[path[-2]].append(shape[path[-1]])
        return [(*(shape[part] for part in path), leaf)
                for path, leaf in zip(self.paths, leaves, strict=True)]

    def _marks(self, view: View) -> dict[int, collections.abc.Hashable]:
        """Return, by part, what tells it from others with equal contents."""
        member_of = self._member_of(view.problem)
        marks: dict[int, collections.abc.Hashable] = {}
        for source, path in zip(view.sources, self.paths, strict=True):
            marks[path[-1]] = view.fresh[source.device], tuple(
                member_of[source.device])
            for part, known in zip(path, source.parts, strict=False):
                marks[part] = known is None
            node = source.parts[0]
            marks[path[0]] = (node is None,
                              node in (view.problem.guest or ()),
                              node in (view.problem.network or ()))
        return marks

    def _member_of(self,
                   problem: Problem) -> dict[int, list[tuple[int, ...]]]:
        """Return, by device, the partitions and islands that have it.

        A set is named by its kind, the level of the smallest part of the host
        that contains it, its number in that part, and how many of its devices
        have no source. Two parts with the same sets inside stay alike.
        """
        paths = {source.device: path for source, path in zip(
            problem.sources, self.paths, strict=True)}
        numbers: collections.Counter[Spot] = collections.Counter()
        member_of: dict[int, list[tuple[int, ...]]] = (
            collections.defaultdict(list))
        for is_island, sets in enumerate((problem.partitions,
                                          problem.islands)):
            for devices in sets:
                known = sorted(filter(paths.get, devices))
                part = os.path.commonprefix([paths[each] for each in known])
                for device in known:
                    member_of[device].append((
                        is_island, len(part), numbers[part],
                        len(devices) - len(known)))
                numbers[part] += 1
        return member_of
