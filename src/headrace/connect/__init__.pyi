from . import schema as schema
from .config import (
    Config as Config,
    ConfigDeclaration as ConfigDeclaration,
    ConfigKey as ConfigKey,
    ConfigProblem as ConfigProblem,
    PluginName as PluginName,
    Secret as Secret,
    Size as Size,
    all_of as all_of,
    at_least as at_least,
    at_most as at_most,
    between as between,
    declare as declare,
    each as each,
    key as key,
    matching as matching,
    not_empty as not_empty,
    one_of as one_of,
)
from .converters import (
    Converter as Converter,
    HeaderConverter as HeaderConverter,
)
from .plugins import (
    ConnectorContext as ConnectorContext,
    OffsetReader as OffsetReader,
    RetriableError as RetriableError,
    SinkConnector as SinkConnector,
    SinkTask as SinkTask,
    SinkTaskContext as SinkTaskContext,
    SourceConnector as SourceConnector,
    SourceTask as SourceTask,
    SourceTaskContext as SourceTaskContext,
)
from .predicates import Predicate as Predicate
from .records import (
    Header as Header,
    Queue as Queue,
    SinkBatch as SinkBatch,
    SinkRecord as SinkRecord,
    SourceBatch as SourceBatch,
    SourceRecord as SourceRecord,
)
from .schema import (
    Field as Field,
    Schema as Schema,
    SchemaError as SchemaError,
)
from .transforms import Transform as Transform
