"""What a Python does first that tests start: go without the safeguards that its environment names."""

import os

from tests.without import VARIABLE, go_without

go_without(os.environ.get(VARIABLE, ""))
