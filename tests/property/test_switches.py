"""The servers under the fewest switches."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.topology import Switches, blocks_of, most_together, switches_of

SERVERS = 12


@st.composite
def trees(draw):
    """The switches of twelve servers: of level 1, of which each has one of level 2."""
    leaves = draw(st.lists(st.integers(0, 4), min_size=SERVERS, max_size=SERVERS))
    above = draw(st.lists(st.integers(0, 2), min_size=5, max_size=5))
    return [Node(f"n{i}", 8, i, switches=(f"a{leaf}", f"b{above[leaf]}")) for i, leaf in enumerate(leaves)]


def masks(nodes, level):
    """The servers under each switch of a level, by a scan."""
    names = {node.switches[level] for node in nodes}
    return [sum(1 << at for at, node in enumerate(nodes) if node.switches[level] == name) for name in names]


@given(trees(), st.integers(0, 2**SERVERS - 1), st.integers(1, SERVERS))
def test_they_suffice_and_are_under_one_switch_of_the_lowest_level_that_can_hold_them(nodes, among, need):
    switches = switches_of(nodes)
    if switches is None:
        return
    found = switches.fewest(among, need)
    assert found & ~among == 0
    assert found.bit_count() >= min(need, among.bit_count())
    for level in range(2):
        able = [mask & among for mask in masks(nodes, level) if (mask & among).bit_count() >= need]
        if able:
            assert any(found & ~mask == 0 for mask in able)
            least = min(mask.bit_count() for mask in able)
            assert level > 0 or found.bit_count() == least
            break


@given(st.lists(st.integers(0, 4), min_size=SERVERS, max_size=SERVERS), st.integers(1, SERVERS))
def test_no_fewer_switches_of_one_level_suffice(leaves, need):
    nodes = [Node(f"n{i}", 8, i, switches=(f"a{leaf}",)) for i, leaf in enumerate(leaves)]
    switches = switches_of(nodes)
    if switches is None:
        return
    found = switches.fewest((1 << SERVERS) - 1, need)
    used = sum(bool(mask & found) for mask in switches.levels[0])
    fewer = combinations(switches.levels[0], used - 1)
    assert all(sum(mask.bit_count() for mask in some) < need for some in fewer)


@given(trees(), st.lists(st.integers(0, 8), min_size=SERVERS, max_size=SERVERS), st.integers(9, 40), st.integers(0, 5))
def test_the_servers_for_a_job_have_its_gpus(nodes, free, gpus, servers):
    switches = switches_of(nodes)
    if switches is None or sum(free) < gpus:
        return
    index = [sum(1 << at for at, count in enumerate(free) if count == value) for value in range(9)]
    found = most_together(switches, index, gpus, servers)
    assert sum(count for at, count in enumerate(free) if found >> at & 1) >= gpus


@given(trees(), st.integers(1, 2**SERVERS - 1), st.integers(1, SERVERS))
def test_the_first_of_each_is_the_fewest_and_the_last_are_all(nodes, among, need):
    switches = switches_of(nodes)
    if switches is None:
        return
    found = list(switches.each(among, need))
    assert (found[0], found[-1]) == (switches.fewest(among, need), among)


def test_servers_with_their_share_of_the_gpus_come_before_a_tighter_switch():
    """Two servers with 6 or more GPUs for a job of 12, though three under another switch have just 12."""
    switches = switches_of([Node(f"n{i}", 8, i, switches=(name,)) for i, name in enumerate("aaabb")])
    free = (4, 4, 4, 8, 8)
    index = [sum(1 << at for at, count in enumerate(free) if count == value) for value in range(9)]
    assert most_together(switches, index, 12, 2) == 0b11000
    assert most_together(switches, index, 12, 0) == 0b00111


@given(trees(), st.sets(st.integers(0, SERVERS - 1), min_size=1))
def test_blocks_are_the_levels_at_which_servers_are_apart(nodes, chosen):
    some = [nodes[at] for at in sorted(chosen)]
    blocks = blocks_of(some)
    apart = [len({node.switches[level] for node in some}) > 1 for level in range(2)]
    assert len(blocks) == sum(apart[: 1 + apart[0]])
    for level, numbers in enumerate(blocks):
        for (a, one), (b, other) in combinations(enumerate(some), 2):
            assert (numbers[a] == numbers[b]) == (one.switches[level] == other.switches[level])


def test_servers_that_no_switch_names_are_apart():
    nodes = [Node("n0", 8, 0, switches=("a", "top")), Node("n1", 8, 1), Node("n2", 8, 2, switches=("a", "top"))]
    assert blocks_of(nodes) == ((0, 1, 0), (0, 1, 0))
    assert switches_of(nodes).levels == ((0b101, 0b010), (0b101, 0b010))
    assert switches_of([Node("n0", 8, 0), Node("n1", 8, 1)]) is None
    assert switches_of([nodes[0], nodes[2]]) is None
    assert Switches([(1, 2)]).depth == 1
