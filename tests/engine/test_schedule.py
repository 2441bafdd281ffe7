"""The learning rate of every step against a table written out by hand."""

import pytest

from isda.lab.engine import learning_rate
from small_runs import small_config

# Five steps per epoch.
TABLES = {
    # Milestones 8 and 12: steps 40 and 60.
    ("resnet-8", 16, 0.1): {0: 0.1, 39: 0.1, 40: 0.01, 59: 0.01, 60: 0.001, 79: 0.001},
    # Milestones 6, 12, 16, 20; factor 0.2.
    ("wide-resnet-10-2", 24, 0.1): {
        29: 0.1,
        30: 0.02,
        59: 0.02,
        60: 0.004,
        79: 0.004,
        80: 0.0008,
        99: 0.0008,
        100: 0.00016,
        119: 0.00016,
    },
    # 0.1 (1 + cos(pi t / 20)) / 2.
    ("fast-cnn", 4, 0.1): {0: 0.1, 5: 0.0853553390593, 10: 0.05, 15: 0.0146446609407, 19: 0.000615582970243},
    ("fast-cnn", 4, 2.0): {0: 2.0, 10: 1.0, 15: 0.292893218813},
}


@pytest.mark.parametrize("case", TABLES)
def test_the_learning_rate_follows_the_table(case):
    network, epochs, lr = case
    config = small_config(network=network, epochs=epochs, lr=lr, width=None)
    assert config.steps_per_epoch == 5
    assert {step: learning_rate(config, step) for step in TABLES[case]} == pytest.approx(TABLES[case], rel=1e-11)
