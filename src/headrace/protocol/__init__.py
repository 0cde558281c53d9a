"""The bytes of RocketMQ's remoting protocol and values made of them; nothing here does I/O."""
