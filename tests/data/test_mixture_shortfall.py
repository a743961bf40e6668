import warnings

import numpy as np
import pytest

from unalike.data import partition_labels

LABELS = np.repeat(np.arange(4), 25)


def test_scheme_with_too_few_samples_warns_with_numbers():
    # a=0 asks for 40 of each of 4 classes, which have 25
    with pytest.warns(
        UserWarning, match=r"even: 3 of 3 clients get fewer .*, the smallest 100 instead of 160,"
    ):
        partition_labels("even(size=160)", LABELS, clients=3)


def test_scheme_with_enough_samples_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        partition_labels("even(size=80)", LABELS, clients=3)
