"""Kafka Connect's REST API over a worker."""

from headrace.connect.rest.app import make_app
from headrace.connect.rest.calls import Operation, Parameter, description, page
from headrace.connect.rest.operations import OPERATIONS
from headrace.connect.rest.server import RestServer

__all__ = ["OPERATIONS", "Operation", "Parameter", "RestServer", "description", "make_app", "page"]
