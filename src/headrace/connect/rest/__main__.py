"""Prints the page of all operations."""

from __future__ import annotations

import sys

from headrace.connect.rest.calls import description, page
from headrace.connect.rest.operations import OPERATIONS

sys.stdout.write(page(description(OPERATIONS)))
