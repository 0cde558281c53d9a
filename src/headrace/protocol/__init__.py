"""The bytes of RocketMQ's remoting protocol and values made of them; nothing here does I/O.

======================  ====================================================================
``codes``               numbers of requests, responses and flags
``frames``              commands from a stream of bytes and back
``properties``          a message's properties
``messages``            messages one by one
``columns``             blocks of messages as columns, and records made from columns
``batch_columns``       bodies of batch sends, made from columns
``layout``              where the parts of a stored record lie
``records``             records as brokers store them, made from messages and batches
``stamps``              what a broker writes into records when it stores them
``journal_tags``        which attempt of which batch wrote a message
``routes``              topics, their attributes, routes and clusters (JSON bodies)
``groups``              clients and consumer groups, how members share queues (JSON bodies)
``replication``         what a follower and its primary say to one another
``transactions``        Headrace's own commit protocol
======================  ====================================================================
"""

__all__: list[str] = []
