# SPDX-License-Identifier: Apache-2.0
"""A request and one host as a constraint satisfaction problem (CSP).

Names mean nothing here, so that hosts that look alike are one
:class:`Problem`, and what is known of one of them is known of all.
"""

import collections
import collections.abc
import dataclasses
import os.path

LINKS = 'link_domain'
#: From the outside in.
LEVELS = ('numa_node', 'pcie_root', 'pcie_switch', 'device')


@dataclasses.dataclass(frozen=True)
class Demand:
    """What one group takes from one stock.

    :param traits: wanted (True) or not to be there (False) by number
    """

    resource_class: int
    amount: int
    traits: tuple[tuple[int, bool], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A stock, its names replaced by numbers; places are None if unknown.

    :param fresh: whether nobody has any of it
    """

    resource_class: int
    traits: frozenset[int]
    free: int
    fresh: bool
    numa_node: int | None
    pcie_root: int | None
    pcie_switch: int | None
    device: int


@dataclasses.dataclass(frozen=True)
class Constraint:
    """A rule, its members by index of their demands."""

    key: str
    same: bool
    members: tuple[int, ...]
    guest: bool = False
    network: bool = False
    weight: int = 0


@dataclasses.dataclass(frozen=True)
class Problem:
    """Demands, the stocks of one view, the rules and what is around."""

    demands: tuple[Demand, ...]
    sources: tuple[Source, ...]
    constraints: tuple[Constraint, ...] = ()
    guest: frozenset[int] | None = None
    network: frozenset[int] | None = None
    partitions: tuple[frozenset[int], ...] = ()
    islands: tuple[frozenset[int], ...] = ()
    pack: bool = True

    def __len__(self) -> int:
        return len(self.sources)


def merged(constraints: collections.abc.Iterable[Constraint],
           ) -> tuple[Constraint, ...]:
    """The wishes, those that follow from each other made one.

    What has the same root as a third has the same as each other; not so with
    link domains, which may overlap.
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
        linked.append(constraint)
        chains.append(Constraint(
            constraint.key, True, tuple(sorted({member for one in linked
                                          for member in one.members})),
            any(one.guest for one in linked),
            any(one.network for one in linked)))
    return (*chains, *others)


class View:
    """The rows of a problem, seen from all sides; it does not change."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.sources = sources = problem.sources
        self.sets = problem.partitions + problem.islands
        self.component = self._components()
        #: By key, each row's value: where it is unknown, one of the device's
        #: own, for that is where it is, wherever that may be.
        self.values = {
            key: [_value(getattr(source, key), source.device)
                  for source in sources] for key in LEVELS}
        self.values[LINKS] = [('device', self.component[source.device])
                               for source in sources]
        #: What closeness counts.
        self.spots = {
            'numa_node': [source.numa_node for source in sources],
            'pcie_root': [source.pcie_root for source in sources],
            'pcie_switch': [
                ('root', source.pcie_root) if source.pcie_switch is None else
                source.pcie_switch for source in sources],
            'device': [source.device for source in sources],
            LINKS: [self.component[source.device] for source in sources]}
        self.free = {key: collections.Counter() for key in self.spots}
        for key, spots in self.spots.items():
            for spot, source in zip(spots, sources, strict=True):
                self.free[key][spot] += source.free
        self.fresh: dict[int, bool] = {}
        for source in sources:
            self.fresh[source.device] = (source.fresh and
                                      self.fresh.get(source.device, True))
        #: By device, the sets of several that break when it is taken, and
        #: those of each size, large ones first: sets are bits here.
        self.whole, self.sizes = self._whole()
        self.tree = _Tree(self)

    def _components(self) -> dict[int, int]:
        parent = {source.device: source.device for source in self.sources}
        for devices in self.sets:
            parent.update({device: device for device in devices})

        def root(device):
            while parent[device] != device:
                device = parent[device]
            return device

        for devices in self.sets:
            first, *others = sorted(devices) or [None]
            for other in others:
                low, high = sorted((root(first), root(other)))
                parent[high] = low
        return {device: root(device) for device in parent}

    def _whole(self) -> tuple[dict[int, int], list[tuple[int, int]]]:
        """The sets of which nobody has anything, and all sets by size."""
        whole: dict[int, int] = collections.defaultdict(int)
        sizes: dict[int, int] = collections.defaultdict(int)
        # One that is declared twice is one.
        for number, devices in enumerate(dict.fromkeys(self.sets)):
            if len(devices) > 1:
                sizes[len(devices)] |= 1 << number
                if all(map(self.fresh.get, devices)):
                    for device in devices:
                        whole[device] |= 1 << number
        return dict(whole), sorted(sizes.items(), reverse=True)

    def broken(self, devices: collections.abc.Iterable[int],
               before: int = 0) -> list[int]:
        """How many sets of each size break when devices are taken.

        :param before: the sets that have broken already
        """
        sets = 0
        for device in devices:
            sets |= self.whole.get(device, 0)
        sets &= ~before
        return [(sets & alike).bit_count() for _size, alike in self.sizes]

    def off(self, constraint: Constraint, index: int) -> int:
        """Of guest and network, how many a row's NUMA node is not one of."""
        node = self.sources[index].numa_node
        return sum(
            bool(asked and nodes is not None and node not in nodes)
            for asked, nodes in ((constraint.guest, self.problem.guest),
                                 (constraint.network, self.problem.network)))

    def may_grow(self, devices: collections.abc.Set, more: int) -> bool:
        """Whether a set is legal, or can be with some more members."""
        return (len(devices) == 1
                or any(devices <= island for island in self.problem.islands)
                or any(devices <= partition
                       and len(partition) - len(devices) <= more
                       for partition in self.problem.partitions))

    def wished(self, constraint: Constraint) -> list:
        """By row, the values whose number an unmet wish is counted in."""
        if constraint.same and constraint.key == LINKS:
            return self.spots['device']
        if not constraint.same and constraint.key in ('numa_node',
                                                      'pcie_root'):
            # Of two that are unknown, nobody can say that they differ.
            return self.spots[constraint.key]
        return self.values[constraint.key]

    def unmet(self, constraint: Constraint, values: collections.abc.Sized,
              count: int, more: int) -> int:
        """By how much members with these values miss a wish, or 0.

        :param values: different ones; devices for ``same link_domain``
        :param count: how many members have them
        :param more: how many members are still to come
        """
        if not constraint.same:
            return count - len(values)
        if constraint.key != LINKS:
            return len(values) - 1
        if self.may_grow(values, more):
            return 0
        return max(1, len({self.component[device] for device in values}) - 1)


def _value(value, device):
    return ('device', device) if value is None else value


class _Tree:
    """Node, root, switch and device of each row, and which look alike.

    :ivar paths: for each row, the number of its part at each level, from the
        node down; () for all where the places make no tree
    :ivar shapes: for each row, from the node down to the row itself,
        numbers that are the same for what looks alike
    """

    def __init__(self, view: View):
        sources = view.sources
        paths = [tuple((source.numa_node, source.pcie_root, source.pcie_switch,
                        source.device)[:depth] for depth in range(1, 5))
                 for source in sources]
        if not self._is_tree(sources, paths):
            self.paths, self.shapes = [()] * len(sources), []
            return
        numbers: dict = {}
        self.paths = [tuple(numbers.setdefault(part, len(numbers))
                            for part in path) for path in paths]
        self.shapes = self._shapes(view)

    @staticmethod
    def _is_tree(sources, paths) -> bool:
        above: dict = {}
        for source, path in zip(sources, paths, strict=True):
            for depth, key in enumerate(LEVELS):
                value = getattr(source, key)
                if value is not None and above.setdefault(
                        (key, value), path[depth]) != path[depth]:
                    return False
        return True

    def _shapes(self, view):
        numbers: dict = {}

        def number(*shape):
            return numbers.setdefault(shape, len(numbers))

        member_of = self._member_of(view.problem)
        leaves = [number(source.resource_class, source.traits, source.free)
                  for source in view.sources]
        below, marks = collections.defaultdict(list), {}
        for source, path, leaf in zip(view.sources, self.paths, leaves,
                                   strict=True):
            below[path[3]].append(leaf)
            marks[path[3]] = view.fresh[source.device], tuple(
                member_of[source.device])
            marks[path[2]] = source.pcie_switch is None
            marks[path[1]] = source.pcie_root is None
            marks[path[0]] = (
                source.numa_node is None,
                source.numa_node in (view.problem.guest or ()),
                source.numa_node in (view.problem.network or ()))
        shape = {}
        for depth in (3, 2, 1, 0):
            for part in dict.fromkeys(path[depth] for path in self.paths):
                shape[part] = number(depth, marks[part],
                                     tuple(sorted(below[part])))
            for path in dict.fromkeys(path[:depth + 1]
                                      for path in self.paths):
                if depth:
                    below[path[-2]].append(shape[path[-1]])
        return [(*(shape[part] for part in path), leaf)
                for path, leaf in zip(self.paths, leaves, strict=True)]

    def _member_of(self, problem) -> dict[int, list[tuple[int, ...]]]:
        """By device, the sets that it is in.

        A set is known by the smallest part that has all of it, as a level,
        by its number there, and by how much of it is not there. What is
        joined in two parts in the same way does not tell them from each other.
        """
        paths = {source.device: path for source, path in zip(
            problem.sources, self.paths, strict=True)}
        numbers: collections.Counter = collections.Counter()
        member_of = collections.defaultdict(list)
        for is_island, sets in enumerate((problem.partitions,
                                          problem.islands)):
            for devices in sets:
                there = sorted(filter(paths.get, devices))
                part = os.path.commonprefix(list(map(paths.get, there)))
                for device in there:
                    member_of[device].append((
                        is_island, len(part), numbers[part],
                        len(devices) - len(there)))
                numbers[part] += 1
        return member_of
