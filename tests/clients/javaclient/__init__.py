"""RocketMQ's Java client against our brokers."""
