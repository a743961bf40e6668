"""The table of coefficients with rounded numbers."""

import pandas as pd

from unalike.reporting.coefficients import as_table


def test_interval_of_a_ratio_that_excludes_one_does_not_end_at_it():
    ratios = {"odds_ratio": 1.03159, "odds_low": 1.00466, "odds_high": 1.05929}
    tests = {"coefficient": 0.0311, "se": 0.0135, "low": 0.00465, "high": 0.0576, "p": 0.021}
    row = {"outcome": "1", "term": "age", "robust_se": 0.019, "robust_p": 0.242} | tests | ratios
    table = as_table(pd.DataFrame([row]))
    assert {"1.032", "1.0047 to 1.059"} < set(table.texts[0])
