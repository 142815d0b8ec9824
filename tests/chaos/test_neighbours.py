"""Each attack runs in a process of its own beside a neighbour, who is served; what it took comes back."""

import pytest
from neighbours import CASES, memory_bound, percentile, run_case
from process_figures import MIB

# Seconds: half of the calls, and the latest. A machine that is busy with other tests serves some calls late without
# any attack, so less is not looked at; measure.py tells how late they are on a machine of its own.
LATE = (0.1, 1)
# What a process may keep beyond a tenth: threads of gRPC, and what it keeps for each connection that it has known.
SLACK = 4 * MIB
MOST_MEMORY = 512 * MIB  # four bodies of JSON at their limit


@pytest.mark.parametrize("case", CASES)
def test_a_neighbour_is_served_and_all_comes_back(api, tmp_path, case):
    figures = run_case(api, tmp_path, case, slack=SLACK)
    assert figures.rounds > 0, "there was an attack"
    for share, seconds in zip((0.5, 0.99), LATE):
        assert percentile(figures.attacked, share) < max(5 * percentile(figures.quiet, share), seconds), figures
    assert figures.peak < figures.before + MOST_MEMORY, figures
    assert figures.after <= memory_bound(figures.before, SLACK), figures
    assert figures.is_idle, figures
