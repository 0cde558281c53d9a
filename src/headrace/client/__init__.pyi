from .admin import AsyncAdmin as AsyncAdmin
from .blocking import (
    Admin as Admin,
    Client as Client,
    GroupConsumer as GroupConsumer,
    Jobs as Jobs,
    Producer as Producer,
    PullConsumer as PullConsumer,
    PushConsumer as PushConsumer,
    TableReader as TableReader,
    TableWriter as TableWriter,
    TransactionProducer as TransactionProducer,
)
from .client import (
    AsyncClient as AsyncClient,
    ClientStatistics as ClientStatistics,
    MessageQueue as MessageQueue,
)
from .deliveries import (
    DEAD_LETTER as DEAD_LETTER,
    Delivery as Delivery,
    Outcome as Outcome,
    Retry as Retry,
)
from .groups import (
    AsyncGroupConsumer as AsyncGroupConsumer,
    GroupOptions as GroupOptions,
    GroupStatistics as GroupStatistics,
)
from .jobs import (
    AsyncJobs as AsyncJobs,
    StageTarget as StageTarget,
)
from .lag import (
    GroupLag as GroupLag,
    JobStanding as JobStanding,
    QueueLag as QueueLag,
    QueueProgress as QueueProgress,
    QueueRange as QueueRange,
)
from .membership import (
    MemberRole as MemberRole,
    Membership as Membership,
)
from .producer import (
    AsyncProducer as AsyncProducer,
    Message as Message,
    ProducerStatistics as ProducerStatistics,
    SendResult as SendResult,
)
from .pulling import (
    AsyncPullConsumer as AsyncPullConsumer,
    PullStatistics as PullStatistics,
)
from .push import AsyncPushConsumer as AsyncPushConsumer
from .push_options import (
    PushOptions as PushOptions,
    PushStatistics as PushStatistics,
)
from .results import (
    PullResult as PullResult,
    PullStatus as PullStatus,
    StoredMessage as StoredMessage,
)
from .settings import ClientSettings as ClientSettings
from .tables import (
    AsyncTableReader as AsyncTableReader,
    AsyncTableWriter as AsyncTableWriter,
    TableStatistics as TableStatistics,
)
from .transactions import (
    AsyncTransactionProducer as AsyncTransactionProducer,
    LocalTransactionState as LocalTransactionState,
    Transaction as Transaction,
    TransactionStatistics as TransactionStatistics,
)
