"""Random checkpoints of odd geometries, made by k3-store synth, against the second implementation.

reference.py is checked against the vendor's numbers in oracle.py; here it stands in for them where
no golden file exists."""
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
import reference
from k3test import check, check_equal

GEOMETRIES = {}


def geometry(case, name):
    pass


k3test.main([])
