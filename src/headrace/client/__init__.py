"""Talk to a cluster: send, pull, consume in groups, look after topics.

Every class exists twice: with ``Async`` in its name for code on an event loop, and without for
code that waits.  Both work against ``headrace broker`` and against Apache RocketMQ 5.
"""

import lazy_loader

# Names are imported at first use: code that only parses a queue's name loads no network code.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
